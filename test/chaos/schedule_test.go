package chaos_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestSchedule runs schedules 1 to N, or the one that is named.
func TestSchedule(t *testing.T) {
	rules := compiled(t)
	first, last := uint64(1), number64(t, "HOMESTAK_CHAOS_SCHEDULES", sample)
	if s := number64(t, "HOMESTAK_CHAOS_SEED", 0); s != 0 {
		first, last = s, s
	}
	first += number64(t, "HOMESTAK_CHAOS_SKIP", 0)
	var mu sync.Mutex // schedules run side by side
	var all stats
	done := 0
	t.Run("seed", func(t *testing.T) {
		for seed := first; seed <= last; seed++ {
			t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
				t.Parallel()
				w := run(t, seed, rules, nil)
				mu.Lock()
				defer mu.Unlock()
				all.rounds += w.wire.stats.rounds
				all.requests += w.wire.stats.requests
				all.faults += w.wire.stats.faults
				all.crashes += w.wire.stats.crashes
				all.secrets += w.wire.stats.secrets
				if done++; done%500 == 0 {
					fmt.Printf("%d schedules, the last of them %d, %d requests\n", done, seed, all.requests) // by hand: what is logged comes in the end
				}
				if first == last && !w.broken() {
					t.Log(strings.Join(w.story, "\n"))
				}
				if w.broken() {
					t.Errorf("%s\n\nseed %d, the story:\n%s\n\nagain: HOMESTAK_CHAOS_SEED=%d go test -run TestSchedule ./test/chaos",
						strings.Join(w.violations, "\n"), seed, strings.Join(w.story, "\n"), seed)
				}
			})
		}
	})
	t.Logf("%d schedules, %d rounds, %d requests, %d faults, %d crashes, %d secrets in seeds", last-first+1, all.rounds, all.requests, all.faults, all.crashes, all.secrets)
	if last-first > 20 {
		require.NotZero(t, all.secrets, "no schedule had a secret to keep")
	}
}

func number64(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, name)
	return n
}

func compiled(t *testing.T) *policy.Set {
	t.Helper()
	rules, found := policy.Compile(t.Context(), policy.Options{Kinds: proxmox.Kinds()})
	require.Empty(t, found)
	return rules
}

// run makes one schedule. With meddle it is done in every round, when all is quiet,
// to see whether a law notices.
func run(t *testing.T, seed uint64, rules *policy.Set, meddle func(*world)) *world {
	t.Helper()
	var w *world
	dir := filepath.Join(scratch(t), "agent")
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, seed, dir, rules)
		w.meddle = meddle
		rounds := 3 + w.r.IntN(6)
		for i := range rounds {
			w.tell("round %d of %d", i+1, rounds)
			if w.round(i == rounds-1); w.broken() {
				break
			}
		}
		w.cancel()
		require.ErrorIs(t, <-w.ended, context.Canceled)
		end := w.sim.Snapshot()
		w.written(end)
		for _, task := range end.Tasks[max(0, len(end.Tasks)-12):] {
			w.tell("task %s of %s at %s: %s", task.Type, task.ID, task.Start.Format(time.TimeOnly), task.Status)
		}
		told := strings.Split(strings.TrimSpace(w.log.text()), "\n")
		w.tell("the log ends with:\n%s", strings.Join(told[max(0, len(told)-12):], "\n"))
	})
	return w
}

// scratch is a folder, in memory where there is such a one: receipts are forced to disk.
func scratch(t *testing.T) string {
	t.Helper()
	if dir, err := os.MkdirTemp("/dev/shm", "chaos"); err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		return dir
	}
	return t.TempDir()
}

