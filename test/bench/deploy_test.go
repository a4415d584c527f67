package bench_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

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
	cmd := exec.CommandContext(p.m.ctx, "git", args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+p.dir, "GIT_TERMINAL_PROMPT=0", "GIT_SSL_CAINFO="+p.server.CAFile,
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.org", "GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.org")
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
// request that changes the host. Who pushes tells the agent, as a hook does, or it
// finds out by itself. The floor is the reads that must come first; for polling,
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

// nothingNew is P10: a look at a repository in which nothing changed, over https,
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
