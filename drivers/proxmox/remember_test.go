package proxmox_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestADriverThatRemembersSeesTheSame: whatever is changed on the host and in the files between two observations, a driver that
// observed it before sees what a new driver sees, and its plan is the same.
func TestADriverThatRemembersSeesTheSame(t *testing.T) {
	rounds := 12
	if n, err := strconv.Atoi(os.Getenv("HOMESTAK_REMEMBER_ROUNDS")); err == nil {
		rounds = n
	}
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inTime(t, pve.Config{Seed: int64(seed)}, func(t *testing.T, w *world) {
				for i := range 4 {
					w.Node(fmt.Sprintf("web-%d", i), func(v *guest.VM) { v.Agent = i%2 == 0 })
				}
				w.Node("db", func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data", Size: 5}} })
				w.CT("dns", nil)
				w.Apply()
				r := rand.New(rand.NewPCG(seed, 1))
				for round := range rounds {
					done := ""
					for range r.IntN(4) {
						done += " " + changeAnything(w, r)
					}
					require.Equal(t, seenNow(w, true), seenNow(w, false), "round %d, after%s", round, done)
					if r.IntN(4) == 0 {
						w.Run(w.Plan())
					}
					time.Sleep(time.Duration(r.IntN(900)) * time.Second)
				}
			})
		})
	}
}

// seenNow is what a driver observes, and the plan of it: that of the world, which remembers, or a new one.
func seenNow(w *world, remembers bool) any {
	w.T.Helper()
	if !remembers {
		old := w.Driver
		defer func() { w.Driver = old }()
		w.Reopen()
	}
	want, found := w.Site.Want("father")
	require.Empty(w.T, found.Errors())
	have, err := w.Driver.Observe(w.T.Context(), want)
	require.NoError(w.T, err)
	have.ReadEdits, have.Rest = nil, nil
	return []any{have, w.PlanFor(want, have)}
}

// changeAnything makes one change by hand, or in the files, and says which.
func changeAnything(w *world, r *rand.Rand) string {
	all := w.Host.Snapshot().Guests
	g, other := all[r.IntN(len(all))], all[r.IntN(len(all))]
	change := r.IntN(12)
	w.Host.Edit(func(e *pve.Edit) {
		switch change {
		case 0:
			e.Set(g.VMID, "tags", "homestak;"+fmt.Sprint(r.IntN(3)))
		case 1:
			e.Pend(g.VMID, "memory", fmt.Sprint(512*(1+r.IntN(4))))
		case 2, 3:
			if g.Running {
				e.Stop(g.VMID)
			} else {
				e.Start(g.VMID)
			}
		case 4:
			e.Set(g.VMID, "lock", []string{"", "backup", "create"}[r.IntN(3)])
		case 5: // notes above the tag, or a tag that is damaged, or signed for another guest
			text := g.Config["description"]
			e.Set(g.VMID, "description", []string{"note\n" + text, strings.Replace(text, "web-", "web", 1), other.Config["description"], text[min(len(text), 9):]}[r.IntN(4)])
		case 6: // the identity of another guest
			if g.Kind == "qemu" {
				e.Set(g.VMID, "smbios1", other.Config["smbios1"])
			}
		case 7:
			e.Set(g.VMID, "protection", []string{"", "1"}[r.IntN(2)])
		case 8: // a copy, and the end of one
			if len(all) < 9 {
				e.Add(pve.Guest{VMID: 10050 + r.IntN(40), Kind: g.Kind, Config: g.Config, Running: r.IntN(2) == 0})
			} else if g.VMID >= 10050 {
				e.Delete(g.VMID)
			}
		case 9: // what it said before
			e.Set(g.VMID, "tags", "homestak")
			e.Set(g.VMID, "protection", "")
		}
	})
	if change >= 10 {
		v := w.VM(fmt.Sprintf("web-%d", r.IntN(4)))
		v.Cores, v.Description = 1+r.IntN(3), fmt.Sprint("round ", r.IntN(3))
	}
	return fmt.Sprintf("%d at %d", change, g.VMID)
}
