package notify

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const (
	head  = "0123456789abcdef0123456789abcdef01234567"
	other = "fedcba9876543210fedcba9876543210fedcba98"
)

func same(text string) string { return text }

// world is a tree that changes, and a notifier that checks it every minute.
type world struct {
	t     *testing.T
	rule  *model.Notify
	now   time.Time
	state notifierState
	wait  map[string]*pending
	wrong []incident
	blind map[string]bool
	out   *incidents // in place of the last two, if not nil
}

func newWorld(t *testing.T, rule model.Notify) *world {
	rule.After, rule.Flap = max(rule.After, 1), max(rule.Flap, 10*time.Minute)
	return &world{t: t, rule: &rule, now: noon, state: notifierState{Ended: map[string]time.Time{}}, wait: map[string]*pending{}, blind: map[string]bool{}}
}

// on adds incidents: "failed father vm.a", with a cause as a fourth word.
func (w *world) on(all ...string) {
	for _, text := range all {
		f := append(strings.Fields(text), "")
		w.wrong = append(w.wrong, incident{Condition: condition(f[0]), Host: f[1], Address: f[2], Cause: f[3], Text: "broken"})
	}
}

func (w *world) off() { w.wrong = nil }

// run lets minutes pass, with a pass in each, and returns the messages: "firing failed vm.a vm.b".
func (w *world) run(minutes int) []string {
	w.t.Helper()
	var out []string
	for range minutes {
		w.now = w.now.Add(time.Minute)
		for i := range w.wrong {
			w.wrong[i].round = w.now.String()
		}
		now := w.out
		if now == nil {
			now = &incidents{list: w.wrong, unknown: w.blind}
		}
		w.state.step(edge{rule: w.rule, fold: foldTime, pending: w.wait}, now, w.now)
		for _, m := range w.state.Queue {
			text := string(m.Kind)
			if m.Flaps {
				text += " flaps"
			}
			for i, member := range m.Members {
				if i == 0 {
					text += " " + string(member.Condition)
				}
				text += " " + member.Host + "/" + member.Address
			}
			out = append(out, text)
		}
		w.state.Queue = nil
	}
	return out
}

func TestEachIncidentFiresOnceAndResolvesOnce(t *testing.T) {
	w := newWorld(t, model.Notify{})
	require.Empty(t, w.run(3))
	w.on("failed father vm.a")
	require.Equal(t, []string{"firing failed father/vm.a"}, w.run(500))
	w.off()
	require.Equal(t, []string{"resolved failed father/vm.a"}, w.run(500))
}

// Incidents that begin together fire as one message, and resolve as one.
func TestIncidentsThatBeginTogetherAreFolded(t *testing.T) {
	w := newWorld(t, model.Notify{})
	w.on("failed father vm.b", "drift father vm.c", "failed father vm.a", "failed mother host.mother")
	require.Equal(t, []string{"firing failed father/vm.a father/vm.b mother/host.mother", "firing drift father/vm.c"}, w.run(5))
	w.off()
	w.on("failed father vm.a")
	require.Equal(t, []string{"resolved drift father/vm.c"}, w.run(5))
	w.on("failed father vm.b")
	require.Empty(t, w.run(5), "it is open")
	w.on("failed father vm.d")
	require.Equal(t, []string{"firing failed father/vm.d"}, w.run(5), "this is new")
	w.off()
	require.Len(t, w.run(5), 2)
}

// An incident that recurs after more than flap fires again, also while another one of its group lasts.
func TestAnIncidentRecursWhileAnotherLasts(t *testing.T) {
	w := newWorld(t, model.Notify{})
	w.on("failed father vm.a", "failed father vm.b")
	require.Equal(t, []string{"firing failed father/vm.a father/vm.b"}, w.run(5))
	w.off()
	w.on("failed father vm.a")
	require.Empty(t, w.run(60))
	require.Equal(t, "vm.a", w.state.lasting(w.now).Members[0].Address)
	require.Len(t, w.state.lasting(w.now).Members, 1, "only this one is announced to Alertmanager")
	w.on("failed father vm.b")
	require.Equal(t, []string{"firing failed father/vm.b"}, w.run(60))
	w.off()
	require.Equal(t, []string{"resolved failed father/vm.a", "resolved failed father/vm.b"}, w.run(5))

	// An open incident stays open when the site no longer covers it. It resolves when it ends.
	require.Empty(t, w.run(30))
	w.on("failed father vm.a")
	require.Equal(t, []string{"firing failed father/vm.a"}, w.run(30))
	w.rule.On, w.rule.Hosts = []string{"drift", "recovered"}, []string{"mother"}
	require.Empty(t, w.run(30))
	w.off()
	require.Equal(t, []string{"resolved failed father/vm.a"}, w.run(5))
}

