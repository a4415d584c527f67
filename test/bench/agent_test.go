package bench_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

// never is a time between looks that no measurement lives to see.
const never = "24h"

// agentProcess is the program as a daemon, a process of its own. It finds no other program in its path.
type agentProcess struct {
	m    *meter
	cmd  *exec.Cmd
	args []string
	env  []string // beside that of this process
	conn *http.Client
	data string // its folder
	log  string // file that it writes to
	over chan error
}

// follow starts an agent that follows a repository, and waits until its host is as
// the head says. It ends with the benchmark, if not before.
func (m *meter) follow(p *published, host *server, poll string, env ...string) *agentProcess {
	dir, err := os.MkdirTemp(m.dir, "agent-")
	require.NoError(m.b, err)
	a := &agentProcess{m: m, data: filepath.Join(dir, "data"), log: filepath.Join(dir, "log"), over: make(chan error, 1)}
	config, secrets, socket := filepath.Join(dir, "agent.hcl"), filepath.Join(dir, "secrets.yaml"), filepath.Join(dir, "socket")
	require.NoError(m.b, os.WriteFile(secrets, []byte(fleet.Fleet{}.Site(host.access)["secrets.yaml"]), 0o600))
	text := fmt.Sprintf("identity = \"father\"\ndata_dir = %q\nlisten = \"127.0.0.1:0\"\nsecrets_file = %q\ndrift_every = %q\nrepository {\n  url  = %q\n  poll = %q\n  auth {\n    ca_file = %q\n  }\n}\n",
		a.data, secrets, never, p.server.URL, poll, p.server.CAFile)
	require.NoError(m.b, os.WriteFile(config, []byte(text), 0o600))
	a.args, a.env = []string{"agent", "--config", config, "--socket", socket}, env
	a.conn = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	a.begin()
	m.b.Cleanup(a.end)
	a.converged(p.head())
	return a
}

