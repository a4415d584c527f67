package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func TestAGuestIsDoneWhenItsChecksHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		i.Set("db", true)
		time.AfterFunc(25*time.Second, func() { i.Set("db", false) })
		var order []string
		p := i.Pass(enginetest.CheckedSite("stop"))
		p.Observer = engine.StepFunc(func(e apply.Event) {
			if e.What == apply.Finished {
				order = append(order, e.Step.Address.Name)
			}
		})
		r := p.Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
		require.Equal(t, []string{"base", "lone", "db", "web"}, order, "who needs db waits until it is well")
		require.Equal(t, 4, i.Times("db"))
		require.Equal(t, []health.Result{{Name: "up", OK: true, Detail: "the guest agent answered in 0 ms", Tries: 4, Seconds: 30}}, r.Nodes[0].Checks)

		i.Asked = map[string]int{}
		r = i.Pass(enginetest.CheckedSite("stop")).Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome)
		require.Empty(t, i.Asked, "while nothing changes no guest is asked how it is")
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
				i := enginetest.NewInn()
				i.Set("db", true)
				began := time.Now()
				r := i.Pass(enginetest.CheckedSite(onError)).Run(t.Context())
				require.Equal(t, engine.Partly, r.Outcome)
				require.Equal(t, 50*time.Second, time.Since(began))
				require.Equal(t, want.nodes, enginetest.Statuses(r))
				require.ElementsMatch(t, strings.Split(want.applied, ", "), i.Applied)
				text := "check up (db.hcl:7:3) failed: db does not answer; tried 6 times since " + began.UTC().Format("15:04:05 UTC")
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
		i := enginetest.NewInn()
		i.Set("db", true)
		require.Equal(t, engine.Partly, i.Pass(enginetest.CheckedSite("stop")).Run(t.Context()).Outcome)

		i.Applied = nil
		r := i.Pass(enginetest.CheckedSite("stop")).Run(t.Context())
		require.Equal(t, engine.Failed, r.Outcome)
		require.ErrorContains(t, r.Err, "create box.web: it needs box.db, which is not healthy: check up (db.hcl:7:3) failed: db does not answer; tried 6 times")
		require.Empty(t, i.Applied)
		require.Equal(t, "db:failed lone:completed web:failed", enginetest.Statuses(r))

		time.AfterFunc(15*time.Second, func() { i.Set("db", false) })
		r = i.Pass(enginetest.CheckedSite("stop")).Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
		require.Equal(t, []string{"create box.web"}, i.Applied)
		require.Equal(t, "db:completed lone:completed web:completed", enginetest.Statuses(r))
	})
}

// A replacement destroys data: the first guest that is not well afterwards is the last, also of the next pass, and of an agent,
// which waits for none of them.
func TestReplacementsStopAtTheFirstFailure(t *testing.T) {
	for name, unattended := range map[string]bool{"apply": false, "agent": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := enginetest.NewInn()
				site := enginetest.CheckedSite("continue")
				for _, n := range site.Manifests["web"].Nodes {
					n.Resource.Needs = n.Resource.Needs[:1] // nothing is replaced while another guest lives on it
				}
				require.Equal(t, engine.Done, i.Pass(site).Run(t.Context()).Outcome)
				for _, n := range site.Manifests["web"].Nodes {
					n.Resource.Spec.(*enginetest.Box).Recreate = "2026-11"
				}
				pass := func() engine.Report {
					i.Applied = nil
					p := i.Pass(site)
					p.Unattended, p.AllowDeletes = unattended, 3
					return p.Run(t.Context())
				}
				i.Set("db", true)
				r := pass()
				require.ErrorContains(t, r.Err, "db does not answer")
				require.Equal(t, []string{"replace box.db"}, i.Applied)
				for range 2 {
					r = pass()
					require.Empty(t, i.Applied)
					require.ErrorContains(t, r.Err, "box.db")
				}
				i.Set("db", false)
				r = pass()
				require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
				require.Equal(t, []string{"replace box.lone", "replace box.web"}, i.Applied)
			})
		})
	}
}

