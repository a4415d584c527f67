package forest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// sample is how many schedules a run makes unless set. make race sets fewer.
const sample = 5

// found are schedules that found a fault: a child that never left, since its parent had only the newest commit (778), or
// since its own deletion cap refused what the whole site had agreed to (291).
var found = []int{291, 778}

// TestSchedule lets a tree of three levels live through faults at random, by seed: agents are killed, links cut, answers
// lost, requests to the hosts fail with and without having had their effect, guests and whole machines are removed by hand,
// data folders are lost, and the files change meanwhile. The order of things holds in every history, and when the faults
// end, everything is as declared, and nothing else is there.
func TestSchedule(t *testing.T) {
	first, last := 1, number(t, "HOMESTAK_FOREST_SCHEDULES", sample)
	if seed := number(t, "HOMESTAK_FOREST_SEED", 0); seed != 0 {
		first, last = seed, seed
	}
	first += number(t, "HOMESTAK_FOREST_SKIP", 0)
	var seeds []int
	for seed := first; seed <= last; seed++ {
		seeds = append(seeds, seed)
	}
	if last == sample {
		seeds = append(seeds, found...)
	}
	var mu sync.Mutex
	done, simulated := 0, time.Duration(0)
	t.Run("seed", func(t *testing.T) {
		for _, seed := range seeds {
			t.Run(strconv.Itoa(seed), func(t *testing.T) {
				t.Parallel()
				w, took := schedule(t, uint64(seed)) //nolint:gosec // it is positive
				mu.Lock()
				defer mu.Unlock()
				simulated += took
				if done++; done%100 == 0 {
					fmt.Printf("%d schedules of trees, %s of their time\n", done, simulated.Round(time.Hour)) // by hand: what is logged comes in the end
				}
				switch {
				case len(w.broken) > 0:
					t.Errorf("%s\n\nseed %d; again: HOMESTAK_FOREST_SEED=%d go test -run TestSchedule ./test/forest\n%s", strings.Join(w.broken, "\n"), seed, seed, w.whyText)
				case first == last:
					t.Log(w.whyText)
				}
			})
		}
	})
	t.Logf("%d schedules of trees, %s of their time", done, simulated.Round(time.Minute))
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, name)
	return n
}

// faults is how requests to hosts fail. Agents ask from many goroutines.
type faults struct {
	mu     sync.Mutex
	r      *rand.Rand
	chance float64
}

func (f *faults) set(chance float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.chance = chance
}

// fault is asked about each request.
func (f *faults) fault(string, *http.Request) (status int, apply bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.chance == 0 || f.r.Float64() >= f.chance {
		return 0, false
	}
	return []int{500, 502, 595, 596}[f.r.IntN(4)], f.r.IntN(2) == 0
}

// pick draws one of some values.
func pick[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// schedule makes one schedule, and says how much time passed in it.
func schedule(t *testing.T, seed uint64) (w *world, took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0x666f72))               //nolint:gosec // a schedule
		f := &faults{r: rand.New(rand.NewPCG(seed, 0x66617578))} //nolint:gosec // a schedule
		w = newWorld(t, func(o *Options) { o.Seed, o.Fault, o.Watch = seed, f.fault, r.IntN(2) == 0 })
		defer w.End()
		s := newSite()
		for _, on := range []string{"father", "inner", "leaf"} {
			for range 1 + r.IntN(2) {
				s.add(on)
			}
		}
		w.push(s, "begin")
		if r.IntN(3) > 0 {
			w.calm(f)
		}
		for range 2 + r.IntN(4) {
			if len(w.broken) > 0 {
				break
			}
			w.trouble(r, f, s)
			w.calm(f)
		}
		took = time.Since(w.begun)
		w.whyText = w.why()
	})
	return w, took
}

// trouble is one round of faults.
func (w *world) trouble(r *rand.Rand, f *faults, s *site) {
	chance, lost := pick(r, 0, 0, 0.02, 0.1, 0.3), pick(r, 0, 0, 0.02, 0.1, 0.4)
	w.record("requests fail: %.2f, answers between agents are lost: %.2f", chance, lost)
	f.set(chance)
	w.Network.Lose(lost)
	for range 2 + r.IntN(8) {
		w.happens(r, s)
		w.live(time.Duration(1+r.IntN(pick(r, 10, 100, 600))) * time.Second)
	}
}

// happens is one fault, or one act of a person.
func (w *world) happens(r *rand.Rand, s *site) {
	name := pick(r, "father", "inner", "leaf")
	child := pick(r, "inner", "leaf")
	m, c := w.Machine(name), w.Machine(child)
	switch r.IntN(12) {
	case 0, 1, 2, 3:
		w.push(s, s.edit(r))
	case 4, 5:
		if m != nil {
			w.kill(m, time.Duration(1+r.IntN(600))*time.Second)
		}
	case 6, 7:
		gone := r.IntN(3) > 0
		w.record("the link of %s is cut: %v", child, gone)
		w.Network.Cut(child, gone)
	case 8:
		if c != nil && r.IntN(2) == 0 {
			w.record("by hand: destroy %s", child)
			w.Destroy(c)
		}
	case 9:
		if c != nil && r.IntN(2) == 0 {
			w.record("the data folder of %s is lost", child)
			w.loseData(c)
		}
	case 10, 11:
		if m != nil {
			w.byHand(r, m)
		}
	}
}

