package proxmox_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestOneCore: the plan of a creation counts as people do.
func TestOneCore(t *testing.T) {
	w := newWorld(t, pve.Config{})
	for name, cores := range map[string]int{"one": 1, "two": 2} {
		w.Node(name, func(v *guest.VM) { v.Preset, v.Cores, v.Memory = "", cores, 512 })
		w.ct("ct-"+name, func(c *guest.CT) { c.Preset, c.Cores, c.Memory = "", cores, 512 })
	}
	brief := map[string]string{}
	for _, s := range w.Plan().Steps {
		brief[s.Address.String()] = s.Brief
	}
	require.Contains(t, brief["vm.one"], "1 core, 512 MiB")
	require.Contains(t, brief["vm.two"], "2 cores, 512 MiB")
	require.Contains(t, brief["ct.ct-one"], "1 core, 512 MiB")
}

// TestContentIsSorted: PVE lists what a storage takes in the order of a hash.
func TestContentIsSorted(t *testing.T) {
	for _, order := range [][]string{{"vztmpl", "iso", "backup", "import"}, {"import", "backup", "vztmpl", "iso"}} {
		w := newWorld(t, pve.Config{Storages: []pve.Storage{
			{Name: "local", Type: "dir", Content: order}, {Name: "local-lvm", Type: "lvmthin", Content: []string{"rootdir"}},
		}})
		w.Node("web-1", func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "root", Storage: "local"}} })
		require.Contains(t, foundIn(w.Plan()), "it takes backup,import,iso,vztmpl: allow it with `pvesm set local --content backup,images,import,iso,vztmpl`")
		check := said(t, w.examine(nil), "storage local")
		require.Equal(t, "it does not accept images, only backup, import, iso, vztmpl", check.Seen)
		require.Equal(t, "pvesm set local --content backup,images,import,iso,vztmpl", check.Fix[0])
	}
}

// TestDuplicatesAreReportedOnce: by one finding that names both.
func TestDuplicatesAreReportedOnce(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.hasNoKey()
	w.Node("web-1", nil)
	w.Apply()
	restored := w.Guest(10000).Config
	w.Host.Edit(func(e *pve.Edit) { e.Add(pve.Guest{VMID: 10050, Config: restored}) })
	p := w.Plan()
	require.Empty(t, p.Steps)
	require.Len(t, p.Findings, 1)
	require.Equal(t, "2 guests carry the identity of vm.web-1: neither is changed (VM 10000, VM 10050)", p.Findings[0].Summary)
	for _, f := range p.Unmanaged {
		require.Equal(t, f.Claims == model.Address{Kind: "vm", Name: "web-1"}, f.Duplicate)
	}
	var b strings.Builder
	p.Text(&b, plan.TextOptions{})
	require.Equal(t, 1, strings.Count(b.String(), "web-1"), "the last line names it, the list of unmanaged guests does not")
}

// TestDoctorWithoutASize: a storage of which the node does not say what is free is no storage
// that is full.
func TestDoctorWithoutASize(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.Node("web", nil)
	answers := w.hears("/nodes/father/storage", fixed(http.StatusOK, `{"data":[`+
		`{"storage":"local","content":"import,iso","enabled":1,"active":1,"avail":1099511627776},{"storage":"local-lvm","content":"images,rootdir","enabled":1,"active":1}]}`))
	check := said(t, w.examine(answers), "storage local-lvm")
	require.Equal(t, doctor.Warning, check.Result)
	require.Equal(t, "accepts what is needed; the node does not report how much is free", check.Seen)
}
