package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// inn is a host with a way into its guests. Its lock is for what is asked of them:
// steps come from many goroutines.
type inn struct {
	*host
	mu    sync.Mutex
	ill   map[string]bool // by name
	asked map[string]int
}

func newInn() *inn {
	return &inn{host: &host{holds: model.State{}}, ill: map[string]bool{}, asked: map[string]int{}}
}

func (i *inn) Guest(addr model.Address, _ model.Guest, _ []netip.Addr) health.Guest {
	return room{i, addr.Name}
}

func (i *inn) set(name string, ill bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ill[name] = ill
}

func (i *inn) times(name string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked[name]
}

// room is a guest of it.
type room struct {
	*inn
	name string
}

func (room) Address(context.Context) (health.Address, error) {
	return health.Address{IP: netip.MustParseAddr("192.0.2.99"), Declared: true}, nil
}

func (r room) Ping(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[r.name]++
	if r.ill[r.name] {
		return errors.New(r.name + " does not answer")
	}
	return nil
}

func (room) Exec(context.Context, []string) (health.Output, error) {
	return health.Output{}, errors.New("no command here")
}

// checkedSite is the site of the boxes db and web, and of lone, which needs neither;
// web needs db, and all have a check.
func checkedSite(onError string) *model.Site {
	s := site(map[string]int{"db": 1, "web": 1, "lone": 1})
	m := s.Manifests["web"]
	m.OnError = onError
	for _, n := range m.Nodes {
		n.Manifest = m
		n.Checks = []model.Check{{
			Name: "up", Agent: true, Timeout: time.Minute, Interval: 10 * time.Second,
			At: diag.Range{File: n.Name + ".hcl", Start: diag.Pos{Line: 7, Column: 3}},
		}}
		if n.Name == "web" {
			n.Resource.Needs = append(n.Resource.Needs, addr("box", "db"))
		}
	}
	return s
}

func (i *inn) pass(s *model.Site) *engine.Pass {
	p := pass(s, i.host)
	p.Open = func(*model.Host) (engine.Driver, error) { return wrapper{i}, nil }
	return p
}

// wrapper is a driver around another one.
type wrapper struct{ engine.Driver }

func (w wrapper) Unwrap() engine.Driver { return w.Driver }

func TestAGuestIsDoneWhenItsChecksHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInn()
		i.set("db", true)
		time.AfterFunc(25*time.Second, func() { i.set("db", false) })
		var order []string
		p := i.pass(checkedSite("stop"))
		p.Notify = func(e apply.Event) {
			if e.What == apply.Finished {
				order = append(order, e.Step.Address.Name)
			}
		}
		r := p.Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
		require.Equal(t, []string{"base", "lone", "db", "web"}, order, "who needs db waits until it is well")
		require.Equal(t, 4, i.times("db"))
		require.Equal(t, []health.Result{{Name: "up", OK: true, Detail: "the guest agent answered in 0 ms", Tries: 4, Seconds: 30}}, r.Nodes[0].Checks)

		i.asked = map[string]int{}
		r = i.pass(checkedSite("stop")).Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome)
		require.Empty(t, i.asked, "while nothing changes no guest is asked how it is")
	})
}

// A check that does not hold fails the step, which is not done again for that; the
// manifest says what becomes of the rest.
func TestAFailingCheckFailsTheStep(t *testing.T) {
	for onError, want := range map[string]struct{ nodes, applied string }{
		"stop":     {"db:failed lone:completed web:skipped", "create disk.base, create box.db, create box.lone"},
		"continue": {"db:failed lone:completed web:skipped", "create disk.base, create box.db, create box.lone"},
		"rollback": {"db:failed lone:destroyed web:skipped", "create disk.base, create box.db, create box.lone, delete box.db, delete box.lone"},
	} {
		t.Run(onError, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := newInn()
				i.set("db", true)
				began := time.Now()
				r := i.pass(checkedSite(onError)).Run(t.Context())
				require.Equal(t, engine.Partly, r.Outcome)
				require.Equal(t, 50*time.Second, time.Since(began))
				require.Equal(t, want.nodes, statuses(r))
				require.ElementsMatch(t, strings.Split(want.applied, ", "), i.applied)
				text := "check up (db.hcl:7:3) does not hold: db does not answer; tried 6 times since " + began.UTC().Format("15:04:05 UTC")
				require.EqualError(t, r.Err, "create box.db: "+text)
				require.False(t, r.Nodes[0].Checks[0].OK)
				if onError != "rollback" {
					require.Equal(t, text, r.Nodes[0].Error)
				}
			})
		})
	}
}

// The next pass remembers nothing, and yet what needs an unwell guest waits for it.
func TestTheNextPassGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInn()
		i.set("db", true)
		require.Equal(t, engine.Partly, i.pass(checkedSite("stop")).Run(t.Context()).Outcome)

		i.applied = nil
		r := i.pass(checkedSite("stop")).Run(t.Context())
		require.Equal(t, engine.Failed, r.Outcome)
		require.ErrorContains(t, r.Err, "create box.web: it needs box.db, which is not well: check up (db.hcl:7:3) does not hold: db does not answer; tried 6 times")
		require.Empty(t, i.applied)
		require.Equal(t, "db:failed lone:completed web:failed", statuses(r))

		time.AfterFunc(15*time.Second, func() { i.set("db", false) })
		r = i.pass(checkedSite("stop")).Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
		require.Equal(t, []string{"create box.web"}, i.applied)
		require.Equal(t, "db:completed lone:completed web:completed", statuses(r))
	})
}

