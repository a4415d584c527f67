package service

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// released is a driver that counts how often it was released.
type released struct {
	engine.Driver
	times *int
}

func (r released) Release() { *r.times++ }

// Between two passes connections are kept: the driver of the host stays the same one, and
// reads the files of the present commit.
func TestAHostIsOpenedOnce(t *testing.T) {
	made, closed := 0, 0
	s := &hosts{
		commits: site.Commits{Files: func(commit string) (fs.FS, error) {
			return fstest.MapFS{"commit": {Data: []byte(commit)}}, nil
		}},
		facts: control.NewFacts("father"), log: slog.New(slog.DiscardHandler),
		make: func(engine.Desired, *model.Host) (engine.Driver, error) {
			made++
			return released{times: &closed}, nil
		},
	}
	open := func(h model.Host, commit string) {
		t.Helper()
		_, err := s.open(engine.Desired{Site: &model.Site{Name: "home"}, Commit: commit}, &h)
		require.NoError(t, err)
		got, err := fs.ReadFile(&s.tree, "commit")
		require.NoError(t, err)
		require.Equal(t, commit, string(got))
	}
	father := model.Host{Name: "father", API: "https://192.0.2.10:8006"}
	open(father, "a")
	moved := father
	moved.At = diag.Range{File: "site.hcl", Start: diag.Pos{Line: 9, Column: 1}}
	open(moved, "b")
	require.Equal(t, 1, made, "where a block is makes no difference")
	other := father
	other.API = "https://192.0.2.11:8006"
	open(other, "c")
	require.Equal(t, 2, made)
	other.APIToken = "root@pam!x=1"
	open(other, "d")
	require.Equal(t, 3, made)
	require.Equal(t, 2, closed, "those that no pass will release")
}

// A new key of ownership is in force in the next pass, without a restart; and so is the first one, which the parent gives.
func TestS1ANewKeyReopensTheHost(t *testing.T) {
	made := 0
	s := &hosts{
		commits: site.Commits{Files: func(string) (fs.FS, error) { return fstest.MapFS{}, nil }}, log: slog.New(slog.DiscardHandler),
		make: func(engine.Desired, *model.Host) (engine.Driver, error) {
			made++
			return nil, nil //nolint:nilnil // nothing is done with it
		},
	}
	secrets := func(name, value string) *model.Secrets {
		return &model.Secrets{Values: map[string]map[string]string{"auth": {name: value}}}
	}
	for i, d := range []engine.Desired{
		{AwaitsSecrets: true},
		{},
		{Site: &model.Site{Secrets: secrets(model.OwnershipKey, "")}},
		{Site: &model.Site{Secrets: secrets(model.OwnershipKey, "a")}},
		{Site: &model.Site{Secrets: secrets(model.OwnershipKeys+".father", "a")}},
	} {
		if d.Site == nil {
			d.Site = &model.Site{}
		}
		for range 2 {
			_, err := s.open(d, &model.Host{Name: "father"})
			require.NoError(t, err)
			require.Equal(t, i+1, made)
		}
	}
	_, err := s.open(engine.Desired{Site: &model.Site{Secrets: &model.Secrets{Values: map[string]map[string]string{"auth": {model.OwnershipKeys + ".father": "a", "site_token": "b"}}}}}, &model.Host{Name: "father"})
	require.NoError(t, err)
	require.Equal(t, 5, made, "other secrets make no difference")

	site := &model.Site{Secrets: secrets(model.OwnershipKeys+".father", "a"), Moved: map[model.Address]model.Address{{Kind: "vm", Name: "a"}: {Kind: "vm", Name: "b"}}}
	for i := range 2 {
		_, err := s.open(engine.Desired{Site: site}, &model.Host{Name: "father"})
		require.NoError(t, err)
		require.Equal(t, 6, made, "tags are read by the moved blocks of the commit, %d", i)
	}
}