// begin starts the agent, once more if it was killed.
func (a *agentProcess) begin() {
	log, err := os.OpenFile(a.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(a.m.b, err)
	defer func() { _ = log.Close() }()
	a.cmd = exec.CommandContext(a.m.ctx, a.m.bin, a.args...)
	a.cmd.Env = slices.Concat(os.Environ(), []string{"PATH=" + filepath.Join(filepath.Dir(a.data), "nothing")}, a.env)
	a.cmd.Stdout, a.cmd.Stderr = log, log
	require.NoError(a.m.b, a.cmd.Start())
	go func(cmd *exec.Cmd) { a.over <- cmd.Wait() }(a.cmd)
}

// kill ends it as a crash does.
func (a *agentProcess) kill() {
	require.NoError(a.m.b, a.cmd.Process.Kill())
	require.Error(a.m.b, <-a.over)
	a.conn.CloseIdleConnections()
}

// serves waits until it answers a request of a node.
func (a *agentProcess) serves(ask string) {
	limit, tick := time.NewTimer(time.Minute), time.NewTicker(2*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for {
		var s agent.Status
		if a.ask(http.MethodGet, "/status", &s) == nil && s.Server != nil && s.Server.Commit != "" {
			if c, err := dial(a.m.ctx, s.Server.Address); err == nil {
				err = c.ask(ask)
				hangUp([]*conn{c})
				if err == nil {
					return
				}
			}
		}
		select {
		case <-tick.C:
		case <-limit.C:
			require.Fail(a.m.b, "the agent does not serve", a.said())
		}
	}
}

// end stops the agent as systemd does, and waits for its end. It may be called again.
func (a *agentProcess) end() {
	if a.cmd == nil {
		return
	}
	had, err := childrenOf(a.cmd.Process.Pid)
	require.NoError(a.m.b, err)
	if a.m.agents++; had {
		a.m.parents++
	}
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	err = <-a.over
	a.cmd = nil
	a.conn.CloseIdleConnections()
	require.NoError(a.m.b, err, a.said())
}

// said is what it logged.
func (a *agentProcess) said() string {
	text, _ := os.ReadFile(a.log)
	return string(text)
}

// ask sends a request over the agent's socket and reads the answer, if into is not nil.
func (a *agentProcess) ask(method, path string, into any) error {
	req, err := http.NewRequestWithContext(a.m.ctx, method, "http://agent"+path, http.NoBody)
	if err != nil {
		return err
	}
	res, err := a.conn.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode >= http.StatusBadRequest {
		return errors.New(res.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(res.Body).Decode(into)
}

// looks has it check repository and host once, and waits for the end of that. It
// must be a check that finds nothing to do.
func (a *agentProcess) looks() {
	var pass agent.PassStatus
	require.NoError(a.m.b, a.ask(http.MethodPost, "/reconcile?wait", &pass), a.said())
	require.Equal(a.m.b, engine.Done, pass.Outcome, a.said())
	s := pass.Summary
	require.Zero(a.m.b, s.Create+s.Update+s.Replace+s.Delete, a.said())
	require.Zero(a.m.b, pass.Unknown, a.said())
}

// converged waits until the host is as a commit says and the agent rests.
func (a *agentProcess) converged(commit string) {
	limit, tick := time.NewTimer(5*time.Minute), time.NewTicker(10*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for {
		var s agent.Status
		if a.ask(http.MethodGet, "/status", &s) == nil && s.State == agent.Idle && s.Converged != nil && s.Converged.ID == commit {
			return
		}
		select {
		case <-tick.C:
		case err := <-a.over:
			a.over <- err
			require.Fail(a.m.b, "the agent ended", "%v\n%s", err, a.said())
		case <-limit.C:
			require.Fail(a.m.b, "the agent does not converge", "to %s\n%+v\n%s", commit, s, a.said())
		}
	}
}

// used is the CPU that it has used so far.
func (a *agentProcess) used() time.Duration {
	d, err := cpuOf(a.cmd.Process.Pid)
	require.NoError(a.m.b, err)
	return d
}

// clone is how many bytes its copy of the repository has.
func (a *agentProcess) clone() int64 {
	n, err := sizeOf(filepath.Join(a.data, "repository"))
	require.NoError(a.m.b, err)
	return n
}

// rests waits until what follows a pass is over, and gives the memory that it holds
// then, and how much of that is not pages of files, which it shares.
func (a *agentProcess) rests() (rss, own int64) {
	a.m.pause(300 * time.Millisecond)
	pid := a.cmd.Process.Pid
	return memoryOf(pid, "VmRSS"), memoryOf(pid, "RssAnon")
}

// pause lets time pass in which nothing is asked of anybody.
func (m *meter) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.ctx.Done():
	}
}

// published is a site in a repository behind git's own server, and a checkout of it
// from which real git pushes.
type published struct {
	m      *meter
	repo   *sourcetest.Repo
	server *sourcetest.HTTPServer
	dir    string // the checkout
}

// hasGit reports whether git is there; without it, a note says what is not measured.
func (m *meter) hasGit(goals string) bool {
	_, err := exec.LookPath("git")
	if err != nil {
		m.notef("%s: not measured, since git is not installed.", goals)
	}
	return err == nil
}

// publish puts the site of a fleet into a repository.
func (m *meter) publish(f fleet.Fleet, a access) *published {
	repo := sourcetest.New(m.b)
	p := &published{m: m, repo: repo, server: repo.HTTPS(), dir: m.site(f.Site(a))}
	p.git("init", "-q", "-b", "main")
	p.git("remote", "add", "origin", p.server.URL)
	p.push("The site")
	return p
}

// git runs git in the checkout.
func (p *published) git(args ...string) {
	cmd := sourcetest.Git(p.m.ctx, p.dir, args...)
	cmd.Env = append(cmd.Env, "GIT_SSL_CAINFO="+p.server.CAFile)
	out, err := cmd.CombinedOutput()
	require.NoError(p.m.b, err, "git %v: %s", args, out)
}

// push commits the checkout and pushes it; it gives the time at which git was done.
func (p *published) push(message string) time.Time {
	p.git("add", "--all")
	p.git("commit", "-q", "-m", message)
	p.git("push", "-q", "origin", "main")
	return time.Now()
}

func (p *published) head() string { return p.repo.Head() }

// retag gives one node of the checkout another tag.
func (p *published) retag(name, tag string) {
	node := regexp.MustCompile(`(?s)(node "` + name + `" \{.*?tags   = \["app", ")[^"]*`)
	files, err := filepath.Glob(filepath.Join(p.dir, "manifests", "*.hcl"))
	require.NoError(p.m.b, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(p.m.b, err)
		if node.Match(text) {
			require.NoError(p.m.b, os.WriteFile(file, node.ReplaceAll(text, []byte("${1}"+tag)), 0o600))
			return
		}
	}
	require.Fail(p.m.b, "no file declares it", name)
}

// deploy is P9: from the end of a push that changes one of 100 nodes to the first
// request that changes the host. The push notifies the agent, as a hook does, or the
// agent polls. The floor is the reads that must come first; for polling,
// with the wait for the next poll that one push in twenty exceeds.
func (m *meter) deploy() {
	if !m.hasGit("P9") {
		return
	}
	const pushes, interval = 30, time.Second
	f := fleet.Fleet{Guests: 100, Nodes: names(4), Files: 10}
	host := m.host(hosting{Fleet: f, Writes: true})
	p := m.publish(f, host.access)
	var bare []run
	for range 5 {
		bare = append(bare, m.role("floor", host.access, false))
	}
	for _, way := range []struct {
		what, goal, poll, peer string
		hook                   bool
		most, floor            time.Duration
	}{
		{"push to first write, 100 guests, hook, p95", "0.5 s", never, "–", true, 500 * time.Millisecond, wall(bare)},
		{"the same by polling each second", "interval + 0.5 s", interval.String(), "comin 30 s, Argo CD 90 s (mean)", false, interval + 500*time.Millisecond, interval*95/100 + wall(bare)},
	} {
		a := m.follow(p, host, way.poll)
		before := a.clone()
		var lags []time.Duration
		for i := range pushes {
			lags = append(lags, p.lag(a, host, way.hook, f.Name(1+i*37%f.Guests), fmt.Sprint(way.poll, i)))
		}
		m.add(row{"P9", way.what, way.goal, sec(at95(lags)), sec(way.floor), seconds, met(at95(lags) <= way.most), way.peer})
		m.notef("P9, %s: median %s of %d; the clone had %.0f kB before and %.0f kB after.", way.what,
			seconds(sec(median(lags))), pushes, float64(before)/1e3, float64(a.clone())/1e3)
		a.end()
	}
	require.NoError(m.b, host.stop())
}

// lag pushes a change of one node at any moment, and measures until the first write.
func (p *published) lag(a *agentProcess, host *server, hook bool, node, tag string) time.Duration {
	m := p.m
	p.retag(node, tag)
	m.pause(rand.N(time.Second))
	_, err := host.traffic()
	require.NoError(m.b, err)
	pushed := p.push("Another tag for " + node)
	if hook {
		require.NoError(m.b, a.ask(http.MethodPost, "/reconcile", nil))
	}
	a.converged(p.head())
	t, err := host.traffic()
	require.NoError(m.b, err)
	require.False(m.b, t.FirstWrite.IsZero(), "nothing was written for %s\n%s", node, a.said())
	return t.FirstWrite.Sub(pushed)
}

// nothingNew is P10: a poll of a repository in which nothing changed, over https,
// beside git's own. The floor is one request for what the server tells of its
// branches, over a connection that is kept.
func (m *meter) nothingNew() {
	if !m.hasGit("P10") {
		return
	}
	const repeat = 41
	repo := sourcetest.New(m.b)
	repo.Commit(map[string]string{"site.hcl": "site \"fleet\" {\n}\n"}, "The site")
	server := repo.HTTPS()
	local, err := source.OpenRepository(source.Options{Dir: filepath.Join(m.b.TempDir(), "clone"), URL: server.URL, Auth: source.Auth{CAFile: server.CAFile}})
	require.NoError(m.b, err)
	_, err = local.Head(m.ctx)
	require.NoError(m.b, err)
	ask := m.bareAsk(server)
	var ours, peer, bare []time.Duration
	requests, theirs := 0, 0
	for range repeat {
		before := server.Requests()
		ours = append(ours, took(func() { _, err = local.Head(m.ctx) }))
		require.NoError(m.b, err)
		between := server.Requests()
		r, err := measure(m.ctx, command{
			name: "git", args: []string{"ls-remote", server.URL, "refs/heads/main"},
			env: []string{"GIT_CONFIG_NOSYSTEM=1", "HOME=" + m.dir, "GIT_SSL_CAINFO=" + server.CAFile},
		})
		require.NoError(m.b, err)
		require.Zero(m.b, r.code, r.stderr)
		peer = append(peer, r.wall)
		requests, theirs = requests+between-before, theirs+server.Requests()-between
		bare = append(bare, took(ask))
	}
	m.add(
		row{
			"P10", "no-change git check over https", "1/4 of git ls-remote", sec(median(ours)), sec(median(bare)), seconds, met(median(ours) <= median(peer)/4),
			fmt.Sprintf("git ls-remote %s here", seconds(sec(median(peer)))),
		},
		row{"", "requests for it", "1", float64(requests) / repeat, 1, perVM, met(requests == repeat), fmt.Sprintf("git ls-remote %.1f here", float64(theirs)/repeat)},
	)
	m.notef("P10: ours / git ls-remote = %.2f.", sec(median(ours))/sec(median(peer)))
}

// bareAsk gives the function that asks a server for its branches and does nothing else.
func (m *meter) bareAsk(server *sourcetest.HTTPServer) func() {
	pem, err := os.ReadFile(server.CAFile)
	require.NoError(m.b, err)
	trusted := x509.NewCertPool()
	require.True(m.b, trusted.AppendCertsFromPEM(pem))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}}
	m.b.Cleanup(client.CloseIdleConnections)
	return func() {
		req, err := http.NewRequestWithContext(m.ctx, http.MethodGet, server.URL+"/info/refs?service=git-upload-pack", http.NoBody)
		require.NoError(m.b, err)
		res, err := client.Do(req)
		require.NoError(m.b, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		require.NoError(m.b, err)
		require.Contains(m.b, string(text), "refs/heads/main")
	}
}

// took is how long a function takes.
func took(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

// following is an agent with all that it needs.
type following struct {
	guests int
	host   *server
	site   *published
	agent  *agentProcess
}

// idle is P11 and P12: what an agent costs that finds nothing to do. P11 comes from
// cycles of six seconds, after which the host has closed every connection as it has
// after sixty: the CPU of one, times 60, and that of an hour in which nothing is
// looked at. For P12 the same agent makes as many cycles as fit into some minutes.
func (m *meter) idle() {
	if !m.hasGit("P11 and P12") {
		return
	}
	small, large := m.following(100), m.following(1000)
	m.hour(small, large)
	small.end()
	m.emptyPoll(large)
	large.end()
}

func (m *meter) following(guests int) *following {
	f := fleet.Fleet{Guests: guests, Nodes: names(4), Files: 10}
	x := &following{guests: guests, host: m.host(hosting{Fleet: f})}
	x.site = m.publish(f, x.host.access)
	x.agent = m.follow(x.site, x.host, never)
	return x
}

func (x *following) end() {
	x.agent.end()
	require.NoError(x.agent.m.b, x.host.stop())
}

// hour is P11.
func (m *meter) hour(all ...*following) {
	const warm, cycles, period, silence = 3, 20, 6 * time.Second, 30 * time.Second
	began := make([]time.Duration, len(all))
	tick := time.NewTicker(period)
	defer tick.Stop()
	for n := range warm + cycles {
		for i, x := range all {
			if n == warm {
				began[i] = x.agent.used()
			}
			x.agent.looks()
		}
		<-tick.C
	}
	busy := make([]time.Duration, len(all))
	for i, x := range all {
		busy[i] = (x.agent.used() - began[i]) / cycles
		began[i] = x.agent.used()
	}
	m.pause(silence)
	for i, x := range all {
		asleep := (x.agent.used() - began[i]) * (time.Hour / silence)
		perHour := 60*busy[i] + asleep
		what, most, peer := "CPU of an idle hour, 60 s cycle, 100 guests", 3*time.Second, "228 s in a loop"
		if x.guests > 100 {
			what, most, peer = "the same, 1,000 guests", 12*time.Second, "–"
		}
		m.add(row{
			"P11", what, fmt.Sprintf("%.0f s", sec(most)),
			sec(perHour), sec(60 * m.readCPU(x.host)), seconds, met(perHour <= most), peer,
		})
		m.notef("P11, %d guests: %s CPU a cycle (of %d, one each %s), %s in an hour without any.", x.guests, seconds(sec(busy[i])), cycles, period, seconds(sec(asleep)))
	}
}

// readCPU is the CPU of the floor without that of starting a program.
func (m *meter) readCPU(host *server) time.Duration {
	var bare, nothing []run
	for range 5 {
		bare = append(bare, m.role("floor", host.access, false))
		nothing = append(nothing, m.role("nothing", nil, false))
	}
	return max(cpu(bare)-cpu(nothing), 0)
}

// emptyPoll is P12. Its floor is a program that links the same libraries and does
// nothing.
func (m *meter) emptyPoll(x *following) {
	const most, patience, early = 1000, 150 * time.Second, 10
	before := x.agent.clone()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	var first, last, own int64
	var course []int64
	cycles := 0
	for over := false; !over && cycles < most; {
		x.agent.looks()
		cycles++
		if cycles == early {
			first, _ = x.agent.rests()
		}
		if cycles%100 == 0 {
			rss, _ := x.agent.rests()
			course = append(course, rss)
		}
		select {
		case <-limit.C:
			over = true
		default:
		}
	}
	last, own = x.agent.rests()
	course = append(course, first, last)
	var nothing []run
	for range 5 {
		nothing = append(nothing, m.role("nothing", nil, true))
	}
	m.add(
		row{"P12", "memory between cycles, 1,000 guests, after 10", "40 MiB", float64(first), float64(rss(nothing)), mebibytes, met(first <= 40<<20), "comin 23 MiB (fetches only)"},
		row{"", fmt.Sprintf("the same after %d cycles", cycles), "40 MiB", float64(last), float64(rss(nothing)), mebibytes, met(last <= 40<<20), "–"},
		row{"", "its growth from then to then", "2 MiB", float64(last - first), 0, mebibytes, met(last-first <= 2<<20), "–"},
	)
	m.notef("P12: on the way between %s and %s; at the end %s of it are the agent's own, the rest pages of its binary; peak %s.",
		mebibytes(float64(slices.Min(course))), mebibytes(float64(slices.Max(course))), mebibytes(float64(own)), mebibytes(float64(memoryOf(x.agent.cmd.Process.Pid, "VmHWM"))))
	m.notef("P12: the clone had %.0f kB before these cycles and %.0f kB after; lines logged meanwhile: %d.",
		float64(before)/1e3, float64(x.agent.clone())/1e3, strings.Count(x.agent.said(), "\n"))
}

// watching is P20: what an agent costs on a node with 1,000 guests as long as nothing changes, and how soon it notices
// a change by hand, and takes it back. The watcher reads its files every second, and the repository is asked every
// minute; a full check is measured apart, since how often it is made is a setting.
func (m *meter) watching() {
	if !m.hasGit("P20") {
		return
	}
	const guests, silence, checks, changes = 1000, time.Minute, 5, 20
	f := fleet.Fleet{Guests: guests, Files: 10}
	root := m.b.TempDir()
	host := m.host(hosting{Fleet: f, Files: root})
	a := m.follow(m.publish(f, host.access), host, "1m", "HOMESTAK_PVE_ROOT="+root)
	a.looks()
	m.pause(5 * time.Second) // the connections of the check are closed, and its garbage is collected
	began := a.used()
	m.pause(silence)
	quiet := (a.used() - began) * (time.Hour / silence)
	began = a.used()
	for range checks {
		a.looks()
	}
	check := (a.used() - began) / checks

	var noticed, reverted []time.Duration
	before, err := host.traffic()
	require.NoError(m.b, err)
	for n := range changes {
		seen, back := m.changeByHand(a, host, f, 1+n*37)
		noticed, reverted = append(noticed, seen), append(reverted, back)
	}
	after, err := host.traffic()
	require.NoError(m.b, err)
	a.end()
	require.NoError(m.b, host.stop())

	m.add(
		row{"P20", "CPU of an idle hour on the node, 1,000 guests", "1 s", sec(quiet), 0, seconds, met(quiet <= time.Second), "–"},
		row{"", "the same with a full check every 5 min", "–", sec(quiet + 12*check), 0, seconds, open, "–"},
		row{"P20", "a change by hand until it is noticed, p95", "2 s", sec(at95(noticed)), 0, seconds, met(at95(noticed) <= 2*time.Second), "–"},
		row{"", "until it is taken back, p95", "3 s", sec(at95(reverted)), 0, seconds, met(at95(reverted) <= 3*time.Second), "–"},
	)
	m.notef("P20: a full check costs %s CPU; %d requests for each change by hand and its end, that of the hand and those of this measurement included.",
		seconds(sec(check)), after.minus(before).Requests/changes)
}

// changeByHand changes a guest as an administrator would, and says how long it took until the agent noticed, and
// until it was as before.
func (m *meter) changeByHand(a *agentProcess, host *server, f fleet.Fleet, n int) (noticed, reverted time.Duration) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // the simulator of this benchmark
	defer client.CloseIdleConnections()
	ask := func(method string, form url.Values) *http.Response {
		r, err := http.NewRequestWithContext(m.ctx, method, fmt.Sprintf("%s/api2/json/nodes/%s/qemu/%d/config", host.access.API, f.Node(n), f.VMID(n)), strings.NewReader(form.Encode()))
		require.NoError(m.b, err)
		r.Header.Set("Authorization", "PVEAPIToken="+host.access.Token)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		got, err := client.Do(r)
		require.NoError(m.b, err)
		require.Equal(m.b, http.StatusOK, got.StatusCode)
		return got
	}
	has := strings.Count(a.said(), "guests changed")
	require.NoError(m.b, ask(http.MethodPut, url.Values{"tags": {"homestak;mine"}}).Body.Close())
	began := time.Now()
	ctx, end := context.WithTimeout(m.ctx, time.Minute)
	defer end()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for reverted == 0 {
		if noticed == 0 && strings.Count(a.said(), "guests changed") > has {
			noticed = time.Since(began)
		}
		got := ask(http.MethodGet, nil)
		text, err := io.ReadAll(got.Body)
		require.NoError(m.b, err)
		require.NoError(m.b, got.Body.Close())
		if !strings.Contains(string(text), "homestak;mine") {
			reverted = time.Since(began)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			require.Fail(m.b, "the change is not taken back", "%s\n%s", text, a.said())
		}
	}
	m.pause(3 * time.Second) // what follows is not the agent's own change
	return noticed, reverted
}

// children is how many nodes report to one server.
const children = 10_000

// reporting measures a server with 10,000 children. First all fetch their spec and all report, as
// fast as eight connections allow: that fills the server, and gives the CPU of each. Then they come at
// the pace that 60 seconds between two reports make. Each child is a process that begins anew, so it
// makes a connection, asks whether its spec is another one, and reports. The floor is the same pace
// before a bare server.
func (m *meter) reporting() {
	s := m.specServer(children)
	defer s.end()
	pid := s.cmd.Process.Pid
	loaded := memoryOf(pid, "VmRSS")
	fetch, post, tags := make([]string, children+1), make([]string, children+1), make([]string, children+1)
	for n := 1; n <= children; n++ {
		token := s.token(n)
		fetch[n] = "GET " + wire.SpecPath.Of(s.node(n)) + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\n"
		post[n] = "POST " + wire.ReportPath.Of(s.node(n)) + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\nContent-Type: application/json\r\n"
	}
	reportOf := func(n int) string {
		body, err := json.Marshal(wire.Report{
			Version: wire.ReportVersion, Identity: s.node(n), Agent: "1.2.3", At: time.Now().UTC(), Phase: wire.PhaseRun, Ready: true, Findings: diag.List{}, Nodes: []wire.ReportNode{},
		})
		require.NoError(m.b, err)
		return post[n] + "Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + string(body)
	}
	all := func(do func(c *conn, n int) error) (cpu, wall time.Duration) {
		before, err := cpuOf(pid)
		require.NoError(m.b, err)
		began := time.Now()
		errs := make([]error, clients)
		var wait sync.WaitGroup
		for i, c := range m.dialAll(s.process, clients) {
			wait.Go(func() {
				for n := 1 + i; n <= children && errs[i] == nil; n += clients {
					errs[i] = do(c, n)
				}
				_ = c.Close()
			})
		}
		wait.Wait()
		require.NoError(m.b, errors.Join(errs...))
		after, err := cpuOf(pid)
		require.NoError(m.b, err)
		return after - before, time.Since(began)
	}
	fetchCPU, fetchWall := all(func(c *conn, n int) error {
		err := c.ask(fetch[n] + "\r\n")
		tags[n] = c.tag
		return err
	})
	reportCPU, reportWall := all(func(c *conn, n int) error { return c.ask(reportOf(n)) })
	filled := memoryOf(pid, "VmRSS")
	visit := func(addr string) func(n int) error {
		return func(n int) error {
			c, err := dial(m.ctx, addr)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			if err := c.ask(fetch[n] + "If-None-Match: " + tags[n] + "\r\n\r\n"); err != nil {
				return err
			}
			if c.status != 304 {
				return fmt.Errorf("asking again for the spec of %s: %d", s.node(n), c.status)
			}
			return c.ask(reportOf(n))
		}
	}
	took, share := m.paced(s.process, visit(s.addr))
	bare := m.stand(standing{PEM: m.selfSigned(m.ecKey()), Body: m.file("spec.json", nil)}, m.self)
	bareTook, bareShare := m.paced(bare, visit(bare.addr))
	bare.end()
	m.add(
		row{"", "10,000 children, each 60 s: share of a CPU", "–", share, bareShare, percent, open, "–"},
		row{"", "connect, ask, report: p99", "–", at99(took), at99(bareTook), micros, open, "–"},
		row{"", "memory of the server", "–", float64(memoryOf(pid, "VmRSS")), 0, mebibytes, open, "–"},
	)
	m.notef("P15, 10,000 children: a spec costs %s CPU, a report %s (over 8 connections in %s and %s for all); p50 of a visit at their pace %s.",
		micros(fetchCPU.Seconds()/children), micros(reportCPU.Seconds()/children), seconds(sec(fetchWall)), seconds(sec(reportWall)), micros(median(took).Seconds()))
	m.notef("P15, 10,000 children: memory %s once the site is loaded, %s with all reports, peak %s.",
		mebibytes(float64(loaded)), mebibytes(float64(filled)), mebibytes(float64(memoryOf(pid, "VmHWM"))))
}

// paced lets children come at the pace of all 10,000 in a minute, for half a minute, and gives how
// long each visit took, and how much of one CPU the server needed.
func (m *meter) paced(s *process, visit func(n int) error) (took []time.Duration, share float64) {
	const period, length = time.Minute, 30 * time.Second
	visits := int(length / (period / children))
	took, errs := make([]time.Duration, visits), make([]error, visits)
	before, err := cpuOf(s.cmd.Process.Pid)
	require.NoError(m.b, err)
	began := time.Now()
	tick := time.NewTicker(period / children)
	defer tick.Stop()
	var wait sync.WaitGroup
	for i := range visits {
		<-tick.C
		wait.Go(func() {
			at := time.Now()
			errs[i] = visit(1 + i)
			took[i] = time.Since(at)
		})
	}
	wait.Wait()
	wall := time.Since(began)
	after, err := cpuOf(s.cmd.Process.Pid)
	require.NoError(m.b, err)
	require.NoError(m.b, errors.Join(errs...))
	return took, (after - before).Seconds() / wall.Seconds()
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
