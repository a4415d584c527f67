package chaos_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestEveryLawCanTrip breaks each law on purpose, and sees that it is noticed: what
// finds nothing in ten thousand schedules must be able to find something.
func TestEveryLawCanTrip(t *testing.T) {
	for name, c := range map[string]struct {
		law    string
		meddle func(w *world, one pve.Guest)
	}{
		"a guest is not as the files say": {"law a", func(w *world, g pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, "cores", "77") })
		}},
		"a guest is missing": {"law a", func(w *world, g pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Delete(g.VMID) })
		}},
		"a guest is made twice": {"law b", func(w *world, g pve.Guest) {
			g.VMID, g.Running = 40000, false
			w.sim.Edit(func(e *pve.Edit) { e.Add(g) })
		}},
		"a guest is left behind": {"law c", func(w *world, g pve.Guest) {
			g.VMID, g.Running = 40000, false
			g.Config["description"] = strings.ReplaceAll(g.Config["description"], `"node":"`, `"node":"gone-`)
			delete(g.Config, "protection")
			w.sim.Edit(func(e *pve.Edit) { e.Add(g) })
		}},
		"a volume is left behind": {"law c", func(w *world, _ pve.Guest) {
			w.root(http.MethodPost, "/nodes/father/storage/"+w.site().storage+"/content", "vmid", "40000", "filename", "vm-40000-disk-0", "size", "1G")
		}},
		"a foreign guest is edited": {"law d", func(w *world, _ pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Set(9001, "cores", "3") })
		}},
		"a foreign guest is started": {"law d", func(w *world, _ pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Start(9001) })
		}},
		"a foreign guest is gone": {"law d", func(w *world, _ pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Delete(9001) })
		}},
		"a write to a foreign guest": {"law d", func(w *world, _ pve.Guest) {
			w.agentSends(http.MethodPost, "/nodes/father/qemu/9001/status/start", "{}")
		}},
		"a disk of a foreign guest": {"law d", func(w *world, _ pve.Guest) {
			w.agentSends(http.MethodPut, "/nodes/father/qemu/9001/resize", `{"disk":"scsi0","size":"+1G"}`)
		}},
		"a token in the log": {"law e", func(w *world, _ pve.Guest) {
			_, _ = fmt.Fprintln(w.log, "asked with", w.sim.Token())
		}},
		"a password in a mark": {"law e", func(w *world, g pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, "description", password+"\n"+g.Config["description"]) })
		}},
		"a parameter that PVE does not know": {"law f", func(w *world, _ pve.Guest) {
			w.agentSends(http.MethodPost, "/pools", `{"poolid":"beside","colour":"red"}`)
		}},
		"a write without digest": {"law g", func(w *world, g pve.Guest) {
			w.agentSends(http.MethodPut, fmt.Sprintf("/nodes/%s/%s/%d/config", g.Node, g.Kind, g.VMID), `{"onboot":true}`)
		}},
		"a disk grows without digest": {"law g", func(w *world, g pve.Guest) {
			w.agentSends(http.MethodPut, fmt.Sprintf("/nodes/%s/%s/%d/resize", g.Node, g.Kind, g.VMID), `{"disk":"net0","size":"+1G"}`)
		}},
		"a secret in a request": {"law e", func(w *world, _ pve.Guest) {
			w.agentSends(http.MethodPost, "/pools", `{"poolid":"beside","comment":"`+password+`"}`)
		}},
		"a seed is left behind": {"law c", func(w *world, _ pve.Guest) {
			w.root(http.MethodPost, "/nodes/father/storage/local/download-url", "content", "iso", "url", "http://images.example/seed.iso",
				"filename", "homestak-seed.home.gone.0123456789ab.01234567-89ab-cdef-0123-456789abcdef.iso")
		}},
		"a guest goes without its backup": {"law i", func(w *world, g pve.Guest) {
			w.demand(g, "requires_final_backup")
			w.agentSends(http.MethodDelete, fmt.Sprintf("/nodes/%s/%s/%d", g.Node, g.Kind, g.VMID), "")
		}},
		"a guest goes that is in use": {"law i", func(w *world, g pve.Guest) {
			w.demand(g, "requires_migration_first")
			w.sim.Edit(func(e *pve.Edit) { e.Start(g.VMID) })
			w.agentSends(http.MethodDelete, fmt.Sprintf("/nodes/%s/%s/%d", g.Node, g.Kind, g.VMID), "")
		}},
		"a foreign guest is backed up": {"law d", func(w *world, _ pve.Guest) {
			w.agentSends(http.MethodPost, "/nodes/father/vzdump", `{"vmid":"9001","storage":"local"}`)
		}},
		"a write without quorum": {"law h", func(w *world, g pve.Guest) {
			w.lost = true
			w.agentSends(http.MethodPost, fmt.Sprintf("/nodes/%s/%s/%d/status/start", g.Node, g.Kind, g.VMID), `{}`)
			w.lost = false
		}},
		"a write to a node that is dark": {"law h", func(w *world, g pve.Guest) {
			w.dark = g.Node
			w.agentSends(http.MethodPost, fmt.Sprintf("/nodes/%s/%s/%d/status/start", g.Node, g.Kind, g.VMID), `{}`)
			w.dark = ""
		}},
		"a guest that is in the dark is made again": {"law h", func(w *world, g pve.Guest) {
			w.dark, w.darkened = "elsewhere", map[string]bool{g.Name(): true}
			w.agentSends(http.MethodPost, "/nodes/father/qemu", `{"vmid":40000,"description":"x \"node\":\"`+g.Name()+`\""}`)
			w.dark = ""
		}},
		"protection is taken off": {"law i", func(w *world, g pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, "protection", "1") })
			for _, n := range w.site().nodes {
				n.guarded = true
			}
			w.agentSends(http.MethodPut, fmt.Sprintf("/nodes/%s/%s/%d/config", g.Node, g.Kind, g.VMID), `{"protection":false,"digest":"0000000000000000000000000000000000000000"}`)
		}},
		"a protected guest is destroyed": {"law i", func(w *world, g pve.Guest) {
			w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, "protection", "1") })
			w.agentSends(http.MethodDelete, fmt.Sprintf("/nodes/%s/%s/%d", g.Node, g.Kind, g.VMID), "")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := run(t, 7, nil, func(w *world) {
				for _, addr := range slices.Sorted(maps.Keys(ours(w.sim.Snapshot()))) {
					if g := ours(w.sim.Snapshot())[addr][0]; len(w.standing(w.sim.Snapshot())[addr]) == 0 {
						c.meddle(w, g)
						return
					}
				}
			})
			require.Condition(t, func() bool {
				return slices.ContainsFunc(w.violations, func(v string) bool { return strings.HasPrefix(v, c.law) })
			}, "violations: %v", w.violations)
		})
	}
}