// The guests of Unwell are tried once more, also where nothing else is to be done.
func TestUnwellGuestsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInn()
		require.Equal(t, engine.Done, i.pass(checkedSite("stop")).Run(t.Context()).Outcome)
		i.set("db", true)
		i.asked = map[string]int{}
		p := i.pass(checkedSite("stop"))
		p.Unwell = []model.Address{addr("box", "db"), addr("box", "lone"), addr("box", "gone")}
		began := time.Now()
		r := p.Run(t.Context())
		require.Zero(t, time.Since(began))
		require.Equal(t, engine.Partly, r.Outcome)
		require.EqualError(t, r.Err, "box.db: check up (db.hcl:7:3) does not hold: db does not answer")
		require.Equal(t, "db:failed lone:completed web:completed", statuses(r))
		require.Equal(t, map[string]int{"db": 1, "lone": 1}, i.asked)
	})
}

// A guest without checks is asked for its address only where that is wanted.
func TestLocatingGuestsWithoutChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInn()
		s := site(map[string]int{"a": 1})
		for _, wanted := range []bool{false, true} {
			p := i.pass(s)
			p.Unwell, p.Locate = []model.Address{addr("box", "a")}, wanted
			r := p.Run(t.Context())
			require.Equal(t, engine.Done, r.Outcome)
			for _, res := range i.holds {
				if res.Guest != nil {
					res.Guest = &model.Guest{VMID: 100, Running: true}
				}
			}
			want := ipOf("a") // as declared
			if wanted {
				want = "192.0.2.99"
			}
			require.Equal(t, want, r.Nodes[0].IP)
		}
	})
}

// What shall not run has no checks to pass, and neither has what is removed.
func TestStepsWithoutChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInn()
		r := i.pass(checkedSite("stop")).Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome)
		i.asked = map[string]int{}
		p := i.pass(checkedSite("stop"))
		p.Manifest, p.Destroy = "web", true
		r = p.Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
		require.Empty(t, i.asked)
	})
}

// The time of a step is for its work: its checks, and those of what it needs, have
// their own.
func TestChecksDoNotUseUpTheTimeOfAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInn()
		s := checkedSite("stop")
		s.Manifests["web"].Settings = &model.Settings{Timeout: 30 * time.Second}
		i.during = func(ctx context.Context, _ plan.Step) error {
			select {
			case <-time.After(20 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		i.set("db", true)
		time.AfterFunc(65*time.Second, func() { i.set("db", false) })
		r := i.pass(s).Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	})
}

// Whoever cancels while a check is waited for gets away at once, and is told what was
// seen until then.
func TestCancellingAWaitForChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInn()
		i.set("db", true)
		errLeave := errors.New("asked to leave")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(12*time.Second, func() { cancel(errLeave) })
		began := time.Now()
		r := i.pass(checkedSite("rollback")).Run(ctx)
		require.Equal(t, 12*time.Second, time.Since(began))
		require.ErrorIs(t, r.Err, errLeave)
		require.Contains(t, r.Nodes[0].Error, "does not hold: db does not answer; tried 2 times")
		require.NotContains(t, strings.Join(i.applied, ","), "delete", "nobody may want a removal now")
	})
}

// Stopping once lets a change come to its end, and ends the wait for a check at once:
// that may take minutes, and changes nothing. Nobody may want a removal then.
func TestStoppingEndsTheWaitForACheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInn()
		i.set("db", true)
		stop := make(chan struct{})
		p := i.pass(checkedSite("rollback"))
		p.Stop = stop
		time.AfterFunc(5*time.Second, func() { close(stop) })
		began := time.Now()
		r := p.Run(t.Context())
		require.Equal(t, 5*time.Second, time.Since(began))
		require.Equal(t, engine.Interrupted, r.Outcome)
		require.Equal(t, "db:failed lone:completed web:skipped", statuses(r))
		require.ErrorContains(t, r.Err, "db does not answer; given up: interrupted")
		require.NotContains(t, strings.Join(i.applied, ","), "delete")
	})
}

// An agent does not forget a guest whose check does not hold: it tries again until it
// does, also after a restart, and asks nobody from then on.
func TestAnAgentRemembersWhoWasUnwell(t *testing.T) {
	live(t, func(w *world) {
		i := newInn()
		w.options = func(o *engine.AgentOptions) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
		}
		i.set("lone", true)
		w.repo.push("c1", engine.Desired{Site: checkedSite("continue")})
		w.start()
		s := w.pass(15 * time.Second)
		require.Equal(t, "waiting for check up of box.lone: lone does not answer (10 s of 1m)", s.Running.Now[0].Waits)
		s = w.pass(50 * time.Second)
		require.Nil(t, s.Converged)
		require.Equal(t, "box.db:true box.lone:false box.web:true", ready(s))
		require.Contains(t, s.Nodes[1].Error, "check up (lone.hcl:7:3) does not hold: lone does not answer")

		w.end()
		w.start()
		s = w.pass(10 * time.Minute)
		require.Equal(t, "box.db:true box.lone:false box.web:true", ready(s))
		require.Equal(t, engine.Partly, s.Last.Outcome)

		i.set("lone", false)
		s = w.pass(10 * time.Minute)
		require.Equal(t, engine.Done, s.Last.Outcome)
		require.Equal(t, "c1", s.Converged.ID)
		require.Equal(t, "box.db:true box.lone:true box.web:true", ready(s))
		require.Equal(t, 1, w.log.count("checks hold again"))

		before := i.times("lone")
		w.pass(time.Hour)
		require.Equal(t, before, i.times("lone"))
		require.Len(t, w.receipts(), 1, "to look is no change")
	})
}

func ready(s engine.AgentStatus) string {
	var out []string
	for _, n := range s.Nodes {
		out = append(out, fmt.Sprintf("%s:%v", n.Address, n.Ready))
	}
	return strings.Join(out, " ")
}
