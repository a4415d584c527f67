package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

// town is a host whose guests are reached over a network.
type town struct {
	*enginetest.Inn
	eye *eye

	mu    sync.Mutex
	down  map[string]bool          // addresses that refuse connections
	hangs map[string]chan struct{} // that answer once it is closed
	dials int
	most  int // at the same time
	now   int
}

func (t *town) Observe(ctx context.Context, w *model.Want) (model.Observed, error) {
	return t.eye.Observe(ctx, w)
}

func (t *town) dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(address)
	t.mu.Lock()
	t.dials++
	t.now++
	t.most = max(t.most, t.now)
	down, gate := t.down[host], t.hangs[host]
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.now--
	}()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if down {
		return nil, errors.New("connection\x1b refused")
	}
	here, there := net.Pipe()
	_ = there.Close()
	return here, nil
}

// set makes a box refuse connections, or accept them.
func (t *town) set(name string, down bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.down[enginetest.IPOf(name)] = down
}

// dialled is the number of connections.
func (t *town) dialled() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dials
}

// inTown lets an agent live on such a host.
func inTown(t *testing.T, story func(w *world, at *town)) {
	live(t, func(w *world) {
		inn := enginetest.NewInn()
		inn.Host = w.host.Host
		at := &town{Inn: inn, eye: w.host, down: map[string]bool{}, hangs: map[string]chan struct{}{}}
		w.options = func(o *Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return at, nil }
			o.Health.Dial = at.dial
		}
		story(w, at)
	})
}

// tcp is a commit with boxes that each have a check over the network.
func tcp(every string, sizes map[string]int) engine.Desired {
	d := boxes(sizes)
	for _, n := range d.Site.Manifests["web"].Nodes {
		n.Checks = []model.Check{{Name: "web", TCP: "80", Every: every}}
	}
	return d
}

// states says how checks are.
func states(s Status) string {
	out := make([]string, len(s.Checks))
	for i, c := range s.Checks {
		out[i] = fmt.Sprintf("%s:%s", strings.TrimPrefix(c.Address, "box."), c.State)
		if c.Idle != "" {
			out[i] += " (" + c.Idle + ")"
		}
	}
	return strings.Join(out, ", ")
}

func TestTwoRunsTurnACheck(t *testing.T) {
	for runs, want := range map[string]string{
		"+":      "P",
		"-":      "U",
		"--":     "UF",
		"-+":     "UP",
		"-+-":    "UPP",
		"+-+-+-": "PPPPPP",
		"+--":    "PPF",
		"+--+":   "PPFF",
		"+--+-+": "PPFFFF",
		"+--++":  "PPFFP",
		"--++":   "UFFP",
		"+--++-": "PPFFPP",
	} {
		e := &checkEntry{status: CheckStatus{State: CheckUnknown}}
		got, began := "", time.Unix(1000, 0)
		for i, run := range runs {
			before := e.status.State
			turned := e.take(health.Result{OK: run == '+', Detail: "saw\nit"}, began.Add(time.Duration(i)*time.Minute))
			quietly := before == CheckUnknown && run == '+'
			require.Equal(t, before != e.status.State && !quietly, turned, "%s at %d", runs, i)
			got += strings.ToUpper(string(e.status.State[:1]))
			if run == '+' {
				require.Empty(t, e.status.Error)
			} else {
				require.Equal(t, "saw it", e.status.Error)
			}
		}
		require.Equal(t, want, got, runs)
	}
	e := &checkEntry{status: CheckStatus{State: CheckPassing}}
	for i := range 2 {
		e.take(health.Result{Detail: strings.Repeat("é", 1000)}, time.Unix(int64(60*i), 0))
	}
	require.Equal(t, time.Unix(0, 0).UTC(), e.status.Since, "of the first run with this result")
	require.LessOrEqual(t, len(e.status.Error), mostCheck+len("…"))
}

func TestChecksAreRunBetweenPasses(t *testing.T) {
	inTown(t, func(w *world, at *town) {
		w.repo.push("c1", tcp("", map[string]int{"a": 1, "b": 1}))
		w.start()
		s := w.pass(2 * time.Minute)
		require.Equal(t, "a:passing, b:passing", states(s))
		looks, passes := w.looks(), s.Last.Ended

		at.set("a", true)
		s = w.pass(62 * time.Second)
		require.Equal(t, "a:passing, b:passing", states(s), "once is an accident")
		s = w.pass(time.Minute)
		require.Equal(t, "a:failing, b:passing", states(s))
		require.True(t, s.Healthy, "the agent did its work")
		require.Equal(t, "in sync at c1; check web of box.a fails", s.Summary)
		require.Equal(t, enginetest.IPOf("a")+":80: connection? refused", s.Checks[0].Error)
		require.True(t, s.Nodes[0].Ready, "it is as the commit says")
		require.Equal(t, passes, s.Last.Ended, "it started no pass")
		require.Equal(t, looks, w.looks())
		require.Len(t, w.state().FailingChecks, 1)

		at.set("a", false)
		s = w.pass(2*time.Minute + 2*time.Second)
		require.Equal(t, "a:passing, b:passing", states(s))
		require.Empty(t, w.state().FailingChecks)
		require.Equal(t, 1, strings.Count(w.log.String(), "check fails"))
		require.Equal(t, 1, strings.Count(w.log.String(), "check passes again"))
		require.Len(t, w.receipts(), 1, "of the pass that made them")
	})
}

