package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.Local)

// Doctor reports at its block a notifier or output that fails for the agent of this machine.
func TestDoctorReportsNotifiersAndOutputs(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	f.Change(func(s *agent.Status) {
		s.Notify = []agent.NotifyStatus{{Name: "ops", Error: "it answered 503"}, {Name: "mail"}, {Name: "gone", Error: "no route"}}
		s.Outputs = []agent.OutputStatus{{Name: "hosts", Error: "permission denied"}, {Name: "gone", Error: "no folder"}}
	})
	socket, _ := f.Serve(t, "")
	dir := t.TempDir()
	text := "site \"home\" {}\nhost \"father\" {\n  api = \"https://127.0.0.1:1\"\n}\nnotify \"ops\" {\n  type = \"webhook\"\n  to = \"https://ops.example.org\"\n}\nnotify \"mail\" {\n  type = \"webhook\"\n  to = \"https://mail.example.org\"\n}\noutput \"hosts\" {\n  template = \"x\"\n}\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "site.hcl"), []byte(text), 0o600))
	env := map[string]string{"HOMESTAK_SOCKET": socket, "HOMESTAK_DATA_DIR": t.TempDir()}
	code, _, stderr := runIn(t, env, "doctor", "--site", dir)
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, "site.hcl:5:1: warning: notify ops is failing")
	require.Contains(t, stderr, "it answered 503. To test it: homestak-gitops notify test ops")
	require.Contains(t, stderr, "site.hcl:13:1: warning: output hosts is not written")
	require.Contains(t, stderr, "permission denied")
	require.NotContains(t, stderr, "mail")
	require.NotContains(t, stderr, "gone")
}

func TestTheExitCodeOfStatusIsTheHealth(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	socket, end := f.Serve(t, "")
	env := map[string]string{"HOMESTAK_SOCKET": socket, "HOMESTAK_DATA_DIR": t.TempDir()}
	code, out, _ := runIn(t, env, "status")
	require.Equal(t, ui.ExitDone, code)
	require.Contains(t, out, "father is as it should be")
	f.Change(func(s *agent.Status) {
		s.Healthy = false
	})
	code, out, _ = runIn(t, env, "status")
	require.Equal(t, ui.ExitDone, code, "its first pass is under way")
	require.Contains(t, out, "no pass has finished yet")
	f.Change(func(s *agent.Status) {
		s.Last = &agent.PassStatus{Outcome: engine.Failed, Error: "no route to father", Unknown: 1}
		s.Summary = "host could not be seen: no route to father"
	})
	_, out, _ = runIn(t, env, "status")
	require.Regexp(t, `last pass   failed .* ago in 0.0 s, 1 unknown\n`, out, "reported once, and nothing of what is to be done")
	code, out, _ = runIn(t, env, "status", "--json")
	require.Equal(t, ui.ExitFailed, code)
	var s agent.Status
	require.NoError(t, json.Unmarshal([]byte(out), &s))
	require.Equal(t, "father", s.Identity)
	end()
	code, out, stderr := runIn(t, env, "status", "--json")
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, "no agent is running here, and none ever ran")
	s = agent.Status{}
	require.NoError(t, json.Unmarshal([]byte(out), &s))
	require.Equal(t, control.Absent, s.State)
	require.Contains(t, s.Summary, "no agent is running here")
	for _, args := range [][]string{{"reconcile"}, {"suspend", "--reason", "x"}, {"resume"}} {
		code, _, stderr = runIn(t, env, args...)
		require.Equal(t, ui.ExitFailed, code)
		require.Contains(t, stderr, "no agent is running here (data folder "+env["HOMESTAK_DATA_DIR"]+")\n  start it: ")
		_, out, _ = runIn(t, env, append(args, "--json")...)
		var doc struct{ Error control.ProblemError }
		require.NoError(t, json.Unmarshal([]byte(out), &doc), out)
		require.Contains(t, doc.Error.Message, "no agent is running here")
		require.Contains(t, doc.Error.Hint, "start it: ")
	}
}

func TestStatusWatches(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	socket, _ := f.Serve(t, "")
	e := stage{data: t.TempDir()}.startWith(t, map[string]string{"HOMESTAK_SOCKET": socket}, "status", "-w")
	e.says(e.out, "father is as it should be")
	f.Change(func(s *agent.Status) {
		s.Summary = "something new"
	})
	e.says(e.out, "something new")
	e.signals <- syscall.SIGINT
	require.Equal(t, ui.ExitDone, e.end())
}