// edit changes the files, and says what.
func (s *site) edit(r *rand.Rand) string {
	if r.IntN(4) == 0 {
		return s.toggle(r)
	}
	on := pick(r, "father", "inner", "leaf")
	names := []string{}
	for _, name := range s.below(on) {
		if s.vms[name] > 0 {
			names = append(names, name)
		}
	}
	switch {
	case len(names) == 0 || len(names) < 4 && r.IntN(3) == 0:
		return s.add(on) + " is added on " + on
	case r.IntN(3) == 0 && (on != "father" || len(names) > 1): // a manifest without nodes is an error
		name := pick(r, names...)
		delete(s.vms, name)
		delete(s.on, name)
		return name + " is removed from " + on
	default:
		name := pick(r, names...)
		s.vms[name]++
		return name + " is changed on " + on
	}
}

// toggle removes a machine from the files with all that is in it, or brings one back.
func (s *site) toggle(r *rand.Rand) string {
	switch {
	case !s.inner:
		s.inner = true
		return "inner is declared again\n\nAllow-Deletes: 20"
	case !s.leaf || r.IntN(2) == 0:
		s.leaf = !s.leaf
		return fmt.Sprintf("leaf is declared: %v\n\nAllow-Deletes: 20", s.leaf)
	default:
		s.inner = false
		return "inner is removed\n\nAllow-Deletes: 20"
	}
}

// kill ends an agent, and keeps it from being started for a while.
func (w *world) kill(m *Machine, d time.Duration) {
	w.record("the agent of %s dies, for %s", m.Name, d)
	m.Kill()
	w.down[m.Name] = time.Now().Add(d)
}

// loseData takes the data folder of the agent of a child. Those of its own children have pins and tokens of keys that
// are gone with it, and are given others.
func (w *world) loseData(c *Machine) {
	c.Kill()
	require.NoError(w.t, c.Reinstall(true))
	for _, m := range w.Machines() {
		if m.Parent == c {
			m.Kill()
			require.NoError(w.t, m.Reinstall(false))
		}
	}
}

// byHand is what people do on a host.
func (w *world) byHand(r *rand.Rand, m *Machine) {
	for name, g := range m.Guests() {
		if w.Machine(name) != nil || name == "inner" || name == "leaf" || !strings.Contains(g.Config["description"], "homestak-gitops: ") || g.Lock != "" {
			continue
		}
		what := pick(r, "deletes", "stops", "changes")
		w.record("by hand: %s %s on %s", what, name, m.Name)
		m.Host.Edit(func(e *pve.Edit) {
			switch what {
			case "deletes":
				e.Delete(g.VMID)
			case "stops":
				if g.Running {
					e.Stop(g.VMID)
				}
			default:
				e.Set(g.VMID, "tags", "homestak;mine")
			}
		})
		return
	}
}

// calm ends all faults, and waits until everything is as declared.
func (w *world) calm(f *faults) {
	f.set(0)
	w.Network.Lose(0)
	for _, name := range []string{"inner", "leaf"} {
		w.Network.Cut(name, false)
	}
	clear(w.down)
	w.record("the faults are over")
	for minute := range 180 {
		switch {
		case len(w.broken) > 0:
			return
		case w.converged():
			w.record("all is as declared")
			return
		case minute%30 == 29:
			w.operator()
		}
		w.live(time.Minute)
	}
	w.violation("the tree does not converge within three hours: %s", w.differs())
}

// operator gives up those machines that cannot prove that they are empty, and say so: the commit that was in force there is
// unknown, or they never reported.
func (w *world) operator() {
	var names []string
	for _, name := range []string{"inner", "leaf"} {
		s, m := w.status(name), w.Machine(name)
		lost := s != nil && strings.Contains(s.Summary, "no commit is known that") // had it, or was in force there
		if above := w.Machine(map[string]string{"inner": "father", "leaf": "inner"}[name]); above != nil && !w.now.has(name) {
			if _, there := above.Guests()[name]; there && (m == nil || lost) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return
	}
	w.mu.Lock()
	for _, name := range names {
		w.allowed[name], w.allowed["leaf"] = true, true // with inner goes all that is in it
	}
	now := w.now
	w.mu.Unlock()
	w.pushFiles(now, map[string]string{"note.txt": w.head}, "let them go\n\nAllow-Orphans: "+strings.Join(names, ", ")+"\nAllow-Deletes: 20")
}