// Addresses that the files declare are not asked for.
func TestAnIdleHourAsksNothingOfTheHost(t *testing.T) {
	inTown(t, func(w *world, at *town) {
		sizes := map[string]int{}
		for i := range 100 {
			sizes[fmt.Sprintf("g%d", i)] = 1
		}
		w.repo.push("c1", tcp("", sizes))
		w.start()
		w.pass(time.Minute)
		asked := func() (n int) {
			for name := range sizes {
				n += at.Times(name) + at.Times("address of "+name)
			}
			return n
		}
		before, known := at.dialled(), asked()
		looks := w.looks()
		w.pass(time.Hour)
		require.InDelta(t, 6000, at.dialled()-before, 100)
		require.Equal(t, known, asked(), "the pass that made them checked them")
		require.InDelta(t, 12, w.looks()-looks, 1, "as without checks")
		require.LessOrEqual(t, at.most, checksAtOnce)
	})
}

func TestChecksThatAreOffRunWhenAsked(t *testing.T) {
	inTown(t, func(w *world, at *town) {
		w.repo.push("c1", tcp("off", map[string]int{"a": 1, "b": 1}))
		w.start()
		before := at.dialled()
		require.Equal(t, "a:unknown, b:unknown", states(w.pass(time.Hour)))
		after := at.dialled()
		require.Equal(t, before, after)

		at.set("b", true)
		v, err := w.agent.VerifyNodes(w.t.Context(), "ann", func(*engine.Probe) bool { return true })
		require.NoError(t, err)
		rows := v.Checks
		require.Len(t, rows, 2)
		require.Equal(t, []engine.RunEnd{engine.RunPassed, engine.RunFailed}, []engine.RunEnd{rows[0].Status, rows[1].Status})
		require.Equal(t, enginetest.IPOf("b")+":80: connection? refused", rows[1].Detail)
		v, err = w.agent.VerifyNodes(w.t.Context(), "ann", func(p *engine.Probe) bool { return p.Node == "none" })
		require.NoError(t, err)
		require.Empty(t, v.Checks)

		_, err = w.agent.VerifyNodes(w.t.Context(), "ann", func(*engine.Probe) bool { return true })
		require.NoError(t, err)
		list := w.receipts()
		require.Len(t, list, 2, "equal ones in a row share one")
		require.Equal(t, "verify ann father c1 failed 2", fmt.Sprintf("%s %s %s %s %s %d", list[0].Verb, list[0].By, list[0].Host, list[0].Commit, list[0].Outcome, list[0].Passes))
		require.Equal(t, "box.a verify check web passed ", fmt.Sprintf("%s %s %s %s %s", list[0].Steps[0].Address, list[0].Steps[0].Action, list[0].Steps[0].Reason, list[0].Steps[0].Status, list[0].Steps[0].Error))
		require.Contains(t, list[0].Steps[1].Error, "connection? refused")
	})
}

// All checks fail at once: a log with a few lines, and one change of the state on disk.
func TestAStormOfChecks(t *testing.T) {
	inTown(t, func(w *world, at *town) {
		sizes := map[string]int{}
		for i := range 300 {
			sizes[fmt.Sprintf("g%d", i)] = 1
		}
		w.repo.push("c1", tcp("10s", sizes))
		w.start()
		require.Empty(t, w.pass(time.Minute).FailingChecks())
		for name := range sizes {
			at.set(name, true)
		}
		s := w.pass(time.Minute)
		require.Len(t, s.FailingChecks(), 300)
		require.Contains(t, s.Summary, "300 checks fail")
		require.Len(t, w.state().FailingChecks, 300)
		require.LessOrEqual(t, strings.Count(w.log.String(), "check fails"), 300)
		for name := range sizes {
			at.set(name, false)
		}
		require.Empty(t, w.pass(time.Minute).FailingChecks())
	})
}