func TestReconcileEndsAsThePassDid(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[engine.Outcome]ui.Exit{
		engine.Done: ui.ExitDone, engine.Planned: ui.ExitDone, engine.Invalid: ui.ExitInvalid, engine.Refused: ui.ExitRefused, engine.Partly: ui.ExitPartly, engine.Failed: ui.ExitFailed,
	} {
		f := controltest.New()
		f.Change(func(s *agent.Status) {
			s.Running = &agent.Running{Steps: 1, Now: []agent.StepNow{{Address: "vm.a", Action: plan.Create, Since: time.Now()}}}
		})
		f.Pass = agent.PassStatus{Commit: "0123456789", Outcome: outcome, Error: "why", Findings: diag.List{diag.Warnf(diag.Range{}, "look here", "")}}
		socket, _ := f.Serve(t, "")
		e := stage{data: t.TempDir()}.startWith(t, map[string]string{"HOMESTAK_SOCKET": socket}, "reconcile")
		e.says(e.err, "vm.a: creating")
		close(f.Passing)
		require.Equal(t, want, e.end(), outcome)
		require.Contains(t, e.out.String(), "01234567: "+string(outcome))
		require.Contains(t, e.err.String(), "look here")
	}
	// Why the pass with the last good commit failed is reported beside why the newest is refused.
	f := controltest.New()
	close(f.Passing)
	f.Pass = agent.PassStatus{Commit: "0123456789", Outcome: engine.Failed, Error: "no route to father"}
	f.Change(func(s *agent.Status) {
		s.Refused = &agent.Refusal{Commit: "55aa55aa00", Outcome: engine.Invalid, Findings: diag.List{diag.Errorf(diag.Range{}, "a typo", "")}}
	})
	socket, _ := f.Serve(t, "")
	code, out, stderr := runIn(t, map[string]string{"HOMESTAK_SOCKET": socket}, "reconcile")
	require.Equal(t, ui.ExitInvalid, code)
	require.Contains(t, stderr, "a typo")
	require.Contains(t, out, ": no route to father\n")
	f.Pass.Error = "a typo\nand what to do"
	_, out, _ = runIn(t, map[string]string{"HOMESTAK_SOCKET": socket}, "reconcile")
	require.NotContains(t, out, "a typo", "a finding says it")

	f = controltest.New()
	socket, _ = f.Serve(t, "")
	code, out, _ = runIn(t, map[string]string{"HOMESTAK_SOCKET": socket}, "reconcile", "--no-wait")
	require.Zero(t, code)
	require.Equal(t, "the agent of host father checks now\n", out)
	require.Equal(t, 1, f.Checks())
}

func TestSuspendAndResume(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	socket, _ := f.Serve(t, "")
	env := map[string]string{"HOMESTAK_SOCKET": socket}
	code, _, stderr := runIn(t, env, "suspend")
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, "--reason TEXT")
	code, out, stderr := runIn(t, env, "suspend", "-M", "web", "--reason", "restore", "--for", "2h")
	require.Zero(t, code)
	require.True(t, strings.HasPrefix(out, "manifest web is suspended until 20"), out)
	require.Contains(t, stderr, "homestak-gitops resume -M web")
	code, _, stderr = runIn(t, env, "resume")
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, "there is nothing to resume: everything is not suspended\n  suspended: manifest web")
	code, out, _ = runIn(t, env, "resume", "-M", "web")
	require.Zero(t, code)
	require.Equal(t, "the agent continues with manifest web, and checks now\n", out)
	code, _, stderr = runIn(t, env, "suspend", "-M", "wep", "--reason", "x")
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, `did you mean "web"?`)
}

// The tree, and a check of a node, over the socket of this machine.
func TestTreeVerb(t *testing.T) {
	t.Parallel()
	socket, _ := controltest.New().Serve(t, "")
	env := map[string]string{"HOMESTAK_SOCKET": socket}
	code, out, stderr := runIn(t, env, "tree")
	require.Zero(t, code, stderr)
	require.Equal(t, "father  run  ready\n└── app  vm   run  ready\n", out)
	code, out, _ = runIn(t, env, "tree", "--json")
	require.Zero(t, code)
	var document struct{ Identity string }
	require.NoError(t, json.Unmarshal([]byte(out), &document))
	require.Equal(t, "father", document.Identity)

	code, out, stderr = runIn(t, env, "reconcile", "app")
	require.Zero(t, code, stderr)
	require.Equal(t, "app is asked to check itself\n", out)
	code, out, stderr = runIn(t, env, "reconcile", "away")
	require.Zero(t, code, stderr)
	require.Equal(t, "away does not wait at the moment: it checks itself when it asks its parent next, or when its timer says\n", out)
	code, out, _ = runIn(t, env, "reconcile", "away", "--json")
	require.Zero(t, code)
	require.JSONEq(t, `{"status": "kept"}`, out)
	code, _, stderr = runIn(t, env, "reconcile", "other")
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, `the agent serves no node "other", and none has reported one`)
}

