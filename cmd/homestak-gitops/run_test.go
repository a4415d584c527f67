package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
)

// stream is what the program writes while a test reads it: both sides lock.
type stream struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *stream) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// execution is the program under way in this process.
type execution struct {
	t        *testing.T
	signals  chan os.Signal
	out, err *stream
	ended    chan ui.Exit
}

// stage is where programs run: a site, and a place for locks.
type stage struct {
	site, data string
	terminal   bool
}

// start runs the program; stop it with end.
func (st stage) start(t *testing.T, args ...string) *execution {
	t.Helper()
	e := &execution{t: t, signals: make(chan os.Signal, 2), out: &stream{}, err: &stream{}, ended: make(chan ui.Exit, 1)}
	env := map[string]string{"HOMESTAK_DATA_DIR": st.data, "TERM": "xterm"}
	p := ui.Process{
		Stdin: strings.NewReader(""), Stdout: e.out, Stderr: e.err, Signals: e.signals,
		Env: func(key string) string { return env[key] }, ErrTerminal: st.terminal, Width: 60,
	}
	go func() { e.ended <- run(context.Background(), args, p) }()
	return e
}

// says waits until the program wrote a text.
func (e *execution) says(s *stream, text string) {
	e.t.Helper()
	require.Eventually(e.t, func() bool { return strings.Contains(s.String(), text) }, 5*time.Minute, time.Millisecond,
		"waiting for %q", text)
}

// end waits for the exit code.
func (e *execution) end() ui.Exit {
	e.t.Helper()
	select {
	case code := <-e.ended:
		return code
	case <-time.After(5 * time.Minute):
		require.Fail(e.t, "the program does not end", "stdout: %s\nstderr: %s", e.out, e.err)
		return -1
	}
}

// serve makes a simulated host reachable, and a site with n nodes for it.
func serve(t *testing.T, cfg pve.Config, n int) (*pve.Host, stage) {
	t.Helper()
	h := pve.New(cfg)
	api, _ := simtest.Listen(t, h)
	st := stage{site: t.TempDir(), data: t.TempDir()}
	require.NoError(t, os.WriteFile(filepath.Join(st.site, "secrets.yaml"), []byte(secretsFor("father", h.Token())), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(st.site, "site.hcl"), fmt.Appendf(nil, `
site "home" {
}
host "father" {
  api         = "%s"
  fingerprint = %q
}
image "debian" {
  url      = "https://example.org/debian.qcow2"
  checksum = "sha256:%064d"
}
manifest "web" {
  pattern = "flat"
  host    = "father"
  node "first" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
  }
  node "then" {
    type       = "vm"
    count      = %d
    cores      = 1
    memory     = 512
    image      = image.debian
    depends_on = [node.first]
  }
}
`, api, h.Fingerprint(), 0, n), 0o600))
	return h, st
}

func TestSimServesUntilItIsInterrupted(t *testing.T) {
	t.Parallel()
	e := stage{}.start(t, "sim", "--listen", "127.0.0.1:0", "--node", "mother", "--json", "--guests", "2")
	e.says(e.out, "\n")
	var at sim.Simulator
	require.NoError(t, json.Unmarshal([]byte(e.out.String()), &at))
	require.Equal(t, "mother", at.Node)

	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, // the fingerprint is the proof, as the program itself does it
		VerifyConnection: func(s tls.ConnectionState) error {
			if got := fmt.Sprintf("sha256:%x", sha256.Sum256(s.PeerCertificates[0].Raw)); got != at.Fingerprint {
				return fmt.Errorf("fingerprint is %s", got)
			}
			return nil
		},
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at.API+"/api2/json/nodes/mother/qemu", http.NoBody)
	require.NoError(t, err)
	req.Header.Set("Authorization", "PVEAPIToken="+at.Token)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)

	e.signals <- syscall.SIGTERM
	require.Equal(t, ui.ExitDone, e.end())
	require.Equal(t, 1, strings.Count(e.out.String(), "\n"), "one line and nothing else")
	require.Empty(t, e.err.String())
}

// Every key of a document is present and documented.
func keysOf(t *testing.T, doc string) []string {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(doc), &m), doc)
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

func TestCtrlCOnceFinishesWhatRuns(t *testing.T) {
	t.Parallel()
	h, st := serve(t, pve.Config{TaskTime: 300 * time.Millisecond}, 2)
	e := st.start(t, "apply", "--site", st.site, "--yes", "--json")
	e.says(e.err, "vm.first: creating")
	e.signals <- os.Interrupt
	require.Equal(t, ui.ExitInterrupted, e.end())
	require.Contains(t, e.err.String(), "stopping: nothing new is started; waiting for vm.first")
	require.Contains(t, e.err.String(), "Ctrl-C again exits now")
	require.Contains(t, e.err.String(), "vm.first: created")
	require.Contains(t, e.err.String(), "vm.then-1: skipped")
	require.NotContains(t, e.err.String(), "fix the cause", "nothing is broken")
	require.ElementsMatch(t, []string{"verb", "success", "commit", "duration_seconds", "nodes", "findings"}, keysOf(t, e.out.String()))

	guests := h.Snapshot().Guests
	require.Len(t, guests, 1)
	require.True(t, guests[0].Running, "what ran was finished")

	e = st.start(t, "apply", "--site", st.site, "--yes")
	require.Equal(t, ui.ExitDone, e.end(), e.err)
	require.Len(t, h.Snapshot().Guests, 3, "and the same again goes on")
}

