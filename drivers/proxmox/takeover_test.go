package proxmox_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// after are the steps that one waits for.
func after(t *testing.T, p *plan.Plan, a model.Address) []model.Address {
	t.Helper()
	i := slices.IndexFunc(p.Steps, func(s plan.Step) bool { return s.Address == a })
	require.GreaterOrEqual(t, i, 0, a)
	return p.Steps[i].After
}

// TestARenameTakesItsAddressOver: the new guest comes when the old one, which runs with
// the same static address or MAC, is gone; and not at all while that one stays.
func TestARenameTakesItsAddressOver(t *testing.T) {
	for name, makes := range map[string]func(w *world, name string){
		"vm, address": func(w *world, name string) {
			w.Node(name, func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.7/24"}} })
		},
		"vm, MAC": func(w *world, name string) {
			w.Node(name, func(v *guest.VM) {
				v.NICs = []guest.NIC{{Name: "lan", IP: "dhcp", MAC: "bc:24:11:00:00:07"}}
			})
		},
		"ct, address": func(w *world, name string) {
			w.ct(name, func(c *guest.CT) { c.NICs = []guest.CTNIC{{Name: "lan", IP: "10.0.0.7/24"}} })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, twoStorages(), func(t *testing.T, w *world) {
				makes(w, "homeassistant")
				w.Apply()
				w.Converged()
				kind := name[:2]
				w.Drop("homeassistant")
				makes(w, "hass")
				p := w.Plan()
				require.Empty(t, p.Findings)
				require.Contains(t, after(t, p, model.Address{Kind: kind, Name: "hass"}), model.Address{Kind: kind, Name: "homeassistant"})

				w.Site.Suspended = []string{"web"} // of which it is left now
				m := w.Site.Manifests["web"]
				other := *m
				other.Name = "db"
				delete(w.Site.Manifests, "web")
				w.Site.Manifests["db"] = &other
				for _, n := range other.Nodes {
					n.Manifest, n.Resource.Manifest = &other, "db"
				}
				p = w.Plan()
				require.Contains(t, foundIn(p), "error "+kind+".hass is not created: the ")
				require.Contains(t, foundIn(p), " of nic.lan is that of "+kind+".homeassistant (VMID 10000), which stays and runs | two guests")
				require.NotContains(t, kindsOf(p), "hass")
			})
		})
	}
}

func kindsOf(p *plan.Plan) []string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, s.Address.Name)
	}
	return out
}