// What waits for the first guest in later passes waits for it whatever it is replaced for, and while it is missing.
func TestReplacementsStayStoppedInLaterPasses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*enginetest.Box)
		fail   error
		again  []string
	}{
		"image":   {func(b *enginetest.Box) { b.Image = "new" }, nil, nil},
		"missing": {func(b *enginetest.Box) { b.Recreate = "2026-11" }, errors.New("no space left"), []string{"create box.db"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := enginetest.NewInn()
				site := enginetest.CheckedSite("continue")
				for _, n := range site.Manifests["web"].Nodes {
					n.Resource.Needs = n.Resource.Needs[:1]
				}
				require.Equal(t, engine.Done, i.Pass(site).Run(t.Context()).Outcome)
				for _, n := range site.Manifests["web"].Nodes {
					c.change(n.Resource.Spec.(*enginetest.Box))
				}
				pass := func() engine.Report {
					i.Applied = nil
					p := i.Pass(site)
					p.Unattended, p.AllowDeletes = true, 3
					return p.Run(t.Context())
				}
				i.Set("db", true)
				if c.fail != nil {
					i.Fail = map[string]error{"box.db": c.fail}
				}
				pass()
				require.Equal(t, []string{"replace box.db"}, i.Applied)
				if c.fail != nil {
					delete(i.Holds, enginetest.Addr("box", "db")) // removed, and not created
				}
				for range 2 {
					pass()
					require.Equal(t, c.again, i.Applied)
				}
				i.Set("db", false)
				i.Fail = nil
				require.Equal(t, engine.Done, pass().Outcome)
				require.Equal(t, append(c.again, "replace box.lone", "replace box.web"), i.Applied)
			})
		})
	}
}

// The guests of Unwell are tried once more, also where nothing else is to be done.
func TestFailingGuestsAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		require.Equal(t, engine.Done, i.Pass(enginetest.CheckedSite("stop")).Run(t.Context()).Outcome)
		i.Set("db", true)
		i.Asked = map[string]int{}
		p := i.Pass(enginetest.CheckedSite("stop"))
		p.Failing = []model.Address{enginetest.Addr("box", "db"), enginetest.Addr("box", "lone"), enginetest.Addr("box", "gone")}
		began := time.Now()
		r := p.Run(t.Context())
		require.Zero(t, time.Since(began))
		require.Equal(t, engine.Partly, r.Outcome)
		require.EqualError(t, r.Err, "box.db: check up (db.hcl:7:3) failed: db does not answer")
		require.Equal(t, "db:failed lone:completed web:completed", enginetest.Statuses(r))
		require.Equal(t, map[string]int{"db": 1, "lone": 1}, i.Asked)
	})
}

// A guest that is not adopted is not entered for its checks, nor asked for its address.
func TestAdoptableGuestsAreNotChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		require.Equal(t, engine.Done, i.Pass(enginetest.CheckedSite("stop")).Run(t.Context()).Outcome)
		db := enginetest.Addr("box", "db")
		i.Holds[db].Guest.Adoptable, i.Holds[db].Guest.Locked, i.Holds[db].Guest.Running = true, "a backup runs", true
		i.Asked = map[string]int{}
		p := i.Pass(enginetest.CheckedSite("stop"))
		p.Failing, p.Locate = []model.Address{db}, true
		r := p.Run(t.Context())
		require.Empty(t, r.Plan.Steps)
		require.Zero(t, i.Times("db"))
		require.Empty(t, r.Checks[db])
	})
}

// A guest without checks is asked for its address only where that is wanted.
func TestLocatingGuestsWithoutChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		s := enginetest.Site(map[string]int{"a": 1})
		for _, wanted := range []bool{false, true} {
			p := i.Pass(s)
			p.Failing, p.Locate = []model.Address{enginetest.Addr("box", "a")}, wanted
			r := p.Run(t.Context())
			require.Equal(t, engine.Done, r.Outcome)
			for _, res := range i.Holds {
				if res.Guest != nil {
					res.Guest = &model.Guest{VMID: 100, Running: true}
				}
			}
			want := enginetest.IPOf("a") // as declared
			if wanted {
				want = "192.0.2.99"
			}
			require.Equal(t, want, r.Nodes[0].IP)
		}
	})
}