// The agent of a child opens its host by what only its machine knows, and makes its own key once.
func TestLocalHost(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), mode))
	}
	write("agent.hcl", "identity = \"inner\"\ndata_dir = \"data\"\nparent {\n  url = \"https://192.0.2.10:44443\"\n  pins = [\"sha256:"+strings.Repeat("0a", 32)+"\"]\n  token_file = \"parent.token\"\n}\napi {\n  token_file = \"api.token\"\n  ca_file = \"ca.pem\"\n}\n", 0o644)
	write("api.token", "homestak@pve!agent=canary\n", 0o600)
	write("ca.pem", "-----BEGIN CERTIFICATE-----", 0o644)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "data"), 0o700))
	c, found := Flags{File: filepath.Join(dir, "agent.hcl")}.ReadConfig(func(string) string { return "" })
	require.Empty(t, found)
	made := 0
	start := func() *Service {
		s := &Service{o: Options{Config: c, Log: slog.New(slog.DiscardHandler), NewKey: func(comment string) (string, string, error) {
			made++
			return "private", "ssh-ed25519 AAAA " + comment, nil
		}}}
		require.NoError(t, s.openKey())
		return s
	}
	start()
	s := start()
	require.Equal(t, 1, made, "it is made at the first start")
	l, found := s.local()
	require.Empty(t, found)
	want := &model.LocalHost{Identity: "inner", APIToken: "homestak@pve!agent=canary", CAPEM: []byte("-----BEGIN CERTIFICATE-----"), Key: "private", PublicKey: "ssh-ed25519 AAAA homestak-gitops agent of inner"}
	require.Equal(t, want, l)

	load := func(l *model.LocalHost) *model.Site {
		site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte("site \"home\" {}\nhost \"father\" {\n  api = \"https://192.0.2.10:8006\"\n}\n")}}, hcl.Options{Local: l})
		require.Empty(t, found)
		m := &model.Manifest{Name: "tree", Host: "father"}
		m.Nodes = []*model.Node{{Name: "inner", Type: model.PVEType, Manifest: m}}
		site.Manifests["tree"] = m
		return site
	}
	h := load(l).HostFor("inner")
	require.Equal(t, "homestak@pve!agent=canary", h.APIToken)
	require.False(t, h.TokenMissing)
	require.Equal(t, "private", h.SSH.Key)
	require.Equal(t, want.PublicKey, h.PublicKey)
	require.True(t, load(nil).HostFor("inner").TokenMissing, "only the secrets have it")
	father := load(l).HostFor("father")
	require.True(t, father.TokenMissing)
	require.Empty(t, father.SSH.Key)

	// The agent of a host may have its token in a file, too; its key is the site's.
	l.Identity = "father"
	father = load(l).HostFor("father")
	require.Equal(t, "homestak@pve!agent=canary", father.APIToken)
	require.Empty(t, father.SSH.Key)

	// A key that is there is never replaced.
	require.NoError(t, os.Remove(filepath.Join(dir, "data", "ssh_key.pub")))
	s = &Service{o: s.o}
	require.ErrorContains(t, s.openKey(), "ssh-keygen -y -f "+filepath.Join(dir, "data", "ssh_key"))
	kept, err := os.ReadFile(filepath.Join(dir, "data", "ssh_key"))
	require.NoError(t, err)
	require.Equal(t, "private", string(kept))

	// One beside agent.hcl outlives the data folder.
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "data")))
	write("ssh_key", "beside", 0o600)
	write("ssh_key.pub", "ssh-ed25519 BBBB beside\n", 0o644)
	s = start()
	require.Equal(t, 1, made)
	l, found = s.local()
	require.Empty(t, found)
	require.Equal(t, []string{"beside", "ssh-ed25519 BBBB beside"}, []string{l.Key, l.PublicKey})

	// Others could read the token, or it is not there: an error that names the file, and no token.
	require.NoError(t, os.Chmod(filepath.Join(dir, "api.token"), 0o644))
	l, found = s.local()
	require.Empty(t, l.APIToken)
	require.Contains(t, found.Sorted()[0].String()+found[0].Detail, "api.token_file cannot be read")
	require.Contains(t, found[0].Detail, "chmod 600 "+filepath.Join(dir, "api.token"))
	require.NoError(t, os.Remove(filepath.Join(dir, "api.token")))
	_, found = s.local()
	require.True(t, found.HasErrors())
}

