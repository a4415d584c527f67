package view

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.Local)

func before(d time.Duration) time.Time { return noon.Add(-d) }

// busyStatus is of an agent that converges a good commit and refused the newest.
func busyStatus() agent.Status {
	place := diag.Range{File: "manifests/web.hcl", Start: diag.Pos{Line: 3, Column: 5}, End: diag.Pos{Line: 3, Column: 8}}
	f := diag.Errorf(place, "unknown preset \"smal\"", "did you mean \"small\"?")
	f.Code = "    preset = preset.smal"
	return agent.Status{
		Version: 1, Agent: "v0.3.0", Identity: "father", PID: 4711, Started: before(26 * time.Hour), At: noon, State: agent.Converging,
		Summary: "converges 3f2c1a9d; 55aa55aa is not valid",
		Repository: agent.RepositoryStatus{
			URL: "https://git.example/site.git", Branch: "main", Path: "home", Checked: new(before(5 * time.Second)),
		},
		Head:      &agent.CommitStatus{ID: "55aa55aa00", Subject: "Web 3", Author: "B. Hasty", Since: before(5 * time.Second)},
		InForce:   &agent.CommitStatus{ID: "3f2c1a9d00", Subject: "Web 2", Author: "A. Homelab", Since: before(time.Minute)},
		Converged: &agent.CommitStatus{ID: "11223344", Subject: "Begin", Author: "A. Homelab", Since: before(72 * time.Hour)},
		Refused:   &agent.Refusal{Commit: "55aa55aa00", Outcome: engine.Invalid, Since: before(5 * time.Second), Findings: diag.List{f}},
		Running: &agent.Running{
			Commit: "3f2c1a9d00", Since: before(42 * time.Second), Steps: 9, Done: 1, Seconds: 130,
			Now:  []agent.StepNow{{Address: "vm.web-2", Action: plan.Create, Since: before(12 * time.Second), Usually: 20}, {Address: "pool.p", Action: plan.Update, Since: before(time.Second)}},
			Next: []string{"vm.a", "vm.b", "vm.c", "vm.d", "vm.e", "vm.f", "vm.g"},
		},
		Last: &agent.PassStatus{
			Commit: "11223344", Outcome: engine.Partly, Ended: before(6 * time.Minute), Seconds: 3.25, Error: "create vm.x: 500", Drift: true,
			Summary: plan.Summary{Create: 2, Delete: 1, Unmanaged: 1}, Unknown: 2, Pending: 1,
			Findings: diag.List{{Severity: diag.Error, Source: diag.FromSite, Summary: "an error"}},
		},
		Suspended: []ledger.Suspension{{Manifest: "db", Reason: "restore", By: "me@here", Since: before(time.Hour), Until: new(noon.Add(90 * time.Minute))}},
		NextCheck: new(noon.Add(48 * time.Second)),
		Nodes: []engine.NodeStatus{
			{Address: "vm.web-1", Node: "web-1", VMID: 10001, PVENode: "pve1", Ready: true, Since: before(50 * time.Hour)},
			{Address: "vm.web-2", Node: "web-2", Phase: "create", Since: before(time.Minute)},
			{Address: "vm.db", Node: "db", VMID: 10003, PVENode: "pve1", Phase: "run", Drift: 2, Error: "locked by backup\x1b[2J"},
		},
	}
}

func TestStatusText(t *testing.T) {
	t.Parallel()
	require.Equal(t, `father  not healthy  converging  pid 4711, up 26 h 0 min, v0.3.0
  converges 3f2c1a9d; 55aa55aa is not valid

  repository  https://git.example/site.git  main  home/
              answered 5.0 s ago, next check in 48 s
  head        55aa55aa “Web 3” (B. Hasty), 5.0 s ago
  in force    3f2c1a9d “Web 2” (A. Homelab), 60 s ago
  converged   11223344 “Begin” (A. Homelab), 3 days ago
  refused     55aa55aa is invalid since 2026-01-02 11:59:55
    manifests/web.hcl:3:5: error: unknown preset "smal"
      3 |     preset = preset.smal
        |     ^^^
      did you mean "small"?
  running     pass on 3f2c1a9d for 42 s, 1 of 9 steps done, about 2 min left
    now   vm.web-2 creating for 12 s (usually 20 s)
    now   pool.p changing for 1.0 s
    next  vm.a
    next  vm.b
    next  vm.c
    next  vm.d
    next  vm.e
    next  and 2 more
  last pass   partly 6 min ago in 3.2 s: 2 add, 1 destroy, 1 unmanaged, reverted changes on the host, 2 unknown, 1 pending: create vm.x: 500
  suspended   manifest db by me@here, 60 min ago, ends in 90 min: restore

  NODE      VMID   ON    SINCE   STATE
  vm.web-1  10001  pve1  2 days  ready
  vm.web-2         -     60 s    to be created
  vm.db     10003  pve1          2 differences: locked by backup?[2J
`, Paint(false).Status(busyStatus(), noon))

	s := agent.Status{
		Identity: "father", Healthy: true, State: agent.Idle, PID: 1, Started: noon, Agent: "v1",
		Repository: agent.RepositoryStatus{URL: "/srv/site.git", Branch: "main", Error: "no such repository", Failing: new(before(time.Hour))},
	}
	for _, c := range []**agent.CommitStatus{&s.Head, &s.InForce, &s.Converged} {
		*c = &agent.CommitStatus{ID: "11223344", Since: before(time.Minute)}
	}
	require.Equal(t, `father  healthy  idle  pid 1, up 0.0 s, v1

  repository  /srv/site.git  main
              does not answer for 60 min: no such repository
  commit      11223344, 60 s ago
`, Paint(false).Status(s, noon))
	require.Contains(t, Paint(true).Status(s, noon), "\x1b[32mhealthy\x1b[0m")
}