func TestCtrlCTwiceLeavesNow(t *testing.T) {
	t.Parallel()
	_, st := serve(t, pve.Config{TaskTime: 24 * time.Hour}, 1)
	e := st.start(t, "apply", "--site", st.site, "--yes", "--json")
	e.says(e.err, "image.debian: creating")
	e.signals <- os.Interrupt
	e.says(e.err, "stopping:")
	e.signals <- os.Interrupt
	require.Equal(t, ui.ExitInterrupted, e.end())
	require.Contains(t, e.err.String(), "error: interrupted")
	require.NotEmpty(t, keysOf(t, e.out.String()))
}

func TestCtrlCWhileReadingEndsAtOnce(t *testing.T) {
	t.Parallel()
	_, st := serve(t, pve.Config{Latency: time.Hour}, 1)
	e := st.start(t, "plan", "--site", st.site, "--json", "-v")
	e.says(e.err, "checking host father")
	e.signals <- os.Interrupt
	require.Equal(t, ui.ExitInterrupted, e.end())
	require.Contains(t, keysOf(t, e.out.String()), "format_version")
}

func TestOneWriterAtATime(t *testing.T) {
	t.Parallel()
	_, st := serve(t, pve.Config{TaskTime: 24 * time.Hour}, 1)
	first := st.start(t, "apply", "--site", st.site, "--yes")
	first.says(first.err, "image.debian: creating")

	for _, args := range [][]string{{"apply", "--yes"}, {"destroy", "-M", "web", "--yes"}, {"test", "-M", "web"}} {
		second := st.start(t, append(args, "--site", st.site, "--json")...)
		require.Equal(t, ui.ExitRefused, second.end())
		require.Contains(t, second.err.String(), fmt.Sprintf("host father is being changed by %s: pid %d, apply, since ", control.Whoami(), os.Getpid()))
		require.Contains(t, second.out.String(), `"success": false`)
	}
	reader := st.start(t, "plan", "--site", st.site)
	require.Equal(t, ui.ExitDone, reader.end(), "who only looks is no writer")
	simulated := st.start(t, "apply", "--site", st.site, "--yes", "--sim")
	require.Equal(t, ui.ExitDone, simulated.end(), "a simulator of one's own has no other writer")

	first.signals <- os.Interrupt
	first.says(first.err, "stopping:")
	first.signals <- os.Interrupt
	require.Equal(t, ui.ExitInterrupted, first.end())
	free := st.start(t, "destroy", "--site", st.site, "-M", "web", "--yes")
	require.Equal(t, ui.ExitDone, free.end(), "the lock is free again: %s", free.err)
}

// On a terminal one live line shows what runs; nothing of it stays.
func TestTheLiveLine(t *testing.T) {
	t.Parallel()
	_, st := serve(t, pve.Config{TaskTime: 500 * time.Millisecond}, 1)
	st.terminal = true
	e := st.start(t, "apply", "--site", st.site, "--yes")
	require.Equal(t, ui.ExitDone, e.end())
	text := e.err.String()
	require.Contains(t, text, "1 running, 2 waiting · image.debian creating 0 s")
	require.NotContains(t, text, "image.debian: creating", "the line of a beginning is the live line")
	for line := range strings.SplitSeq(text, "\r\x1b[K") {
		shown, _, _ := strings.Cut(line, "\n")
		if strings.Contains(shown, " running, ") {
			require.Less(t, len([]rune(shown)), 60, "cut to the width of the terminal")
		}
	}
	last := text[strings.LastIndex(text, "\r\x1b[K"):]
	require.NotContains(t, last, "running,", "the live line is taken away at the end")
}

func TestNoSecretInAnyOutput(t *testing.T) {
	t.Parallel()
	h, st := serve(t, pve.Config{Token: "root@pam!ci=5ecre7-5ecre7"}, 1)
	for _, args := range [][]string{
		{"validate"}, {"plan"}, {"plan", "--json"}, {"plan", "--format", "markdown"}, {"apply", "--yes", "--json"}, {"test", "-M", "web", "--sim"},
	} {
		e := st.start(t, append(args, "--site", st.site, "-v")...)
		e.end()
		require.NotContains(t, e.out.String()+e.err.String(), "5ecre7", "%v", args)
	}
	require.Contains(t, h.Token(), "5ecre7")
	locks, err := filepath.Glob(filepath.Join(st.data, "locks", "*"))
	require.NoError(t, err)
	require.Len(t, locks, 1, "one lock for one host")
}