func TestLockDir(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"HOMESTAK_DATA_DIR": "/x", "XDG_STATE_HOME": "/y", "HOME": "/z"}, "/x"},
		{map[string]string{"XDG_STATE_HOME": "/y", "HOME": "/z"}, "/y/homestak-gitops"},
		{map[string]string{"XDG_STATE_HOME": "relative", "HOME": "/z"}, "/z/.local/state/homestak-gitops"},
		{map[string]string{"HOME": "/z"}, "/z/.local/state/homestak-gitops"},
		{nil, ""},
	} {
		got, err := LockDir(func(k string) string { return c.env[k] })
		switch {
		case os.Geteuid() == 0 && c.env["HOMESTAK_DATA_DIR"] == "":
			require.Equal(t, "/var/lib/homestak-gitops", got)
		case c.want == "":
			require.ErrorContains(t, err, "HOMESTAK_DATA_DIR")
		default:
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		}
	}
}

func TestLog(t *testing.T) {
	for _, c := range []struct {
		level, format string
		want          string
	}{
		{"info", "text", `2026-01-02 03:04:05 INFO  step ended  address=vm.a took=2s
2026-01-02 03:04:05 WARN  two words  host=father why="a\nb"
`},
		{"warn", "text", `2026-01-02 03:04:05 WARN  two words  host=father why="a\nb"
`},
		{"info", "json", `{"time":"2026-01-02T03:04:05Z","level":"INFO","msg":"step ended","address":"vm.a","took":2000000000}
{"time":"2026-01-02T03:04:05Z","level":"WARN","msg":"two words","host":"father","why":"a\nb"}
`},
	} {
		var out bytes.Buffer
		logTwo(t, NewLog(&out, "", c.level, c.format))
		require.Equal(t, c.want, out.String())
	}
}

// The journal has time and priority of its own, and knows the stream by its inode.
func TestLogInTheJournal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "journal"))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	require.NoError(t, err)
	at := info.Sys().(*syscall.Stat_t)
	stream := fmt.Sprintf("%d:%d", at.Dev, at.Ino)
	require.False(t, journals(stream, &bytes.Buffer{}))
	require.True(t, journals(stream, diag.Screen(f)), "as the command writes to it")
	require.False(t, journals("1:2", f), "inherited, but written elsewhere")
	logTwo(t, NewLog(diag.Screen(f), stream, "debug", "text"))
	logTwo(t, NewLog(f, stream, "error", "text"))
	logTwo(t, NewLog(f, stream, "info", "json"))
	text, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.Equal(t, `<6>step ended  address=vm.a took=2s
<4>two words  host=father why="a\nb"
<6>{"level":"INFO","msg":"step ended","address":"vm.a","took":2000000000}
<4>{"level":"WARN","msg":"two words","host":"father","why":"a\nb"}
`, string(text))
}

func logTwo(t *testing.T, l *slog.Logger) {
	t.Helper()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	step := slog.NewRecord(at, slog.LevelInfo, "step ended", 0)
	step.AddAttrs(slog.String("address", "vm.a"), slog.Duration("took", 2*time.Second))
	words := slog.NewRecord(at, slog.LevelWarn, "two words", 0)
	words.AddAttrs(slog.String("why", "a\nb"))
	for h, r := range map[slog.Handler]slog.Record{l.Handler(): step} {
		if h.Enabled(context.Background(), r.Level) {
			require.NoError(t, h.Handle(context.Background(), r))
		}
	}
	if h := l.With("host", "father").Handler(); h.Enabled(context.Background(), words.Level) {
		require.NoError(t, h.Handle(context.Background(), words))
	}
}