func TestStatusShowsFailingChecks(t *testing.T) {
	s := agent.Status{Identity: "father", State: agent.Idle}
	for i := range 7 {
		s.Checks = append(s.Checks, agent.CheckStatus{Address: fmt.Sprintf("vm.web-%d", i), Check: "web", State: agent.CheckFailing, Since: before(time.Minute), Error: "no\x1broute"})
	}
	s.Checks[1].Idle = "manifest web is suspended"
	s.Checks = append(s.Checks, agent.CheckStatus{Address: "vm.db", Check: "up", State: agent.CheckPassing})
	text := Paint(false).Status(s, noon)
	require.Contains(t, text, `
  failing     check web of vm.web-0 for 60 s: no?route
              check web of vm.web-1 for 60 s: no?route (not run now: manifest web is suspended)
`)
	require.Contains(t, text, "  and 2 more: homestak-gitops status --json\n")
	require.NotContains(t, text, "vm.db")
}

// What the state of a node says is not said again, neither by status nor by why.
func TestAnExplanationIsShownOnce(t *testing.T) {
	n := engine.NodeStatus{Address: "vm.web", Phase: "run", Error: "check web failed: no route; vm.web: the host does not answer; it is made from an old image"}
	check := agent.CheckStatus{Address: "vm.web", Check: "web", State: agent.CheckFailing, Since: before(time.Minute), Error: "no route"}
	said := diag.Finding{Severity: diag.Warning, Source: diag.FromHost, Address: "vm.web", Summary: "it is made from an old image"}
	other := check
	other.Address = "vm.db"
	s := agent.Status{Identity: "father", State: agent.Idle, Nodes: []engine.NodeStatus{n}, Checks: []agent.CheckStatus{check, other}, Last: &agent.PassStatus{Findings: diag.List{said}}}
	text := Paint(false).Status(s, noon)
	require.Contains(t, text, "failing     check web of vm.web for 60 s\n              check web of vm.db for 60 s: no route\n")
	require.Equal(t, 1, strings.Count(text, said.Summary), text)

	check.Idle = "it is off"
	why := Why(control.Reasons{
		Address: "vm.web", Running: true, Known: true, Node: &n, Checks: []agent.CheckStatus{check},
		Unknown: []model.Unknown{{Scope: "vm.web", Why: "the host does not answer"}, {Scope: "vm.db", Why: "no answer"}},
	})
	require.Equal(t, fmt.Sprintf("vm.web\n  is         not ready: %s\n  check      web failing since %s (not run now: it is off)\n  unknown    vm.db: no answer\n", n.Error, When(check.Since)), why)
}

// A pass of a suspended agent reverts nothing, and says so.
func TestN3ASuspendedPassRevertsNothing(t *testing.T) {
	now := time.Now()
	l := agent.PassStatus{Outcome: engine.Planned, Ended: now.Add(-time.Minute), Drift: true, Summary: plan.Summary{Update: 1}}
	require.Contains(t, passLine(l, now), "the host was changed; nothing is reverted")
	require.NotContains(t, passLine(l, now), "reverted changes")
	l.Outcome = engine.Done
	require.Contains(t, passLine(l, now), "reverted changes on the host")
}

// Status shows what the last pass reported of guests that are as the files say, such as the image that they were made from.
func TestN14StatusShowsWarnings(t *testing.T) {
	s := busyStatus()
	for i := range 7 {
		s.Last.Findings = append(s.Last.Findings, diag.Finding{Severity: diag.Warning, Source: diag.FromHost, Summary: fmt.Sprintf("vm.web-%d was made\nfrom an earlier image", i)})
	}
	require.Contains(t, Paint(false).Status(s, noon), `: create vm.x: 500
  warnings    vm.web-0 was made from an earlier image
              vm.web-1 was made from an earlier image
              vm.web-2 was made from an earlier image
              vm.web-3 was made from an earlier image
              vm.web-4 was made from an earlier image
              and 2 more: homestak-gitops status --json
  suspended`)
}

