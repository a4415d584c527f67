package proxmox_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// A changed guest is observed alone, as it is observed with all others, by two requests. Where that does not show all that
// matters of it, the whole host is observed.
func TestAChangedGuestIsObservedAlone(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(e *pve.Edit, vmid int)
		all  bool
	}{
		"as it was":             {edit: func(*pve.Edit, int) {}},
		"other tags":            {edit: func(e *pve.Edit, vmid int) { e.Set(vmid, "tags", "homestak;mine") }},
		"an option of nobody":   {edit: func(e *pve.Edit, vmid int) { e.Set(vmid, "vga", "qxl") }},
		"a pending change":      {edit: func(e *pve.Edit, vmid int) { e.Pend(vmid, "cores", "7") }},
		"no ownership tag":      {edit: func(e *pve.Edit, vmid int) { e.Set(vmid, "description", "mine") }, all: true},
		"another identity":      {edit: func(e *pve.Edit, vmid int) { e.Set(vmid, "smbios1", "uuid=00000000-0000-4000-8000-000000000000") }, all: true},
		"a lock":                {edit: func(e *pve.Edit, vmid int) { e.Lock(vmid, "backup") }, all: true},
		"stopped":               {edit: func(e *pve.Edit, vmid int) { e.Stop(vmid) }, all: true},
		"paused":                {edit: func(e *pve.Edit, vmid int) { e.QMP(vmid, "paused") }, all: true},
		"another bridge":        {edit: func(e *pve.Edit, vmid int) { e.Set(vmid, "net0", "virtio=BC:24:11:00:00:01,bridge=vmbr1") }, all: true},
		"removed":               {edit: func(e *pve.Edit, vmid int) { e.Delete(vmid) }, all: true},
		"converted by somebody": {edit: func(e *pve.Edit, vmid int) { e.Stop(vmid); e.Set(vmid, "template", "1") }, all: true},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				w.Node("web", nil)
				w.Node("db", nil)
				w.Apply()
				addr := model.Address{Kind: "vm", Name: "web"}
				want, found := w.Site.Want("father")
				require.Empty(t, found)
				before, err := w.Driver.Observe(t.Context(), want)
				require.NoError(t, err)
				id := before.State[addr].Guest.VMID
				w.Host.Edit(func(e *pve.Edit) { c.edit(e, id) })

				some := *want
				some.Changed = map[model.Address]model.Guest{addr: {VMID: id, Node: "father"}}
				n := total(w)
				have, err := w.Driver.Observe(t.Context(), &some)
				require.NoError(t, err)
				n = total(w) - n
				all, err := w.Driver.Observe(t.Context(), want)
				require.NoError(t, err)
				require.Equal(t, !c.all, have.Only)
				if c.all {
					require.Equal(t, all.State.Addresses(), have.State.Addresses())
					return
				}
				require.Equal(t, 2, n)
				require.Equal(t, []model.Address{addr}, have.State.Addresses())
				require.Equal(t, stepOf(w.PlanFor(want, all), addr), stepOf(w.PlanFor(want, have), addr), "the same follows from both")
			})
		})
	}
}

// stepOf is what a plan does to one guest, as text.
func stepOf(p *plan.Plan, addr model.Address) string {
	one := *p
	one.Steps = slices.DeleteFunc(slices.Clone(p.Steps), func(s plan.Step) bool { return s.Address != addr })
	return proxmoxtest.Describe(&one)
}