// samples are the lines of the figures without the comments.
func samples(t *testing.T, of ...specserve.Collector) string {
	t.Helper()
	text, err := specserve.NewRegistry(of...).Text()
	require.NoError(t, err)
	require.NotContains(t, string(text), "canary")
	var out []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// Metrics have the values of a status, and no text from outside.
func TestFigures(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	status := agent.Status{
		Agent: "1.2.3", Identity: "father", Started: start,
		Repository: agent.RepositoryStatus{Error: "no route to the canary"},
		Head:       &agent.CommitStatus{ID: "ccc", Subject: "canary"}, InForce: &agent.CommitStatus{ID: "bbb"}, Converged: &agent.CommitStatus{ID: "aaa"},
		Refused:   &agent.Refusal{Commit: "ccc"},
		Suspended: []ledger.Suspension{{Manifest: "web"}},
		Last: &agent.PassStatus{
			Outcome: engine.Partly, Ended: start.Add(time.Minute), Seconds: 2.25, Error: "canary",
			Findings: diag.List{{Severity: diag.Error, Summary: "canary"}, {Severity: diag.Warning}},
		},
		Nodes:  []engine.NodeStatus{{Node: "a", Ready: true}, {Node: "b", Drift: 2}, {Node: "c", Drift: 1, Error: "canary"}},
		Server: &agent.ServerStatus{}, Parent: &agent.ParentStatus{Error: "canary"}, Watch: &agent.WatchStatus{},
		Checks: []agent.CheckStatus{
			{Address: "vm.a", Check: "web", State: agent.CheckPassing},
			{Address: "vm.b", Check: "web", State: agent.CheckFailing, Error: "canary"},
			{Address: "vm.c", Check: "new", State: agent.CheckUnknown},
			{Address: "vm.c", Check: "web", State: agent.CheckPassing, Idle: "canary"},
		},
	}
	require.Equal(t, `homestak_agent_check_failing{address="vm.a",check="web"} 0
homestak_agent_check_failing{address="vm.b",check="web"} 1
homestak_agent_checks_failing 1
homestak_agent_commit_info{as="converged",commit="aaa"} 1
homestak_agent_commit_info{as="head",commit="ccc"} 1
homestak_agent_commit_info{as="in_force",commit="bbb"} 1
homestak_agent_drift_attributes 3
homestak_agent_failing{what="commit"} 1
homestak_agent_failing{what="history"} 0
homestak_agent_failing{what="parent"} 1
homestak_agent_failing{what="pass"} 1
homestak_agent_failing{what="repository"} 1
homestak_agent_failing{what="server"} 0
homestak_agent_failing{what="watch"} 0
homestak_agent_healthy 0
homestak_agent_info{identity="father",version="1.2.3"} 1
homestak_agent_last_pass_end_time_seconds 1.80000006e+09
homestak_agent_last_pass_errors 1
homestak_agent_last_pass_seconds 2.25
homestak_agent_nodes 3
homestak_agent_nodes_in_phase{phase="decommissioning"} 0
homestak_agent_nodes_in_phase{phase="operating"} 0
homestak_agent_nodes_in_phase{phase="planned"} 0
homestak_agent_nodes_in_phase{phase="provisioned"} 0
homestak_agent_nodes_in_phase{phase="registered"} 0
homestak_agent_nodes_in_phase{phase="validated"} 0
homestak_agent_nodes_not_ready 2
homestak_agent_start_time_seconds 1.8e+09
homestak_agent_suspensions 1
`, samples(t, specserve.CurrentFigures(func(add adder) { figures(add, status) })))
}

// An agent that has not done anything yet has no pass and no commit, and nothing fails.
func TestFiguresOfTheFirstMoment(t *testing.T) {
	status := agent.Status{Agent: "1.2.3", Identity: "father", Healthy: true, Started: time.Unix(1, 0)}
	require.Equal(t, `homestak_agent_checks_failing 0
homestak_agent_drift_attributes 0
homestak_agent_failing{what="commit"} 0
homestak_agent_failing{what="history"} 0
homestak_agent_failing{what="pass"} 0
homestak_agent_failing{what="repository"} 0
homestak_agent_healthy 1
homestak_agent_info{identity="father",version="1.2.3"} 1
homestak_agent_nodes 0
homestak_agent_nodes_in_phase{phase="decommissioning"} 0
homestak_agent_nodes_in_phase{phase="operating"} 0
homestak_agent_nodes_in_phase{phase="planned"} 0
homestak_agent_nodes_in_phase{phase="provisioned"} 0
homestak_agent_nodes_in_phase{phase="registered"} 0
homestak_agent_nodes_in_phase{phase="validated"} 0
homestak_agent_nodes_not_ready 0
homestak_agent_start_time_seconds 1
homestak_agent_suspensions 0
`, samples(t, specserve.CurrentFigures(func(add adder) { figures(add, status) })))
}

// A parent learns which checks of the nodes fail. They do not make a node unready, since others may wait for it.
func TestAReportHasFailingChecks(t *testing.T) {
	s := agent.Status{Identity: "inner", At: time.Unix(1, 0), Healthy: true, Nodes: []engine.NodeStatus{
		{Address: "vm.a", Node: "a", Phase: "run", Ready: true}, {Address: "vm.b", Node: "b", Phase: "run", Ready: true}, {Address: "vm.c", Node: "c", Phase: "run", Ready: true},
	}, Checks: []agent.CheckStatus{
		{Address: "vm.a", Check: "db", State: agent.CheckFailing, Error: strings.Repeat("é", 500)},
		{Address: "vm.a", Check: "web", State: agent.CheckFailing},
		{Address: "vm.b", Check: "web", State: agent.CheckFailing, Error: "exit 1"},
		{Address: "vm.c", Check: "web", State: agent.CheckPassing},
	}}
	r := report(s)
	require.True(t, r.Ready && r.Nodes[0].Ready)
	require.Regexp(t, `^db \(and 1 more\), é+…$`, r.Nodes[0].Failing)
	require.Equal(t, "web: exit 1", r.Nodes[1].Failing)
	require.Empty(t, r.Nodes[2].Failing)
	data, err := json.Marshal(r)
	require.NoError(t, err)
	read, err := wire.ReadReport(bytes.NewReader(data), "inner", s.At)
	require.NoError(t, err)
	require.Equal(t, r.Nodes[0].Failing, read.Nodes[0].Failing)
	long := bytes.Replace(data, []byte("web: exit 1"), bytes.Repeat([]byte("x"), 201), 1)
	_, err = wire.ReadReport(bytes.NewReader(long), "inner", s.At)
	require.ErrorContains(t, err, "the failing checks of node b have more than 200 bytes")

	times := 0
	publish := turned(func() { times++ })
	for range 2 {
		publish(s)
	}
	s.Checks = s.Checks[1:]
	publish(s)
	require.Equal(t, 2, times)
}

// Each pass is counted once, however often its status is published.
func TestPassesAndRequestsAreCounted(t *testing.T) {
	c := newCounts()
	publish := passes(c.passed)
	began := time.Now()
	for _, p := range []*agent.PassStatus{nil, {Outcome: engine.Done, Seconds: 0.5}, {Outcome: engine.Done, Seconds: 20}, {Outcome: engine.Failed, Seconds: 9000}} {
		if began = began.Add(time.Hour); p != nil {
			p.Ended = began
		}
		publish(agent.Status{Last: p})
		publish(agent.Status{Last: p})
	}
	c.sent("POST", 500)
	c.sent("GET", 200)
	c.sent("GET", 204)
	c.sent("GET", 596)
	c.sent("GET", 0)
	require.Equal(t, `homestak_agent_pass_seconds_bucket{le="0.1"} 0
homestak_agent_pass_seconds_bucket{le="0.5"} 1
homestak_agent_pass_seconds_bucket{le="2.5"} 1
homestak_agent_pass_seconds_bucket{le="10"} 1
homestak_agent_pass_seconds_bucket{le="60"} 2
homestak_agent_pass_seconds_bucket{le="300"} 2
homestak_agent_pass_seconds_bucket{le="1800"} 2
homestak_agent_pass_seconds_bucket{le="7200"} 2
homestak_agent_pass_seconds_bucket{le="+Inf"} 3
homestak_agent_pass_seconds_sum 9020.5
homestak_agent_pass_seconds_count 3
homestak_agent_passes_total{outcome="done"} 2
homestak_agent_passes_total{outcome="failed"} 1
homestak_agent_passes_total{outcome="interrupted"} 0
homestak_agent_passes_total{outcome="invalid"} 0
homestak_agent_passes_total{outcome="partly"} 0
homestak_agent_passes_total{outcome="planned"} 0
homestak_agent_passes_total{outcome="refused"} 0
homestak_agent_pve_requests_total{class="2xx",method="GET"} 2
homestak_agent_pve_requests_total{class="5xx",method="GET"} 1
homestak_agent_pve_requests_total{class="5xx",method="POST"} 1
homestak_agent_pve_requests_total{class="none",method="GET"} 1
`, samples(t, c.all()...))
}

// notified is an sdNotifier that runs in a bubble, with its log.
type notified struct {
	*sdNotifier
	log  bytes.Buffer // read while the notifier is idle
	stop chan struct{}
	end  func()

	mu   sync.Mutex
	said []string
	ill  time.Time
}

// stuckSince makes the agent one that does not come on.
func (g *notified) stuckSince(t time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ill = t
}

func startNotifier(watchdog time.Duration) *notified {
	g := &notified{stop: make(chan struct{})}
	g.sdNotifier = &sdNotifier{
		statuses: make(mailbox, 1), reloads: make(chan time.Time, 1), stopping: g.stop, watchdog: watchdog,
		notify: func(state string) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			line, _, _ := strings.Cut(state, "MONOTONIC_USEC=")
			g.said = append(g.said, strings.TrimSpace(line))
			return nil
		},
		stuck: func() time.Time {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.ill
		},
		log: slog.New(slog.NewTextHandler(&g.log, nil)),
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		g.run(ctx)
	}()
	g.end = func() { cancel(); <-over }
	return g
}