// A step that waits for a check says for which, and what that saw.
func TestTheLiveLineShowsChecks(t *testing.T) {
	p := &Progress{term: Terminal{Live: true}, running: []running{
		{step: plan.Step{Address: model.Address{Kind: "vm", Name: "web-1"}, Action: plan.Create}, since: time.Now()},
	}}
	p.wait(health.Progress{
		Address: model.Address{Kind: "vm", Name: "web-1"}, Check: "web", Saw: "192.0.2.7:80: connection refused",
		Waited: 12 * time.Second, Timeout: 5 * time.Minute,
	})
	require.Equal(t, "1 running, 0 waiting · waiting for check web of vm.web-1: 192.0.2.7:80: connection refused (12 s of 5m)", p.live(time.Now()))
}

// The live line says how long steps usually take as soon as one of the kind is done.
func TestTheLiveLineLearns(t *testing.T) {
	now := time.Unix(1000, 0)
	step := func(kind, name string, a plan.Action) plan.Step {
		return plan.Step{Address: model.Address{Kind: kind, Name: name}, Action: a}
	}
	p := &Progress{took: map[work]workTime{}, left: 4, running: []running{
		{step: step("vm", "a", plan.Create), since: now.Add(-3 * time.Second)},
		{step: step("vm", "b", plan.Delete), since: now.Add(-time.Second)},
	}}
	require.Equal(t, "2 running, 4 waiting · vm.a creating 3 s · vm.b destroying 1 s", p.live(now))
	for _, took := range []time.Duration{4 * time.Second, 8 * time.Second} {
		p.learn(apply.Event{Step: step("vm", "c", plan.Create), Result: apply.Result{Duration: took}})
	}
	p.learn(apply.Event{Step: step("image", "d", plan.Delete), Result: apply.Result{Duration: time.Hour}})
	require.Equal(t, "2 running, 4 waiting · vm.a creating 3 s (usually 6 s) · vm.b destroying 1 s", p.live(now))
}

// Before the steps it says what is waited for, once that takes long.
func TestTheLiveLineShowsALongRead(t *testing.T) {
	now := time.Unix(1000, 0)
	p := &Progress{phase: Observing("father"), since: now.Add(-900 * time.Millisecond)}
	require.Empty(t, p.live(now))
	require.Equal(t, "checking host father, 2 s", p.live(now.Add(1500*time.Millisecond)))
	p.term.Verbose = true
	require.Empty(t, p.live(now.Add(1500*time.Millisecond)), "other lines tell it")
}

// An error of several lines breaks no table and no line.
func TestN8AnErrorOfSeveralLines(t *testing.T) {
	const long = "Job failed.\n  See \"systemctl status\"\n\tfor details."
	const short = `Job failed. See "systemctl status" for details.`
	s := agent.Status{Nodes: []engine.NodeStatus{{Address: "pve.a", Phase: "run", Drift: 1, Error: long}, {Address: "pve.b", Phase: "run", Ready: true}}}
	text := Paint(false).Status(s, noon)
	require.Contains(t, text, "difference: "+short+"\n  pve.b ")

	step := ledger.Step{Address: "agent.a", Action: "update", Status: "failed", Error: long, Seconds: 2}
	require.Equal(t, "agent.a: failed after 2.0 s: "+short, StepEnd(step))

	why := Why(control.Reasons{Address: "pve.a", Running: true, Known: true, Node: &s.Nodes[0], Receipts: []ledger.Receipt{{By: "father", Steps: []ledger.Step{step}}}})
	require.Contains(t, why, "1 difference: "+short+"\n")
	require.Contains(t, why, "error: "+short+"\n")
}

// Passes that failed in the same way are one line of the history, with their number.
func TestN8HistoryCountsPasses(t *testing.T) {
	first := before(14 * time.Minute)
	r := ledger.Receipt{Began: noon, Commit: "c0ffee00", By: "father", Verb: "agent", Outcome: "failed", Passes: 31, First: &first, Steps: []ledger.Step{{Address: "agent.a", Action: "update", Status: "failed"}}}
	text := Paint(false).History([]ledger.Receipt{r}, "")
	require.Contains(t, text, "1 change (the last of 31 such passes since "+When(first)+")")
	require.Equal(t, 2, strings.Count(text, "\n"))
	require.Contains(t, Why(control.Reasons{Address: "agent.a", Receipts: []ledger.Receipt{r}}), "update failed in 0.0 s, 31 times since "+When(first))
}

// Notifiers have a line only where one fails, or dropped messages.
func TestNotifiersOfAStatus(t *testing.T) {
	s := agent.Status{At: noon, Notify: []agent.NotifyStatus{
		{Name: "good", Open: 1},
		{Name: "away", Error: "it answered 503\x1b[31m\nmore", Failing: new(before(5 * time.Minute)), Queued: 3},
		{Name: "back", Dropped: 1},
	}}
	var lines []string
	for _, r := range StatusRows(s, noon) {
		if r.Label == "notify" {
			lines = append(lines, fmt.Sprintf("%s %s", r.Tone, r.Text))
		}
	}
	require.Equal(t, []string{
		fmt.Sprintf("%s away  failing for 5 min: it answered 503?[31m more; 3 messages waiting", bad),
		fmt.Sprintf("%s back  recovered; 1 message dropped", good),
	}, lines)
}