// A node in mode push waits for no parent: the agent itself checks.
func TestN16ReconcileANodeInModePush(t *testing.T) {
	t.Parallel()
	agent := controltest.New()
	socket, _ := agent.Serve(t, "")
	code, out, stderr := runIn(t, map[string]string{"HOMESTAK_SOCKET": socket}, "reconcile", "web")
	require.Zero(t, code, stderr)
	require.Equal(t, "web has mode push: the agent applies its spec, and checks now. Without NODE, reconcile waits for the result\n", out)
	require.Equal(t, 1, agent.Checks())
}

func TestServerElsewhereNeedsPinAndKey(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"tree", "status", "events", "reconcile", "verify"} {
		code, _, stderr := runIn(t, nil, verb, "--server", "https://192.0.2.10:44443")
		require.Equal(t, ui.ExitFailed, code)
		require.Contains(t, stderr, "--server needs the pin of the server and a key")
		code, _, stderr = runIn(t, nil, verb, "--server", "http://192.0.2.10:44443", "--pin", "sha256:aa", "--key-file", "/nowhere")
		require.Equal(t, ui.ExitFailed, code)
		require.Contains(t, stderr, "is not a pin")
	}
}

// serverStage is an agent that serves nodes.
type serverStage struct {
	*agentStage
	server agent.ServerStatus
	access keys.Access
	client *http.Client
}

// newServerStage starts an agent, and waits until it serves what it converged to.
func newServerStage(t *testing.T) *serverStage {
	t.Helper()
	s := &serverStage{agentStage: newAgentStage(t, pve.Config{}, 1)}
	s.env["HOMESTAK_LISTEN"] = "127.0.0.1:0"
	s.begin(t)
	s.until(t, "father  healthy  idle")
	_, out, _ := runIn(t, s.env, "status", "--json")
	var status struct{ Server agent.ServerStatus }
	require.NoError(t, json.Unmarshal([]byte(out), &status))
	s.server = status.Server
	var err error
	s.access, err = (keys.Files{Dir: s.keys()}).ReadAccess(nil)
	require.NoError(t, err)
	pins, err := wire.ParsePins(s.server.Pins)
	require.NoError(t, err)
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: wire.PinnedTLS(pins), ForceAttemptHTTP2: true}}
	t.Cleanup(s.client.CloseIdleConnections)
	return s
}

func (s *serverStage) keys() string { return filepath.Join(s.data, daemon.Folder) }

// reply is an answer, to its end.
type reply struct {
	status int
	body   string
	err    error
}

// get sends a request, calls begun as soon as its answer begins, and reads that to its end.
func (s *serverStage) get(ctx context.Context, path, token string, begun func()) reply {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.server.Address+path, http.NoBody)
	if err != nil {
		return reply{err: err}
	}
	r.Header.Set("Authorization", "Bearer "+token)
	got, err := s.client.Do(r)
	if err != nil {
		return reply{err: err}
	}
	defer func() { _ = got.Body.Close() }()
	begun()
	text, err := io.ReadAll(got.Body)
	return reply{got.StatusCode, string(text), err}
}

// elsewhere are the flags for use from another machine.
func (s *serverStage) elsewhere(key string) []string {
	return []string{"--server", "https://" + s.server.Address, "--pin", s.server.Pins[0], "--key-file", filepath.Join(s.keys(), key)}
}