// heard gives what was told since the last time.
func (g *notified) heard() []string {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.said
	g.said = nil
	return out
}

// after lets time pass.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestReadyAfterTheFirstFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startNotifier(0)
		defer g.end()
		g.statuses.Put(agent.Status{State: agent.Starting, Summary: "starts"})
		require.Equal(t, []string{"STATUS=starts"}, g.heard())
		g.statuses.Put(agent.Status{State: agent.Idle, Summary: "no\nanswer", Repository: agent.RepositoryStatus{Error: "refused"}})
		require.Equal(t, []string{"READY=1", "STATUS=no answer"}, g.heard(), "a repository that is away does not keep the unit from starting")
		g.statuses.Put(agent.Status{State: agent.Idle, Summary: "no\nanswer"})
		after(time.Hour)
		require.Empty(t, g.heard(), "nothing is said twice")
		close(g.stop)
		require.Equal(t, []string{"STOPPING=1"}, g.heard())
		for range 20 {
			g := startNotifier(0)
			close(g.stop)
			g.end()
			require.Equal(t, []string{"STOPPING=1"}, g.heard(), "also where all ends at once")
		}
	})
}

func TestReadyAtLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startNotifier(0)
		defer g.end()
		after(readyPatience)
		require.Equal(t, []string{"READY=1"}, g.heard())
	})
}

func TestAReloadEndsWhenThePassBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startNotifier(0)
		defer g.end()
		now := time.Now()
		g.statuses.Put(agent.Status{State: agent.Idle, Repository: agent.RepositoryStatus{Checked: &now}})
		require.Equal(t, []string{"READY=1"}, g.heard())
		g.reloads <- time.Now()
		require.Equal(t, []string{"RELOADING=1"}, g.heard())
		g.statuses.Put(agent.Status{State: agent.Checking, Repository: agent.RepositoryStatus{Checked: &now}})
		require.Equal(t, []string{"READY=1"}, g.heard())
		after(time.Minute)
		require.Empty(t, g.heard(), "once")

		g.reloads <- time.Now()
		after(time.Millisecond)
		later := time.Now()
		g.statuses.Put(agent.Status{State: agent.Idle, Repository: agent.RepositoryStatus{Checked: &later}})
		require.Equal(t, []string{"RELOADING=1", "READY=1"}, g.heard(), "a look that was over so soon that its state was not seen")

		g.reloads <- time.Now()
		g.statuses.Put(agent.Status{State: agent.Converging})
		after(reloadPatience)
		require.Equal(t, []string{"RELOADING=1", "READY=1"}, g.heard(), "the look comes after a pass that takes its time")
	})
}