// Hosts that refuse the same commit later cause no message.
func TestOneRefusedCommitIsOneIncident(t *testing.T) {
	w := newWorld(t, model.Notify{})
	w.on("refused father host.father abc")
	require.Equal(t, []string{"firing refused father/host.father"}, w.run(3))
	w.on("refused inner host.inner abc", "refused leaf host.leaf abc")
	require.Empty(t, w.run(3))
	w.on("refused edge host.edge def")
	require.Equal(t, []string{"firing refused edge/host.edge"}, w.run(3), "that is another commit")
	w.off()
	require.Equal(t, []string{"resolved refused father/host.father inner/host.inner leaf/host.leaf", "resolved refused edge/host.edge"}, w.run(3))
}

func TestThreshold(t *testing.T) {
	w := newWorld(t, model.Notify{After: 3})
	w.on("failed father vm.a")
	require.Empty(t, w.run(2))
	w.off()
	require.Empty(t, w.run(1), "two passes were not enough")
	w.on("failed father vm.a")
	require.Empty(t, w.run(3))
	require.Len(t, w.run(1), 1, "the third one, and the time to fold")

	// Several checks of one pass count once.
	w = newWorld(t, model.Notify{After: 2})
	w.on("failed father vm.a")
	for range 10 {
		w.now = w.now.Add(time.Minute)
		w.state.step(edge{rule: w.rule, fold: foldTime, pending: w.wait}, &incidents{list: w.wrong}, w.now)
	}
	require.Empty(t, w.state.Queue)
}

func TestReminders(t *testing.T) {
	w := newWorld(t, model.Notify{Remind: time.Hour})
	w.on("failed father vm.a", "failed father vm.b")
	require.Equal(t, []string{"firing failed father/vm.a father/vm.b"}, w.run(60))
	w.off()
	w.on("failed father vm.b")
	require.Equal(t, []string{"reminder failed father/vm.b", "reminder failed father/vm.b"}, w.run(120), "of what lasts")
}

// A flapping incident fires twice at most until it stays away.
func TestFlaps(t *testing.T) {
	w := newWorld(t, model.Notify{})
	var got []string
	for range 100 {
		w.on("failed father vm.a")
		got = append(got, w.run(3)...)
		w.off()
		got = append(got, w.run(3)...)
	}
	require.Equal(t, []string{"firing failed father/vm.a", "resolved failed father/vm.a", "firing flaps failed father/vm.a"}, got)
	require.Equal(t, []string{"resolved flaps failed father/vm.a"}, w.run(60))
	w.on("failed father vm.a")
	require.Equal(t, []string{"firing failed father/vm.a"}, w.run(10), "a day later it is new again")
}

// Incidents on a host without a report do not resolve.
func TestIncidentsOfUnknownHostsLast(t *testing.T) {
	w := newWorld(t, model.Notify{})
	w.on("failed inner vm.a")
	require.Len(t, w.run(3), 1)
	w.off()
	w.blind["inner"] = true
	require.Empty(t, w.run(60))
	delete(w.blind, "inner")
	require.Equal(t, []string{"resolved failed inner/vm.a"}, w.run(3))
}