// A guest that shall be off or is removed has no checks to pass.
func TestStepsWithoutChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		r := i.Pass(enginetest.CheckedSite("stop")).Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome)
		i.Asked = map[string]int{}
		p := i.Pass(enginetest.CheckedSite("stop"))
		p.Manifest, p.Destroy = "web", true
		r = p.Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
		require.Empty(t, i.Asked)
	})
}

// The time of a step is for its work: its checks, and those of what it needs, have
// their own.
func TestChecksDoNotUseUpTheTimeOfAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		s := enginetest.CheckedSite("stop")
		s.Manifests["web"].Settings = &model.Settings{Timeout: 30 * time.Second}
		i.During = func(ctx context.Context, _ plan.Step) error {
			select {
			case <-time.After(20 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		i.Set("db", true)
		time.AfterFunc(65*time.Second, func() { i.Set("db", false) })
		r := i.Pass(s).Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	})
}

// Cancelling while a check is waited for returns at once, with what was seen until then.
func TestCancellingAWaitForChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		i.Set("db", true)
		errLeave := errors.New("asked to leave")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(12*time.Second, func() { cancel(errLeave) })
		began := time.Now()
		r := i.Pass(enginetest.CheckedSite("rollback")).Run(ctx)
		require.Equal(t, 12*time.Second, time.Since(began))
		require.ErrorIs(t, r.Err, errLeave)
		require.Contains(t, r.Nodes[0].Error, "failed: db does not answer; tried 2 times")
		require.NotContains(t, strings.Join(i.Applied, ","), "delete", "a stop asks for no removal")
	})
}

// Stopping once completes a running change, and ends the wait for a check at once: that may take minutes, and changes nothing.
// Nothing is rolled back.
func TestStoppingEndsTheWaitForACheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		i.Set("db", true)
		stop := make(chan struct{})
		p := i.Pass(enginetest.CheckedSite("rollback"))
		p.Stop = stop
		time.AfterFunc(5*time.Second, func() { close(stop) })
		began := time.Now()
		r := p.Run(t.Context())
		require.Equal(t, 5*time.Second, time.Since(began))
		require.Equal(t, engine.Interrupted, r.Outcome)
		require.Equal(t, "db:failed lone:completed web:skipped", enginetest.Statuses(r))
		require.ErrorContains(t, r.Err, "db does not answer; given up: interrupted")
		require.NotContains(t, strings.Join(i.Applied, ","), "delete")
	})
}

// A new node in mode pull is done when it has reported that it is ready, where anybody takes reports.
func TestANodeInModePullIsDoneWhenItReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := enginetest.InsideSite(map[string]int{"a": 1})
		s.Manifests["web"].Nodes[0].Mode = model.ModePull
		host := enginetest.NewInn()
		asked := 0
		p := host.Pass(s)
		p.Health.Reported = func(node string) (string, error) {
			require.Equal(t, "a", node)
			if asked++; asked < 3 {
				return "", errors.New("it has not reported yet")
			}
			return "it is ready", nil
		}
		r := p.Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
		require.Equal(t, 3, asked)
		require.Equal(t, []health.Result{{Name: "report", OK: true, Detail: "it is ready", Tries: 3, Seconds: 10}}, r.Checks[enginetest.Addr("box", "a")].Results)

		p = enginetest.NewInn().Pass(s)
		p.Health.Reported = func(string) (string, error) { return "", errors.New("not ready: no such package") }
		r = p.Run(t.Context())
		require.Equal(t, engine.Partly, r.Outcome)
		require.ErrorContains(t, r.Err, "check report")
		require.ErrorContains(t, r.Err, "no such package")

		r = enginetest.NewInn().Pass(s).Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome)
		require.Empty(t, r.Checks, "no server takes reports")
	})
}

// notYetError is the answer for a node whose first report is not late.
type notYetError struct{}

func (notYetError) Error() string {
	return "waits for its first report since 14:02:05 UTC"
}
func (notYetError) Waiting() bool { return true }