func TestTheWatchdogOfAStuckAgentIsNotFed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startNotifier(20 * time.Second)
		defer g.end()
		g.statuses.Put(agent.Status{Repository: agent.RepositoryStatus{Error: "away"}})
		require.Equal(t, []string{"READY=1"}, g.heard())
		after(41 * time.Second)
		require.Equal(t, []string{"WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"}, g.heard())
		g.stuckSince(time.Now())
		after(20 * time.Second)
		require.Empty(t, g.heard())
		require.Equal(t, 1, strings.Count(g.log.String(), "it stops feeding the watchdog"), g.log.String())
		g.stuckSince(time.Time{})
		after(10 * time.Second)
		require.Equal(t, []string{"WATCHDOG=1"}, g.heard())
	})
}

func TestMailboxHoldsTheNewest(t *testing.T) {
	m := make(mailbox, 1)
	for _, s := range []string{"a", "b", "c"} {
		m.Put(agent.Status{Summary: s})
	}
	require.Equal(t, "c", (<-m).Summary)
	require.Empty(t, m)
}

func TestNotifySocket(t *testing.T) {
	require.NoError(t, sdNotify("READY=1"), "without a service manager it goes nowhere")
	name := filepath.Join(controltest.ShortDir(t), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	t.Setenv("NOTIFY_SOCKET", name)
	require.NoError(t, sdNotify("READY=1"))
	buf := make([]byte, 100)
	n, err := conn.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "READY=1", string(buf[:n]))
}

// A pass that ended before the last one did is one on a machine whose clock was set back.
func TestMemoryIsGivenBackAlsoWhereTheClockWasSetBack(t *testing.T) {
	h := &sdNotifier{notify: func(string) error { return nil }}
	ended := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, at := range []time.Time{ended, ended.Add(-time.Hour)} {
		h.state(agent.Status{State: agent.Idle, Last: &agent.PassStatus{Ended: at}})
		require.Equal(t, at, h.last)
	}
}

// A parent destroys a machine that is empty, so whatever is on it, or may be, keeps it.
func TestIsEmpty(t *testing.T) {
	at := func(change func(*agent.Status)) agent.Status {
		commit := &agent.CommitStatus{ID: "c"}
		s := agent.Status{
			Identity: "inner", At: time.Now(), Converged: commit, InForce: commit, Parent: &agent.ParentStatus{},
			Last: &agent.PassStatus{Commit: "c", Outcome: engine.Done},
		}
		change(&s)
		return s
	}
	require.True(t, report(at(func(*agent.Status) {})).Empty)
	for name, change := range map[string]func(*agent.Status){
		"a node":               func(s *agent.Status) { s.Nodes = []engine.NodeStatus{{Node: "app", Address: "vm.app"}} },
		"unmanaged guests":     func(s *agent.Status) { s.Last.Unmanaged = 2 },
		"not all was seen":     func(s *agent.Status) { s.Last.Unknown = 1 },
		"a pass that failed":   func(s *agent.Status) { s.Last.Outcome = engine.Partly },
		"a pass under way":     func(s *agent.Status) { s.Running = &agent.Running{} },
		"no pass yet":          func(s *agent.Status) { s.Last = nil },
		"of an earlier commit": func(s *agent.Status) { s.Last.Commit = "b" },
		"a refused commit":     func(s *agent.Status) { s.Refused = &agent.Refusal{} },
	} {
		require.False(t, report(at(change)).Empty, name)
	}
	r := report(at(func(s *agent.Status) { s.Last.Unmanaged = 2 }))
	require.Equal(t, "inner is not empty: 2 guests on it are not managed", r.Findings[0].Summary)
	require.Contains(t, r.Findings[0].Detail, "Allow-Orphans: inner")
}