// An agent that started has no reports of its host and of those below yet. Incidents there do not resolve.
func TestARestartResolvesNothing(t *testing.T) {
	w := newWorld(t, model.Notify{})
	host := func(name, parent, problem string) wire.ReportNode {
		return wire.ReportNode{Name: name, Type: model.PVEType, Parent: parent, Phase: wire.PhaseRun, Ready: problem == "", Error: problem}
	}
	vm := func(name, parent, problem string) wire.ReportNode {
		n := host(name, parent, problem)
		n.Type = "vm"
		return n
	}
	s := Snapshot{Mask: same, Status: agent.Status{Identity: "father", Last: &agent.PassStatus{Outcome: engine.Done}}}
	sees := func(nodes ...wire.ReportNode) []string {
		s.Tree.Nodes = nodes
		found := find(s, w.now)
		w.wrong, w.out = found.list, found
		return w.run(2)
	}
	broken := []wire.ReportNode{host("inner", "father", "it broke"), vm("a", "inner", "it broke"), host("leaf", "inner", "it broke"), vm("b", "leaf", "it broke")}
	require.Equal(t, []string{"firing failed inner/vm.a leaf/vm.b"}, sees(broken...))

	last := s.Status.Last
	s.Status.Last = nil
	require.Empty(t, sees(host("inner", "father", wire.NotReported)), "this agent started")
	s.Status.Last = last
	require.Empty(t, sees(host("inner", "father", wire.NotReported)), "and the one below did not report since")
	started := host("inner", "father", "")
	started.Ready, started.Unseen = false, true
	require.Empty(t, sees(started, host("leaf", "inner", wire.NotReported)), "the one below started")
	require.Empty(t, sees(started))
	require.Empty(t, sees(broken...))
	s.Tree.Cut = 1
	require.Empty(t, sees(host("inner", "father", "")), "a large tree had no room for the others")
	require.Equal(t, statePending, folded([]hostState{{state: stateSuccess}}, 1).state)
	s.Tree.Cut = 0
	require.Equal(t, []string{"resolved failed inner/vm.a leaf/vm.b"}, sees(host("inner", "father", ""), vm("a", "inner", "")), "a host that left the site has no incidents")
	require.Equal(t, []string{"firing failed inner/host.inner"}, sees(func() wire.ReportNode { n := started; n.Error = "no storage"; return n }()), "its first pass failed")
}

func TestConditionsAndHosts(t *testing.T) {
	w := newWorld(t, model.Notify{On: []string{"drift"}, Hosts: []string{"father"}})
	w.on("failed father vm.a", "drift father vm.b", "drift mother vm.c")
	require.Equal(t, []string{"firing drift father/vm.b"}, w.run(5))
	w.off()
	require.Empty(t, w.run(5), "recovered is not in on")
	require.Empty(t, w.state.Open)
}

// A clock that is set back or forth neither repeats nor withholds messages.
func TestClockThatJumps(t *testing.T) {
	w := newWorld(t, model.Notify{Remind: 24 * time.Hour})
	w.on("failed father vm.a")
	require.Len(t, w.run(2), 1)
	w.now = w.now.Add(-365 * 24 * time.Hour)
	require.LessOrEqual(t, len(w.run(600)), 1, "a reminder at most")
	w.on("failed father vm.b")
	require.Len(t, w.run(2), 1)
	w.off()
	require.Len(t, w.run(2), 2)
}

// seenOf is an agent on which nodes fail.
func seenOf(pass int, rules map[string]*model.Notify, failing map[string]bool) Snapshot {
	s := Snapshot{Notifiers: rules, Mask: same, Status: agent.Status{Identity: "father", Last: &agent.PassStatus{Commit: head, Outcome: engine.Partly, Ended: noon.Add(time.Duration(pass) * time.Second)}}}
	if len(failing) == 0 {
		s.Status.Last.Outcome = engine.Done
	}
	for name := range failing {
		s.Status.Nodes = append(s.Status.Nodes, engine.NodeStatus{Address: "vm." + name, Node: name, Phase: "run", Error: "it broke"})
		s.Tree.Nodes = append(s.Tree.Nodes, wire.ReportNode{Name: name, Type: "vm", Parent: "father", Phase: wire.PhaseRun, Error: "it broke"})
	}
	return s
}

// errCrash ends a process of the test.
var errCrash = errors.New("the machine stops here")