// A silent node in mode pull does not keep the pass of an agent: it is not ready yet, what needs it is left for a later
// pass, and everything else is done. Nothing counts as failed until its report is late.
func TestASilentNodeDoesNotKeepThePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		site := enginetest.CheckedSite("rollback")
		for _, n := range site.Manifests["web"].Nodes {
			if n.Name == "db" {
				n.Spec, n.Mode = "base", model.ModePull
			}
		}
		i := enginetest.NewInn()
		var answer error = notYetError{}
		pass := func(failing ...model.Address) engine.Report {
			p := i.Pass(site)
			p.Unattended, p.Failing = true, failing
			p.Health.Reported = func(string) (string, error) { return "it is ready", answer }
			return p.Run(t.Context())
		}
		began := time.Now()
		r := pass()
		require.Zero(t, time.Since(began))
		require.Equal(t, engine.Partly, r.Outcome)
		require.Equal(t, "db:skipped lone:completed web:skipped", enginetest.Statuses(r))
		require.EqualError(t, r.Err, "box.db: "+answer.Error())
		require.Equal(t, answer.Error(), r.Nodes[0].Error)
		require.Equal(t, "it needs box.db: "+answer.Error(), r.Nodes[2].Error)
		for _, n := range r.NodeStatus(nil, began) {
			require.Equal(t, n.Node == "lone", n.Ready, n.Node)
		}
		require.NotContains(t, strings.Join(i.Applied, ","), "delete")

		db := enginetest.Addr("box", "db")
		r = pass(db) // the next one knows of it, and has the rest to do
		require.Zero(t, time.Since(began))
		require.Equal(t, "db:skipped lone:completed web:skipped", enginetest.Statuses(r))
		require.EqualError(t, r.Err, "box.db: "+answer.Error())

		answer = errors.New("it has not reported since 14:02:05 UTC, for more than 15m0s")
		r = pass(db)
		require.Zero(t, time.Since(began))
		require.Equal(t, "db:failed lone:completed web:failed", enginetest.Statuses(r))
		require.ErrorContains(t, r.Err, "check report failed: "+answer.Error())

		answer = nil
		r = pass(db)
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
		require.Equal(t, "db:completed lone:completed web:completed", enginetest.Statuses(r))
	})
}

// Guests whose checks do not hold keep no other manifest from being made, whether it is
// their own check that is waited for or that of what they need.
func TestWaitingGuestsBlockNoOtherManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		sizes := map[string]int{"db": 1}
		for n := range 6 {
			sizes[fmt.Sprint("ill-", n)], sizes[fmt.Sprint("on-", n)] = 1, 1
			i.Set(fmt.Sprint("ill-", n), true)
		}
		s := enginetest.Site(sizes)
		m := s.Manifests["web"]
		m.OnError = "stop"
		web := model.Manifest{Name: "other", Host: "father", OnError: "stop"}
		for _, n := range m.Nodes {
			n.Checks = []model.Check{{Name: "up", Agent: true, Timeout: 5 * time.Minute, Interval: 10 * time.Second}}
			if n.Name[:2] == "on" {
				n.Resource.Needs = append(n.Resource.Needs, enginetest.Addr("box", "db"))
			}
		}
		for n := range 30 {
			r := *m.Nodes[0].Resource
			name := fmt.Sprint("z-", n)
			r.Addr, r.Node, r.Manifest, r.Guest, r.Needs = enginetest.Addr("box", name), name, "other", &model.Guest{}, nil
			r.Spec = &enginetest.Box{Size: 1, IP: enginetest.IPOf(name)}
			web.Nodes = append(web.Nodes, &model.Node{Name: name, Type: "box", Manifest: &web, Resource: &r})
		}
		s.Manifests["other"] = &web
		begun, lastOther := time.Now(), time.Duration(0)
		p := i.Pass(s)
		p.Width = 2
		p.Observer = engine.StepFunc(func(e apply.Event) {
			if e.What == apply.Finished && e.Step.Manifest == "other" {
				require.Equal(t, apply.Done, e.Result.Status)
				lastOther = time.Since(begun)
			}
		})
		r := p.Run(t.Context())
		require.Equal(t, engine.Partly, r.Outcome)
		require.Less(t, lastOther, 10*time.Second)
		require.Greater(t, time.Since(begun), 4*time.Minute)
		ill := 0
		for _, a := range i.Applied {
			if len(a) > len("create box.ill") && a[:len("create box.ill")] == "create box.ill" {
				ill++
			}
		}
		require.LessOrEqual(t, ill, 2, "a failure stops the manifest where it did before")
	})
}