// A pass that is asked for from another machine is waited for, and its end is that of the verb, as on this one.
func TestReconcileElsewhere(t *testing.T) {
	t.Parallel()
	s := newServerStage(t)
	reconcile := func(args ...string) (ui.Exit, string, string) {
		return runIn(t, nil, append(append([]string{"reconcile"}, args...), s.elsewhere("operator.key")...)...)
	}
	site := filepath.Join(s.site, "site.hcl")
	text, err := os.ReadFile(site)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(site, []byte(strings.Replace(string(text), "count      = 1", "count      = 2", 1)), 0o600))
	s.commit(t, "one more")
	code, out, stderr := reconcile()
	require.Equal(t, ui.ExitDone, code, stderr)
	require.Len(t, s.host.Snapshot().Guests, 3, "it waited for the pass")
	require.Contains(t, out, ": 1 add\n")
	require.Contains(t, stderr, "then-2", "the steps are shown")
	code, out, _ = reconcile("--json")
	require.Equal(t, ui.ExitDone, code)
	var pass agent.PassStatus
	require.NoError(t, json.Unmarshal([]byte(out), &pass))
	require.NotEmpty(t, pass.Commit)

	verify := func(args ...string) (ui.Exit, string, string) {
		return runIn(t, nil, append([]string{"verify"}, args...)...)
	}
	code, out, stderr = verify(s.elsewhere("operator.key")...)
	require.Equal(t, ui.ExitDone, code, stderr)
	require.Contains(t, out, "no checks")
	code, _, stderr = verify(append(s.elsewhere("operator.key"), "frist")...)
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, "the agent has no node \"frist\"\n  did you mean \"first\"?")
	code, _, stderr = verify(s.elsewhere("read.key")...)
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, "this is not the operator key")
	code, _, stderr = verify(append(s.elsewhere("operator.key"), "--site", s.site)...)
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, "none of the others can be")

	require.NoError(t, os.WriteFile(site, []byte("nonsense"), 0o600))
	s.commit(t, "nonsense")
	code, _, stderr = reconcile()
	require.Equal(t, ui.ExitInvalid, code, stderr)
	require.Contains(t, stderr, "is refused: see the findings above")
	code, out, _ = reconcile("--no-wait")
	require.Equal(t, ui.ExitDone, code)
	require.Equal(t, "the server at https://"+s.server.Address+" checks now\n", out)
	code, _, stderr = runIn(t, nil, append([]string{"reconcile"}, s.elsewhere("read.key")...)...)
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, "this is not the operator key")

	s.signals <- syscall.SIGTERM
	require.Equal(t, ui.ExitDone, s.end())
}

// SIGTERM ends an agent that serves within two seconds, with any clients: waiting requests get a response, streams end,
// and silent clients do not delay it. Times are measured by the benchmarks; this one is printed.
func TestTheAgentEndsBesideItsClients(t *testing.T) {
	t.Parallel()
	s := newServerStage(t)
	minted, err := keys.Folder(s.keys()).Mint("first", "base", time.Hour, time.Now())
	require.NoError(t, err)
	var renewed struct {
		Token string `json:"token"`
	}
	got := s.get(t.Context(), "/spec/first", minted.Token, func() {}) // a node that still has its minted token does not wait
	require.NoError(t, json.Unmarshal([]byte(got.body), &renewed), "%+v", got)
	waits, streams, begun := make(chan reply, 2), make(chan reply, 2), make(chan struct{}, 2)
	for range 2 {
		go func() { waits <- s.get(t.Context(), "/wait/first", renewed.Token, func() {}) }()
		go func() {
			streams <- s.get(t.Context(), "/events?follow=true", string(s.access.Read), func() { begun <- struct{}{} })
		}()
	}
	<-begun
	<-begun
	plain, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.server.Address)
	require.NoError(t, err)
	defer func() { _ = plain.Close() }()
	silent := tls.Client(plain, &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, silent.HandshakeContext(t.Context()))
	socket, err := (&net.Dialer{}).DialContext(t.Context(), "unix", filepath.Join(s.data, "agent.sock"))
	require.NoError(t, err)
	defer func() { _ = socket.Close() }()
	require.Eventually(t, func() bool {
		got := s.get(t.Context(), "/metrics", string(s.access.Read), func() {})
		return strings.Contains(got.body, "homestak_nodes_waiting 2\n")
	}, 5*time.Minute, 5*time.Millisecond)

	began := time.Now()
	s.signals <- syscall.SIGTERM
	require.Equal(t, ui.ExitDone, s.end())
	t.Logf("it ended after %v", time.Since(began).Round(time.Millisecond))
	for range 2 {
		require.Equal(t, reply{status: http.StatusNoContent}, <-waits, "nothing to do: ask again")
		stream := <-streams
		require.Equal(t, http.StatusOK, stream.status)
		require.NoError(t, stream.err, "the stream ended as it should")
		require.Contains(t, stream.body, "event: node-ready\n")
	}
	require.NotContains(t, s.err.String(), "does not answer any more")
}
