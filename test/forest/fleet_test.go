package forest

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// fleetSample is how many schedules of hosts below a hub a run makes unless HOMESTAK_FLEET_SCHEDULES says another number.
const fleetSample = 2

// TestFleetSchedule lets hosts below a hub live through faults at random, by seed: agents are killed, links cut, answers lost,
// guests stopped and deleted by hand, and hosts move to another parent meanwhile. When the faults end, everything is as declared
// and reported where it is declared, and no guest was created again unless it was deleted by hand.
func TestFleetSchedule(t *testing.T) {
	first, last := 1, number(t, "HOMESTAK_FLEET_SCHEDULES", fleetSample)
	if seed := number(t, "HOMESTAK_FLEET_SEED", 0); seed != 0 {
		first, last = seed, seed
	}
	var done atomic.Int32
	for seed := first + number(t, "HOMESTAK_FLEET_SKIP", 0); seed <= last; seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { fleetSchedule(t, uint64(seed)) }) //nolint:gosec // it is positive
			if n := done.Add(1); n%10 == 0 {
				fmt.Printf("%d schedules of hosts below a hub\n", n) // by hand: what is logged comes in the end
			}
		})
	}
}

func fleetSchedule(t *testing.T, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 0x666c65)) //nolint:gosec // a schedule
	h := newHub(3, r.IntN(2))
	w := newWorld(t, func(o *Options) { o.Secrets, o.Seed = h.secrets(), seed })
	defer w.end()
	h.server = map[string]string{}
	for _, name := range h.spokes {
		m, err := w.Add(name, w.Machine("father"))
		require.NoError(t, err)
		h.server[name] = "https://" + m.At.String()
	}
	father := "https://" + w.Machine("father").At.String()
	w.now = newSite()
	push := func(what string) {
		files := h.files()
		files["site.hcl"] = strings.Replace(files["site.hcl"], "https://192.0.2.10:8006\"\n", "https://192.0.2.10:8006\"\n  server = \""+father+"\"\n", 1)
		w.pushFiles(newSite(), files, what)
	}
	reported := func() string {
		if differs := w.follows(h); differs != "" {
			return differs
		}
		for _, name := range h.spokes {
			parent := "father"
			if h.parent[name] != "" {
				parent = h.parent[name]
			}
			if n := w.line(name); n == nil || !n.Ready || n.Parent != parent {
				return fmt.Sprintf("the hub does not show %s below %s, ready: %+v", name, parent, n)
			}
		}
		return ""
	}
	calm := func() {
		w.Network.Lose(0)
		for _, name := range h.spokes {
			w.Network.Cut(name, false)
		}
		clear(w.down)
		for minute := 0; reported() != ""; minute++ {
			require.Less(t, minute, 180, "%s\n%s", reported(), w.why())
			w.live(time.Minute)
		}
	}
	push("begin")
	calm()
	for range 3 {
		guests, deleted := w.guests(), map[string]bool{}
		w.Network.Lose(pick(r, 0, 0.02, 0.2))
		for range 3 + r.IntN(5) {
			name := pick(r, append([]string{"father"}, h.spokes...)...)
			switch r.IntN(6) {
			case 0:
				w.kill(w.Machine(name), time.Duration(1+r.IntN(3000))*time.Second)
			case 1:
				w.Network.Cut(name, r.IntN(3) > 0)
			case 2:
				h.rev++
				push("a change")
			case 3: // the second and third one may be below the first, so there is no circle
				if moves := pick(r, h.spokes[1:]...); h.parent[moves] == "" {
					h.parent[moves] = h.spokes[0]
				} else {
					delete(h.parent, moves)
				}
				push("a host moves")
			default:
				guest := "vm-of-" + name
				g, there := w.Machine(name).Guests()[guest]
				if !there || g.Lock != "" {
					continue
				}
				deletes := r.IntN(2) == 0
				deleted[guest] = deleted[guest] || deletes
				w.Machine(name).Host.Edit(func(e *pve.Edit) {
					switch {
					case deletes:
						e.Delete(g.VMID)
					case g.Running:
						e.Stop(g.VMID)
					}
				})
			}
			w.live(time.Duration(1+r.IntN(pick(r, 10, 300))) * time.Second)
		}
		calm()
		now := w.guests()
		for key, is := range guests {
			_, name, _ := strings.Cut(key, "/")
			require.True(t, deleted[name] || now[key] == is, "%s was made again", key)
		}
		require.Empty(t, w.broken)
	}
}