// A node that needs a guest which failed in an earlier pass costs an agent one try of it,
// and not the time of its checks in each pass while pushes wait.
func TestDependentsOfAFailingGuestCheckItOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		i.Set("db", true)
		require.Equal(t, engine.Partly, i.Pass(enginetest.CheckedSite("stop")).Run(t.Context()).Outcome)

		i.Asked = map[string]int{}
		p := i.Pass(enginetest.CheckedSite("stop"))
		p.Failing = []model.Address{enginetest.Addr("box", "db")}
		began := time.Now()
		r := p.Run(t.Context())
		require.Zero(t, time.Since(began))
		require.Equal(t, 1, i.Times("db"))
		require.ErrorContains(t, r.Err, "create box.web: it needs box.db, which is not healthy: check up (db.hcl:7:3) failed: db does not answer")

		i.Set("db", false)
		p = i.Pass(enginetest.CheckedSite("stop"))
		p.Failing = []model.Address{enginetest.Addr("box", "db")}
		r = p.Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	})
}

// However many guests need a sick one, its checks have their time once in a pass.
func TestManyDependentsWaitForAFailingGuestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		i.Set("db", true)
		s := enginetest.CheckedSite("continue")
		require.Equal(t, engine.Partly, i.Pass(s).Run(t.Context()).Outcome)
		for _, n := range s.Manifests["web"].Nodes {
			if n.Name == "lone" {
				n.Resource.Needs = append(n.Resource.Needs, enginetest.Addr("box", "db"))
			}
		}
		delete(i.Holds, enginetest.Addr("box", "lone"))
		i.Asked = map[string]int{}
		began := time.Now()
		r := i.Pass(s).Run(t.Context())
		require.Equal(t, 50*time.Second, time.Since(began))
		require.Equal(t, 6, i.Times("db"))
		require.Equal(t, "db:failed lone:failed web:failed", enginetest.Statuses(r))
		require.ErrorContains(t, r.Err, "create box.lone: it needs box.db")
		require.ErrorContains(t, r.Err, "create box.web: it needs box.db")
	})
}

// Guests that answer nothing at all cannot hold up an agent: after a minute it leaves
// the rest of them to its next pass, and forgets none.
func TestManyDeadGuestsDoNotHoldUpAnAgent(t *testing.T) {
	for unattended, want := range map[bool]int{true: 3, false: 5} {
		synctest.Test(t, func(t *testing.T) {
			i := enginetest.NewInn()
			boxes := map[string]int{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}
			require.Equal(t, engine.Done, i.Pass(enginetest.Site(boxes)).Run(t.Context()).Outcome)
			s := enginetest.Site(boxes)
			for _, n := range s.Manifests["web"].Nodes {
				n.Checks = []model.Check{{Name: "up", TCP: "22"}}
			}
			p := i.Pass(s)
			p.Width, p.Unattended = 1, unattended
			p.Health = health.Prober{Connect: 25 * time.Second, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}}
			for name := range boxes {
				p.Failing = append(p.Failing, enginetest.Addr("box", name))
			}
			began := time.Now()
			r := p.Run(t.Context())
			require.Equal(t, time.Duration(want)*25*time.Second, time.Since(began))
			require.Equal(t, engine.Partly, r.Outcome)
			require.Len(t, r.Checks, want)
		})
	}
}

// A guest that waits for the checks of another one is reported as waiting.
func TestWaitingForTheWriteLockIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		i.Set("db", true)
		require.Equal(t, engine.Partly, i.Pass(enginetest.CheckedSite("stop")).Run(t.Context()).Outcome)
		var told []string
		p := i.Pass(enginetest.CheckedSite("stop"))
		p.Health.Notify = func(w health.Progress) { told = append(told, fmt.Sprint(w.Step(), ": ", w.String())) }
		time.AfterFunc(5*time.Second, func() { i.Set("db", false) })
		require.Equal(t, engine.Done, p.Run(t.Context()).Outcome)
		require.Equal(t, []string{"box.web: waiting for check up of box.db: db does not answer (0 s of 1m)", "box.web: "}, told, "an empty reason ends the wait")
	})
}