// The process dies before or after each write in turn, and between sending a message and recording it. Each incident fires and
// resolves once for a receiver that drops duplicates.
func TestCrashesNeitherLoseNorRepeatMessages(t *testing.T) {
	total := 400
	if text := os.Getenv("HOMESTAK_NOTIFY_INCIDENTS"); text != "" {
		var err error
		total, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	random := rand.New(rand.NewPCG(7, 7)) //nolint:gosec // a test repeats itself
	file := filepath.Join(t.TempDir(), "notify.json")
	writes, crashes, crashed := 0, 0, false
	replace := func(name string, content []byte) error {
		if crashed {
			return errCrash
		}
		writes++
		switch writes % 3 {
		case 1:
			crashed = true
			return errCrash
		case 2:
			crashed = true
		}
		return os.WriteFile(name, content, 0o600)
	}
	open := func() *Notifiers {
		n, err := Open(Options{File: file, Log: slog.New(slog.DiscardHandler), Replace: replace})
		require.NoError(t, err)
		crashed = false
		return n
	}
	rules := map[string]*model.Notify{"ops": {Name: "ops", Type: model.NotifyWebhook, After: 1, Flap: time.Minute}}
	n, now := open(), noon
	had, got := map[string]bool{}, map[string][]string{} // by the receiver: IDs, and the states of each incident
	failing, begun := map[string]bool{}, 0
	turn := func(pass int) {
		now = now.Add(time.Duration(10+random.IntN(20)) * time.Second)
		n.check(seenOf(pass, rules, failing), now)
		for range 3 {
			for name, m := range n.due(rules, now) {
				if !had[m.ID] {
					had[m.ID] = true
					for _, i := range m.Members {
						got[i.Address] = append(got[i.Address], string(m.Kind))
					}
				}
				if random.IntN(10) == 0 {
					crashed = true // before that is recorded
					break
				}
				n.ended(sent{name: name, id: m.ID}, same, now)
			}
		}
		if crashed {
			crashes++
			n = open()
		}
	}
	pass := 0
	for ; begun < total || len(failing) > 0; pass++ {
		for range random.IntN(8) {
			if begun < total && len(failing) < 30 {
				begun++
				failing[fmt.Sprintf("n%d", begun)] = true
			}
		}
		turn(pass)
		for name := range failing {
			if len(got["vm."+name]) > 0 && random.IntN(3) == 0 {
				delete(failing, name)
			}
		}
	}
	for range 50 {
		pass++
		turn(pass)
	}
	require.Len(t, got, total)
	for address, was := range got {
		require.Equal(t, []string{"firing", "resolved"}, was, address)
	}
	require.Empty(t, n.state.Notifiers["ops"].Queue)
	require.Greater(t, crashes, total/10)
	t.Logf("%d incidents, %d messages, %d writes, %d crashes", total, len(had), writes, crashes)
}

// The queue of a receiver that fails for long is bounded. Dropped messages are counted, as are those that are too old.
func TestBoundedQueue(t *testing.T) {
	file := filepath.Join(t.TempDir(), "notify.json")
	n, err := Open(Options{File: file, Log: slog.New(slog.DiscardHandler), Replace: func(name string, content []byte) error { return os.WriteFile(name, content, 0o600) }})
	require.NoError(t, err)
	rules := map[string]*model.Notify{"ops": {Name: "ops", Type: model.NotifyWebhook, After: 1, Flap: time.Second}}
	of := n.state.of("ops")
	for i := range mostQueued {
		of.queue(message{ID: strconv.Itoa(i), Kind: kindFiring, At: noon})
	}
	now := noon
	for i, failing := range []map[string]bool{{"a": true}, {"a": true}, nil, nil} {
		now = now.Add(foldTime)
		n.check(seenOf(i, rules, failing), now)
	}
	of = n.state.Notifiers["ops"]
	require.Len(t, of.Queue, mostQueued)
	require.Equal(t, []string{"2", "resolved"}, []string{of.Queue[0].ID, string(of.Queue[mostQueued-1].Kind)}, "the oldest are dropped")
	n.publish(rules)
	require.Equal(t, []agent.NotifyStatus{{Name: "ops", Type: "webhook", Queued: mostQueued, Dropped: 2}}, n.Status())
	n.check(seenOf(9999, rules, nil), now.Add(tooOld+time.Hour))
	require.Empty(t, n.state.Notifiers["ops"].Queue)
	require.Equal(t, mostQueued+2, n.state.Notifiers["ops"].Dropped)
	lost := n.state.Notifiers["ops"].Lost

	again, err := Open(Options{File: file, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.Equal(t, mostQueued+2, again.state.Notifiers["ops"].Dropped, "it survives a restart")
	again.check(seenOf(9999, rules, nil), lost.Add(tooOld))
	require.Zero(t, again.state.Notifiers["ops"].Dropped, "a day later it is no news")
	again.check(Snapshot{Notifiers: map[string]*model.Notify{}, Mask: same}, now)
	require.Empty(t, again.state.Notifiers, "the site has it no more")
}

// A state that cannot be read or written does not stop the agent, and no message is sent that could be repeated.
func TestStateThatCannotBeKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "notify.json")
	for _, text := range []string{"{", `{"version":2,"notifiers":{"ops":{"queue":[{"id":"x"}]}}}`, `{"version":1,"notifiers":{"ops":{},"x":7}}`} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		n, err := Open(Options{File: file, Log: slog.New(slog.DiscardHandler)})
		require.ErrorContains(t, err, file)
		require.Empty(t, n.state.Notifiers)
	}
	require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"notifiers":{"ops":null}}`), 0o600))
	n, err := Open(Options{File: file, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	n.check(seenOf(0, map[string]*model.Notify{"ops": {Type: model.NotifyWebhook, After: 1}}, nil), noon)
	full := true
	n, err = Open(Options{File: filepath.Join(t.TempDir(), "x"), Log: slog.New(slog.DiscardHandler), Replace: func(name string, content []byte) error {
		if full {
			return errors.New("no space left on device")
		}
		return os.WriteFile(name, content, 0o600)
	}})
	require.NoError(t, err)
	rules := map[string]*model.Notify{"ops": {Name: "ops", Type: model.NotifyWebhook, After: 1, Flap: time.Minute}}
	now := noon
	for i := range 5 {
		now = now.Add(foldTime)
		n.check(seenOf(i, rules, map[string]bool{"a": true}), now)
		require.Empty(t, n.due(rules, now))
	}
	n.publish(rules)
	require.Contains(t, n.Status()[0].Error, "no space left on device")
	full = false
	for i := range 2 {
		now = now.Add(foldTime)
		n.check(seenOf(10+i, rules, map[string]bool{"a": true}), now)
	}
	m := n.due(rules, now)["ops"]
	require.Equal(t, kindFiring, m.Kind)
	full = true
	n.ended(sent{name: "ops", id: m.ID}, same, now)
	require.Empty(t, n.due(rules, now), "it is not sent twice")
	n.checked = now
	require.Equal(t, checkEvery, n.next(now, false), "and there is nothing to do before the next check")
	full = false
	n.check(seenOf(20, rules, map[string]bool{"a": true}), now.Add(time.Minute))
	require.Empty(t, n.state.Notifiers["ops"].Queue)
}

// The incidents of a status and a tree.
func TestIncidentsOfATree(t *testing.T) {
	until := noon.Add(30 * time.Minute)
	later := noon.Add(48 * time.Hour)
	at := noon.Add(-time.Minute)
	s := Snapshot{
		Mask:     func(text string) string { return strings.ReplaceAll(text, "canary", "(sensitive)") },
		PageEnds: noon.Add(13 * 24 * time.Hour),
		Status: agent.Status{
			Identity: "father", Repository: agent.RepositoryStatus{Condition: agent.BranchMissing, Error: "no branch main\nmore"},
			Refused: &agent.Refusal{Commit: head, Findings: diag.List{{Severity: diag.Warning, Summary: "first"}, {Severity: diag.Error, Summary: "unknown preset \"canary\"\x1b[31m"}}},
			Last:    &agent.PassStatus{Commit: other, Outcome: engine.Partly, Ended: noon, Error: "2 steps failed"},
			At:      noon, Drifted: &agent.PassStatus{Outcome: engine.Done, Ended: noon.Add(-time.Minute), Summary: plan.Summary{Update: 2}},
			Nodes:     []engine.NodeStatus{{Address: "vm.bad", Node: "bad", Phase: "run", Error: "it broke"}},
			Suspended: []ledger.Suspension{{Manifest: "web", Until: &until, Reason: "work"}, {Until: &later, Reason: "long"}},
		},
		Tree: wire.Report{Identity: "father", At: noon, Nodes: []wire.ReportNode{
			{Name: "bad", Type: "vm", Parent: "father", Phase: wire.PhaseRun, Error: "it broke"},
			{Name: "good", Type: "vm", Parent: "father", Phase: wire.PhaseRun, Ready: true},
			{Name: "check", Type: "ct", Parent: "father", Phase: wire.PhaseRun, Ready: true, Failing: "http: refused"},
			{Name: "drifts", Type: "vm", Parent: "father", Phase: wire.PhaseRun, Drift: 1, Error: "drift: vm.drifts: cores 2 → 7 is left as it is (drift = report)"},
			{Name: "leaves", Type: "vm", Parent: "father", Phase: wire.PhaseDestroy, Error: "waits"},
			{Name: "new", Type: "pve", Parent: "father", Phase: wire.PhaseRun, Error: wire.NotReported},
			{Name: "joins", Type: "pve", Parent: "father", Phase: wire.PhaseCreate, Error: wire.WaitingSaid + "it joined from 192.0.2.7"},
			{Name: "dead", Type: "pve", Parent: "father", Phase: wire.PhaseRun, Stale: true, Error: "last reported yesterday"},
			{Name: "below", Type: "pve", Parent: "dead", Phase: wire.PhaseRun, Stale: true},
			{Name: "lost", Type: "vm", Parent: "below", Phase: wire.PhaseRun, Stale: true, Error: "it broke"},
			{Name: "inner", Type: "pve", Parent: "father", Phase: wire.PhaseRun, Error: "it broke there", Reported: at, Drifted: true},
			{Name: "leaf", Type: "vm", Parent: "inner", Phase: wire.PhaseRun, Error: "it broke there", Reported: at},
			{Name: "alone", Type: "pve", Parent: "father", Phase: wire.PhaseRun, Error: "no storage", Reported: at},
			{Name: "no", Type: "pve", Parent: "father", Phase: wire.PhaseRun, Error: "unknown preset", Refused: head, Reported: at},
		}},
	}
	f := find(s, noon)
	var got []string
	for _, i := range f.list {
		got = append(got, fmt.Sprintf("%s: %s", i.key(), i.Text))
	}
	require.Equal(t, []string{
		"failed father repository: the repository does not answer: no branch main",
		"refused father host.father: commit 01234567: unknown preset \"(sensitive)\"?[31m",
		"drift father host.father: it was changed by hand: 2 objects, reverted; homestak-gitops history shows what",
		"failed father vm.bad: it broke",
		"failed father ct.check: check http: refused",
		"drift father vm.drifts: vm.drifts: cores 2 → 7 is left as it is (drift = report)",
		"failed dead host.dead: last reported yesterday",
		"drift inner host.inner: it was changed by hand; homestak-gitops history there shows what",
		"failed inner vm.leaf: it broke there",
		"failed alone host.alone: no storage",
		"refused no host.no: commit 01234567: unknown preset",
		"expiring father manifest.web: the suspension of manifest web ends at 2026-01-02T12:30:00Z: work",
		"expiring father certificate: the certificate of the page ends on 2026-01-15",
	}, got)
	require.True(t, f.unknown["dead"] && f.unknown["below"] && f.unknown["new"] && f.unknown["joins"])
	require.False(t, f.unknown["father"] || f.unknown["inner"])

	s.Tree.Nodes = []wire.ReportNode{
		{Name: "inner", Type: "pve", Parent: "father", Phase: wire.PhaseRun, Error: "no storage", Failed: true},
		{Name: "leaves", Type: "vm", Parent: "inner", Phase: wire.PhaseDestroy, Error: "waits"},
		{Name: "waits", Type: "vm", Parent: "inner", Phase: wire.PhaseCreate},
	}
	last := find(s, noon).list
	require.True(t, slices.ContainsFunc(last, func(i incident) bool { return i.key() == "failed inner host.inner" }), "no incident of a node explains it")
	s.Tree.Nodes[2].Error = "it broke"
	last = find(s, noon).list
	require.False(t, slices.ContainsFunc(last, func(i incident) bool { return i.key() == "failed inner host.inner" }), "that of the node explains it")

	s.Status.Nodes, s.Status.Refused, s.Tree.Nodes, s.Status.Suspended, s.Status.Repository = nil, nil, nil, nil, agent.RepositoryStatus{}
	s.PageEnds, s.Status.At = time.Time{}, noon.Add(time.Hour)
	f = find(s, noon)
	require.Equal(t, "failed father host.father", f.list[0].key())
	require.Equal(t, "the pass on commit fedcba98: 2 steps failed", f.list[0].Text)
	require.True(t, f.unknown["father"], "no pass saw its nodes")
	s.Status.Last.Outcome = engine.Refused
	require.Equal(t, "refused father host.father", find(s, noon).list[0].key())
	s.Status.Last.Outcome = engine.Done
	require.Empty(t, find(s, noon).list)
	s.Status.Last = nil
	require.True(t, find(s, noon).unknown["father"], "before the first pass")
}
