package main

import (
	"encoding/json"
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
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.Local)

func TestStatusTellsHealthByItsExitCode(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	socket, end := controltest.Serve(t, f, "")
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
	socket, _ := controltest.Serve(t, f, "")
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
	for outcome, want := range map[engine.Outcome]int{
		engine.Done: ui.ExitDone, engine.Planned: ui.ExitDone, engine.Invalid: ui.ExitInvalid, engine.Refused: ui.ExitRefused, engine.Partly: ui.ExitPartly, engine.Failed: ui.ExitFailed,
	} {
		f := controltest.New()
		f.Change(func(s *agent.Status) {
			s.Running = &agent.Running{Steps: 1, Now: []agent.StepNow{{Address: "vm.a", Action: plan.Create, Since: time.Now()}}}
		})
		f.Pass = agent.PassStatus{Commit: "0123456789", Outcome: outcome, Error: "why", Findings: diag.List{diag.Warnf(diag.Range{}, "look here", "")}}
		socket, _ := controltest.Serve(t, f, "")
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
	socket, _ := controltest.Serve(t, f, "")
	code, out, stderr := runIn(t, map[string]string{"HOMESTAK_SOCKET": socket}, "reconcile")
	require.Equal(t, ui.ExitInvalid, code)
	require.Contains(t, stderr, "a typo")
	require.Contains(t, out, ": no route to father\n")
	f.Pass.Error = "a typo\nand what to do"
	_, out, _ = runIn(t, map[string]string{"HOMESTAK_SOCKET": socket}, "reconcile")
	require.NotContains(t, out, "a typo", "a finding says it")

	f = controltest.New()
	socket, _ = controltest.Serve(t, f, "")
	code, out, _ = runIn(t, map[string]string{"HOMESTAK_SOCKET": socket}, "reconcile", "--no-wait")
	require.Zero(t, code)
	require.Equal(t, "the agent of host father checks now\n", out)
	require.Equal(t, 1, f.Checks())
}

func TestSuspendAndResume(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	socket, _ := controltest.Serve(t, f, "")
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
