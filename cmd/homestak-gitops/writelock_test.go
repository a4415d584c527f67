package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// startWith runs the program as stage.start does, with more in its environment.
func (st stage) startWith(t *testing.T, env map[string]string, args ...string) *execution {
	t.Helper()
	e := &execution{t: t, signals: make(chan os.Signal, 2), out: &stream{}, err: &stream{}, ended: make(chan int, 1)}
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
	socket, _ := controltest.Serve(t, f, "")
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
	socket, _ := controltest.Serve(t, f, "")
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
		socket, _ := controltest.Serve(t, f, api)
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
	socket, _ := controltest.Serve(t, controltest.New(), "")
	require.NoError(t, os.Chmod(socket, 0))
	code, _, stderr := runIn(t, map[string]string{"HOMESTAK_SOCKET": socket, "HOME": t.TempDir()}, "status")
	require.Equal(t, ui.ExitDenied, code)
	require.Contains(t, stderr, "may not be opened by "+control.Whoami()+"\n  run this as root")
}