func TestTheAgentAllowsToDestroy(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	socket, end := f.Serve(t, "https://a:8006")
	var notes strings.Builder
	verb := Verb{Name: "destroy", Env: func(key string) string {
		return map[string]string{"HOMESTAK_SOCKET": socket, "HOMESTAK_DATA_DIR": "/nowhere"}[key]
	}, Note: func(format string, args ...any) { fmt.Fprintf(&notes, format, args...) }}
	host := &model.Host{Name: "father", API: "https://a:8006/"}
	require.NoError(t, verb.AllowDestroy(t.Context(), host, "kept-test", false), "a recipe is not deployed by it")
	require.NoError(t, verb.AllowDestroy(t.Context(), &model.Host{Name: "mother"}, "web", false), "another host")

	err := verb.AllowDestroy(t.Context(), host, "web", false)
	_, refused := errors.AsType[*control.RefusedError](err)
	require.True(t, refused)
	require.ErrorContains(t, err, "it would only create it again\nremove it in git and push, which destroys it too; or add --suspend")
	require.Empty(t, f.Status().Suspended)

	require.NoError(t, verb.AllowDestroy(t.Context(), host, "web", true))
	require.Contains(t, notes.String(), "homestak-gitops resume -M web")
	require.Len(t, f.Status().Suspended, 1)
	require.Equal(t, "web", f.Status().Suspended[0].Manifest)
	require.NoError(t, verb.AllowDestroy(t.Context(), host, "web", false), "it is suspended already")
	_, _ = f.Resume("web")
	require.NoError(t, f.Suspend(ledger.Suspension{Reason: "all of it"}))
	require.NoError(t, verb.AllowDestroy(t.Context(), host, "web", false), "everything is")
	end()
	_, _ = f.Resume("")
	require.NoError(t, verb.AllowDestroy(t.Context(), host, "web", false), "no agent runs")
}

// Pages of the program are mapped by use alone, so this test must not run beside others.
func TestProgramIsUnmappedAfterALargePass(t *testing.T) { //nolint:paralleltest // see above
	mapped := func() (kib int) {
		text, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Skip("this system does not say what is mapped")
		}
		for line := range strings.Lines(string(text)) {
			if n, _ := fmt.Sscanf(line, "RssFile: %d kB", &kib); n == 1 {
				return kib
			}
		}
		t.Skip("this system does not say what is mapped")
		return 0
	}
	program := programMappings()
	require.NotEmpty(t, program)
	memory, err := os.Open("/proc/self/mem") // a page that is read through it is mapped
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, memory.Close()) })
	n := &sdNotifier{}
	n.giveBack()
	for _, m := range program {
		for at := m.from; at < m.to; at += uintptr(os.Getpagesize()) {
			_, err := memory.ReadAt(make([]byte, 1), int64(at))
			require.NoError(t, err)
		}
	}
	var last []byte
	pass := func(allocates int) {
		for range allocates >> 10 {
			last = bytes.Repeat([]byte{1}, 1<<10)
		}
		require.Len(t, last, 1<<10)
		n.giveBack()
	}
	full := mapped()
	pass(passWorth / 2)
	require.Greater(t, mapped(), full*3/4, "the system may unmap some itself, but what a small pass used, the next one uses again")
	pass(2 * passWorth)
	require.Less(t, mapped(), full/2)
}

// When the certificate of the page ends is read from it alone, also if its file has more.
func TestThePageEndsWithItsCertificate(t *testing.T) {
	cert, _ := newCertificate(t)
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	require.NoError(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte("none")})
	text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})...)
	name := filepath.Join(t.TempDir(), "page.pem")
	require.NoError(t, os.WriteFile(name, text, 0o600))
	c := &Config{}
	require.Zero(t, c.pageEnds())
	c.Web = &model.AgentWeb{Listen: ":44480", CertificateFile: name, PrivateKeyFile: "/nowhere"}
	require.Equal(t, leaf.NotAfter, c.pageEnds())
	c.Web.CertificateFile = "/nowhere"
	require.Zero(t, c.pageEnds())
}