// A check that hangs delays neither the others nor a pass, and ends at its own limit.
func TestAHungCheck(t *testing.T) {
	inTown(t, func(w *world, at *town) {
		gate := make(chan struct{})
		w.repo.push("c1", tcp("10s", map[string]int{"a": 1, "b": 1}))
		w.start()
		w.pass(30 * time.Second)
		at.mu.Lock()
		at.hangs[enginetest.IPOf("a")] = gate
		at.mu.Unlock()
		s := w.pass(40 * time.Second)
		require.Equal(t, "a:failing, b:passing", states(s))
		require.Contains(t, s.Checks[0].Error, "no connection within 5 s")
		w.repo.push("c2", tcp("10s", map[string]int{"a": 1, "b": 2}))
		require.Equal(t, "c2", w.look().Converged.ID)
		close(gate)
		require.Equal(t, "a:passing, b:passing", states(w.pass(30*time.Second)))
	})
}

// Results of a guest during a step do not count, nor those of an earlier guest.
func TestAGuestThatIsChangedOrRemoved(t *testing.T) {
	inTown(t, func(w *world, at *town) {
		w.repo.push("c1", tcp("10s", map[string]int{"a": 1, "b": 1, "c": 1}))
		w.start()
		w.pass(time.Minute)
		at.set("a", true)
		at.set("c", true)
		require.Equal(t, "a:failing, b:passing, c:failing", states(w.pass(40*time.Second)))

		w.set(func() { w.host.During = slow(time.Minute) })
		w.repo.push("c2", tcp("10s", map[string]int{"a": 1, "b": 2}))
		go w.agent.CheckNow()
		w.pass(time.Second)
		at.set("b", true)
		v, err := w.agent.VerifyNodes(w.t.Context(), "ann", func(p *engine.Probe) bool { return p.Node == "b" })
		require.NoError(t, err)
		require.Equal(t, []engine.CheckRun{{Address: "box.b", Node: "b", Check: "web", Status: engine.RunSkipped, Detail: "a step changes its guest"}}, v.Checks)
		s := w.pass(40 * time.Second)
		require.NotNil(t, s.Running)
		require.Equal(t, CheckPassing, s.Checks[1].State)
		at.set("b", false)
		s = w.pass(4 * time.Minute)
		require.Equal(t, "c2", s.Converged.ID)
		require.Equal(t, "a:failing, b:passing", states(s))

		w.set(func() { w.host.During = nil })
		w.byHand(func(state model.State) { delete(state, enginetest.Addr("box", "a")) })
		w.look()
		s = w.pass(2 * time.Second)
		require.NotEqual(t, CheckFailing, s.Checks[0].State, "that was another guest")
		require.Equal(t, "a:failing, b:passing", states(w.pass(40*time.Second)))

		changed := tcp("10s", map[string]int{"a": 1, "b": 2})
		for _, n := range changed.Site.Manifests["web"].Nodes {
			n.Checks[0].TCP = "81"
		}
		w.repo.push("c3", changed)
		w.look()
		require.Equal(t, "a:unknown, b:unknown", states(w.pass(2*time.Second)), "other checks")
	})
}

func TestSuspendedGuestsAreNotChecked(t *testing.T) {
	inTown(t, func(w *world, at *town) {
		w.repo.push("c1", tcp("10s", map[string]int{"a": 1}))
		w.start()
		at.set("a", true)
		require.Equal(t, "a:failing", states(w.pass(time.Minute)))
		for manifest, why := range map[string]string{"web": "manifest web is suspended", "": "everything is suspended"} {
			require.NoError(t, w.agent.Suspend(ledger.Suspension{Manifest: manifest, Reason: "cables"}))
			s := w.pass(2 * time.Second)
			require.Equal(t, "a:failing ("+why+")", states(s))
			before := at.dialled()
			w.pass(time.Hour)
			after := at.dialled()
			require.Equal(t, before, after)
			_, err := w.agent.Resume(manifest)
			require.NoError(t, err)
			require.Equal(t, "a:failing", states(w.pass(2*time.Second)))
		}
		require.Equal(t, 1, strings.Count(w.log.String(), "check fails"))
	})
}

func TestARestartRepeatsNothing(t *testing.T) {
	inTown(t, func(w *world, at *town) {
		w.repo.push("c1", tcp("10s", map[string]int{"a": 1, "b": 1}))
		w.start()
		at.set("a", true)
		s := w.pass(time.Minute)
		require.Equal(t, "a:failing, b:passing", states(s))
		since := s.Checks[0].Since

		w.end()
		s = w.start().Status()
		require.Equal(t, CheckFailing, s.Checks[0].State, "as before, from the first status on")
		s = w.pass(time.Minute)
		require.Equal(t, "a:failing, b:passing", states(s))
		require.Equal(t, since, s.Checks[0].Since)
		require.Equal(t, 1, strings.Count(w.log.String(), "check fails"))

		w.end()
		w.set(func() { w.host.ObserveErr = errors.New("no route") })
		w.start()
		require.Equal(t, "a:failing (no pass has seen its guest yet)", states(w.pass(time.Minute)))
		require.Len(t, w.state().FailingChecks, 1)
	})
}