func TestArgumentsAreCounted(t *testing.T) {
	c := &cobra.Command{Use: "why ADDRESS"}
	for _, bound := range []struct {
		low, high int
		args      []string
		want      string
	}{
		{1, 1, nil, "why takes 1 argument, but none was given\nusage: why ADDRESS\nsee: why --help"},
		{1, 1, []string{"a", "b"}, "why takes 1 argument, but 2 were given"},
		{0, 1, []string{"a", "b", "c"}, "why takes at most 1 argument, but 3 were given"},
		{2, 2, []string{"a"}, "why takes 2 arguments, but 1 was given"},
	} {
		require.ErrorContains(t, ui.TakesArgs(bound.low, bound.high)(c, bound.args), bound.want)
	}
	require.NoError(t, ui.TakesArgs(0, 1)(c, nil))
}

// startWith runs the program as stage.start does, with more in its environment.
func (st stage) startWith(t *testing.T, env map[string]string, args ...string) *execution {
	t.Helper()
	e := &execution{t: t, signals: make(chan os.Signal, 2), out: &stream{}, err: &stream{}, ended: make(chan ui.Exit, 1)}
	env["HOMESTAK_DATA_DIR"] = st.data
	p := ui.Process{
		Stdin: strings.NewReader(""), Stdout: e.out, Stderr: e.err, Signals: e.signals,
		Env: func(key string) string { return env[key] },
	}
	ctx := t.Context()
	go func() { e.ended <- run(ctx, args, p) }()
	return e
}

// The command line and the agent of a host are never at work at once.
func TestApplyWaitsForTheAgent(t *testing.T) {
	t.Parallel()
	_, st := serve(t, pve.Config{TaskTime: 200 * time.Millisecond}, 1)
	f := controltest.New()
	f.Change(func(s *agent.Status) { s.Running = &agent.Running{Steps: 5, Done: 2, Seconds: 90} })
	socket, _ := f.Serve(t, "")
	env := map[string]string{"HOMESTAK_SOCKET": socket}
	<-f.Free // the agent is at work
	e := st.startWith(t, env, "apply", "--site", st.site, "--yes")
	e.says(e.err, "the agent is converging host father, 2 of 5 steps done, about 90 s left; waiting")
	require.NotContains(t, e.err.String(), "creating")
	f.Free <- struct{}{}
	e.says(e.err, "an agent converges host father: its next pass reverts whatever git does not declare")
	e.says(e.err, "image.debian: creating")
	require.Empty(t, f.Free, "the agent must not begin now")
	require.Equal(t, ui.ExitDone, e.end(), e.err)
	<-f.Free // and is free again
	f.Free <- struct{}{}
	require.Equal(t, []string{control.Whoami() + " (apply)"}, f.Holders())
}

func TestWaitingForTheAgentCanBeLeft(t *testing.T) {
	t.Parallel()
	_, st := serve(t, pve.Config{}, 1)
	f := controltest.New()
	socket, _ := f.Serve(t, "")
	<-f.Free
	e := st.startWith(t, map[string]string{"HOMESTAK_SOCKET": socket}, "apply", "--site", st.site, "--yes", "--json")
	e.says(e.err, "the agent of host father is busy; waiting")
	e.signals <- os.Interrupt
	require.Equal(t, ui.ExitInterrupted, e.end(), e.err)
}

// The agent of another host, or of another machine of the same name, is left alone.
func TestOnlyTheAgentOfTheHostIsAsked(t *testing.T) {
	t.Parallel()
	_, st := serve(t, pve.Config{}, 1)
	for _, api := range []string{"", "https://192.0.2.99:8006"} {
		f := controltest.New()
		socket, _ := f.Serve(t, api)
		e := st.startWith(t, map[string]string{"HOMESTAK_SOCKET": socket}, "apply", "--site", st.site, "--yes")
		require.Equal(t, ui.ExitDone, e.end(), e.err)
		require.Equal(t, api == "", len(f.Holders()) == 1)
	}
	for _, socket := range []string{control.NoSocket, "/nowhere/agent.sock"} {
		e := st.startWith(t, map[string]string{"HOMESTAK_SOCKET": socket}, "apply", "--site", st.site, "--yes")
		require.Equal(t, ui.ExitDone, e.end(), e.err)
	}
}

// A user who may not open the socket learns who may, and does not write while the agent runs.
func TestASocketThatMayNotBeOpened(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may open everything")
	}
	socket, _ := controltest.New().Serve(t, "")
	require.NoError(t, os.Chmod(socket, 0))
	code, _, stderr := runIn(t, map[string]string{"HOMESTAK_SOCKET": socket, "HOME": t.TempDir()}, "status")
	require.Equal(t, ui.ExitDenied, code)
	require.Contains(t, stderr, "may not be opened by "+control.Whoami()+"\n  run this as root")
}