// demand writes a decommission policy into the mark of a guest.
func (w *world) demand(g pve.Guest, policy string) {
	notes := regexp.MustCompile(`"destroy":\{[^}]*\},`).ReplaceAllString(g.Config["description"], "")
	notes = strings.Replace(notes, `"node":`, `"destroy":{"policy":"`+policy+`"},"node":`, 1)
	w.sim.Edit(func(e *pve.Edit) {
		e.Set(g.VMID, "description", notes)
		e.Set(g.VMID, "protection", "")
	})
	clear(w.young)
}

// agentSends sends a request as the agent would.
func (w *world) agentSends(method, path, body string) {
	r, err := http.NewRequestWithContext(w.ctx, method, "https://192.0.2.10:8006/api2/json"+path, strings.NewReader(body))
	require.NoError(w.t, err)
	if body == "" {
		r.Body, r.ContentLength = nil, 0
	} else {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("Authorization", "PVEAPIToken="+w.sim.Token())
	res, err := agentWire{w.wire, w.wire.life}.RoundTrip(r)
	if err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}

// TestAWireThatOrdersTwice is a program that is wrong: each guest it orders is ordered
// once more, under another VMID. Schedules must find it without being told where.
func TestAWireThatOrdersTwice(t *testing.T) {
	w := run(t, 3, nil, func(w *world) { w.wire.twice.Store(true) })
	for seed := uint64(4); seed < 12 && !w.broken(); seed++ {
		w = run(t, seed, nil, func(w *world) { w.wire.twice.Store(true) })
	}
	require.True(t, w.broken())
	require.Condition(t, func() bool {
		return slices.ContainsFunc(w.violations, func(v string) bool { return strings.HasPrefix(v, "law a") || strings.HasPrefix(v, "law b") })
	}, "violations: %v", w.violations)
}