// An agent that ends does not wait for a check.
func TestAnAgentEndsWhileChecksRun(t *testing.T) {
	inTown(t, func(w *world, at *town) {
		w.repo.push("c1", tcp("10s", map[string]int{"a": 1}))
		w.start()
		w.pass(time.Minute)
		at.mu.Lock()
		at.hangs[enginetest.IPOf("a")] = make(chan struct{})
		at.mu.Unlock()
		w.pass(11 * time.Second)
		asked := make(chan error, 1)
		go func() {
			_, err := w.agent.VerifyNodes(w.t.Context(), "ann", func(*engine.Probe) bool { return true })
			asked <- err
		}()
		synctest.Wait()
		began := time.Now()
		w.end()
		require.Zero(t, time.Since(began))
		require.ErrorIs(t, <-asked, engine.ErrInterrupted)
	})
}

func BenchmarkAnIdleHourOf100Checks(b *testing.B) {
	c := newChecks(health.Prober{Simulated: func(netip.Addr) error { return nil }}, nil, func(turnedChecks) {})
	probes := make([]engine.Probe, 100)
	for i := range probes {
		probes[i] = engine.Probe{Checks: []model.Check{{Name: "web", TCP: "192.0.2.1:80"}}, Subject: health.Subject{Address: enginetest.Addr("box", fmt.Sprint(i))}}
	}
	c.passed(&engine.Report{Probes: probes}, false)
	for _, f := range c.mail {
		f()
	}
	for b.Loop() {
		for range 60 {
			for _, e := range c.entries {
				e.take(e.probe.Check(b.Context(), c.prober, e.check), time.Now())
			}
			c.publish()
		}
	}
}

// A check that is asked for does not wait for all that are late.
func TestVerifyGoesFirst(t *testing.T) {
	inTown(t, func(w *world, at *town) {
		sizes := map[string]int{"b": 1}
		for i := range 100 {
			sizes[fmt.Sprintf("g%d", i)] = 1
		}
		w.repo.push("c1", tcp("10s", sizes))
		w.start()
		w.pass(time.Minute)
		at.mu.Lock()
		for i := range 100 {
			at.hangs[enginetest.IPOf(fmt.Sprintf("g%d", i))] = make(chan struct{})
		}
		at.mu.Unlock()
		w.pass(time.Minute)
		asked := time.Now()
		v, err := w.agent.VerifyNodes(w.t.Context(), "ann", func(p *engine.Probe) bool { return p.Node == "b" })
		require.NoError(t, err)
		require.Equal(t, engine.RunPassed, v.Checks[0].Status)
		require.LessOrEqual(t, time.Since(asked), 5*time.Second, "the time limit of one check")
	})
}

// A guest that may be off does not fail.
func TestAGuestThatIsSwitchedOff(t *testing.T) {
	inTown(t, func(w *world, at *town) {
		w.repo.push("c1", tcp("10s", map[string]int{"a": 1}))
		w.start()
		w.pass(time.Minute)
		at.set("a", true)
		require.Equal(t, "a:failing", states(w.pass(40*time.Second)))
		w.byHand(func(state model.State) {
			a := enginetest.Addr("box", "a")
			r, g := *state[a], *state[a].Guest
			g.Running = false
			r.Guest = &g
			state[a] = &r
		})
		w.look()
		s := w.pass(2 * time.Second)
		require.Equal(t, "a:unknown (it is switched off)", states(s))
		require.Empty(t, s.FailingChecks())
		require.Empty(t, w.state().FailingChecks)
	})
}

// Before the first pass nothing is known of the guests, which is no success.
func TestVerifyBeforeTheFirstPass(t *testing.T) {
	inTown(t, func(w *world, _ *town) {
		w.repo.push("c1", tcp("10s", map[string]int{"a": 1}))
		w.set(func() { w.host.During = slow(time.Minute) })
		w.start()
		w.pass(time.Second)
		_, err := w.agent.VerifyNodes(w.t.Context(), "ann", func(*engine.Probe) bool { return true })
		require.ErrorIs(t, err, ErrNotSeen)
	})
}

// Of more failing checks than are kept, those that are kept stay the same.
func TestMoreFailingChecksThanAreKept(t *testing.T) {
	reports := 0
	c := newChecks(health.Prober{}, nil, func(r turnedChecks) {
		reports++
		require.Len(t, r.failing, mostFailing)
	})
	c.kept = nil
	for i := range mostFailing + 100 {
		key := checkKey{enginetest.Addr("box", fmt.Sprint("g", i)), "up"}
		c.entries[key] = &checkEntry{key: key, status: CheckStatus{Address: key.address.String(), Check: key.check, State: CheckFailing}}
	}
	for range 5 {
		c.report()
	}
	require.Equal(t, 1, reports)
}