// round is some changes, some faults, and then quiet.
func (w *world) round(last bool) {
	w.wire.mu.Lock()
	w.wire.stats.rounds++
	w.wire.mu.Unlock()
	s := w.site().copy()
	var did []string
	for range w.r.IntN(5) {
		all := edits()
		if what := all[w.r.IntN(len(all))](w.r, s); what != "" {
			did = append(did, what)
		}
	}
	w.idle()
	w.mu.Lock()
	clear(w.young)
	w.mu.Unlock()
	for range w.r.IntN(3) {
		w.byHandOn(w.r)
	}
	later := w.r.IntN(3) == 0
	w.outage()
	if len(did) > 0 && !later {
		w.push(s, strings.Join(did, "; "))
	}
	w.live(time.Duration(2+w.r.IntN(6)) * time.Minute)
	if w.r.IntN(6) == 0 {
		w.typo()
	}
	if len(did) > 0 && later {
		w.push(s, strings.Join(did, "; "))
	}
	if w.r.IntN(3) == 0 {
		w.taskDies()
	}
	w.live(time.Duration(1+w.r.IntN(10)) * time.Minute)
	w.calm()
	if last || w.r.IntN(2) == 0 {
		w.idle()
		w.clear()
	}
	w.quiet()
}

// typo is a commit that does not load, with everything taken out but that; somebody
// mends it with the next one.
func (w *world) typo() {
	w.repo.push("site \"home\" {\n", "a typo")
	w.tell("push: a typo")
	w.live(time.Duration(1+w.r.IntN(4)) * time.Minute)
	w.push(w.site(), "the typo is mended")
}

// outage begins what goes wrong in a round. The agent is idle.
func (w *world) outage() {
	f := faultPlan{key: w.r.Uint64(), chance: pick(w.r, 0, 0.01, 0.04, 0.15, 0.4), short: pick(w.r, "", "/cluster/resources", "/qemu", "/pools")}
	for range w.r.IntN(3) {
		f.crashes = append(f.crashes, crash{at: 1 + w.r.IntN(120), after: w.r.IntN(2) == 0, data: w.r.IntN(4) == 0})
	}
	if nodes := w.site().cluster; len(nodes) > 1 {
		switch w.r.IntN(5) {
		case 0:
			f.dark = nodes[w.r.IntN(len(nodes))]
			// Of guests on a node that is dark the cluster's list is the only witness. If it
			// lied, too, by leaving out just one of them, nobody could know.
			f.short = strings.TrimPrefix(f.short, "/cluster/resources")
		case 1:
			f.lost = true
		}
	}
	full := pick(w.r, "", "", "", "local", "vault")
	w.tell("faults: %.2f of requests, short lists of %q, crashes %v, offline %q, quorum lost %v, full %q", f.chance, f.short, f.crashes, f.dark, f.lost, full)
	names := map[string]bool{}
	for _, g := range w.sim.Snapshot().Guests {
		if m, found := markOf(g); found && g.Node == f.dark {
			names[m.Node] = true
		}
	}
	w.mu.Lock()
	w.dark, w.lost, w.darkened = f.dark, f.lost, names
	w.mu.Unlock()
	w.sim.Edit(func(e *pve.Edit) {
		if f.dark != "" {
			e.Offline(f.dark, true)
		}
		e.Quorum(!f.lost)
		if full != "" {
			e.Fill(full, true)
		}
	})
	w.wire.mu.Lock()
	w.wire.faults, w.wire.requests, w.wire.blind = f, 0, false
	clear(w.wire.seen)
	w.wire.mu.Unlock()
}

// taskDies kills what works on one of ours, and leaves what it left.
func (w *world) taskDies() {
	for range 200 {
		for _, t := range w.sim.Snapshot().Tasks {
			id, err := strconv.Atoi(t.ID)
			if err == nil && t.End.IsZero() && !w.byHand[id] {
				w.tell("  %s of guest %d dies", t.Type, id)
				w.crashed[id] = true
				w.sim.Edit(func(e *pve.Edit) { e.Crash(id) })
				return
			}
		}
		w.live(time.Second)
	}
}

// calm ends all faults. The agent must be idle when the host comes back, so that what
// it wrote in the dark was ordered in the dark.
func (w *world) calm() {
	w.wire.mu.Lock()
	w.wire.faults = faultPlan{}
	w.wire.mu.Unlock()
	w.idle()
	w.mu.Lock()
	dark := w.dark
	w.dark, w.lost, w.darkened = "", false, nil
	w.mu.Unlock()
	w.sim.Edit(func(e *pve.Edit) {
		if dark != "" {
			e.Offline(dark, false)
		}
		e.Quorum(true)
		e.Fill("local", false)
		e.Fill("vault", false)
	})
	w.tell("faults are over")
}
