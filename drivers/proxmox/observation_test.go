package proxmox_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// The volumes of a storage are listed once in a pass for all that need them where that is cheap, and by content type where a
// full list would be expensive.
func TestAStorageIsListedOnce(t *testing.T) {
	const listing = "GET /nodes/{node}/storage/{storage}/content"
	local := pve.Storage{Name: "local", Type: "dir", Content: []string{"iso", "vztmpl", "backup", "snippets", "import"}}
	disks := pve.Storage{Name: "local-lvm", Type: "lvmthin", Content: []string{"images", "rootdir"}}
	with := func(s pve.Storage, edit func(*pve.Storage)) pve.Storage {
		edit(&s)
		return s
	}
	for name, c := range map[string]struct {
		storage pve.Storage
		asked   int
	}{
		"a folder of a node":     {local, 1},
		"one that holds disks":   {with(local, func(s *pve.Storage) { s.Content = append([]string{"images"}, s.Content...) }), 3},
		"one beyond a network":   {with(local, func(s *pve.Storage) { s.Type = "nfs" }), 3},
		"one that nodes share":   {with(local, func(s *pve.Storage) { s.Shared = true }), 3},
		"one that holds volumes": {with(local, func(s *pve.Storage) { s.Content = append([]string{"rootdir"}, s.Content...) }), 3},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{Storages: []pve.Storage{c.storage, disks}}, func(t *testing.T, w *world) {
				w.Node("web", func(v *guest.VM) { v.UserData = "#cloud-config\n" })
				w.Apply()
				w.Apply() // what a first boot leaves to do
				before := w.Host.Snapshot().Requests[listing]
				w.Converged()
				require.Equal(t, c.asked, w.Host.Snapshot().Requests[listing]-before, "images, templates and seeds")
			})
		})
	}
}

// A changed guest is observed alone, as it is observed with all others, by two requests. Where that does not show all that
// matters of it, the whole host is observed.
func TestAChangedGuestIsObservedAlone(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(e *pve.Edit, vmid int)
		all  bool
	}{
		"as it was":            {edit: func(*pve.Edit, int) {}},
		"other tags":           {edit: func(e *pve.Edit, vmid int) { e.Set(vmid, "tags", "homestak;mine") }},
		"an undeclared option": {edit: func(e *pve.Edit, vmid int) { e.Set(vmid, "vga", "qxl") }},
		"a pending change":     {edit: func(e *pve.Edit, vmid int) { e.Pend(vmid, "cores", "7") }},
		"no ownership tag":     {edit: func(e *pve.Edit, vmid int) { e.Set(vmid, "description", "mine") }, all: true},
		"another identity":     {edit: func(e *pve.Edit, vmid int) { e.Set(vmid, "smbios1", "uuid=00000000-0000-4000-8000-000000000000") }, all: true},
		"a lock":               {edit: func(e *pve.Edit, vmid int) { e.Lock(vmid, "backup") }, all: true},
		"stopped":              {edit: func(e *pve.Edit, vmid int) { e.Stop(vmid) }, all: true},
		"paused":               {edit: func(e *pve.Edit, vmid int) { e.QMP(vmid, "paused") }, all: true},
		"another bridge":       {edit: func(e *pve.Edit, vmid int) { e.Set(vmid, "net0", "virtio=BC:24:11:00:00:01,bridge=vmbr1") }, all: true},
		"removed":              {edit: func(e *pve.Edit, vmid int) { e.Delete(vmid) }, all: true},
		"converted by hand":    {edit: func(e *pve.Edit, vmid int) { e.Stop(vmid); e.Set(vmid, "template", "1") }, all: true},
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

// TestTheLogOfATaskSaysWhy: the exit status of a failed start names only QEMU; its log names the bridge. If the log is not
// readable, the status is reported alone. PVE 9 has the reason in the status if the card is a virtio one.
func TestTheLogOfATaskSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		config pve.Config
		nic    guest.NIC
		dark   bool
		says   string
	}{
		"8.4":        {pve.Config{Version: "8.4"}, guest.NIC{Name: "lan", Bridge: "vmbr7"}, false, "QEMU exited with code 1: bridge 'vmbr7' does not exist (log"},
		"8.4 unseen": {pve.Config{Version: "8.4"}, guest.NIC{Name: "lan", Bridge: "vmbr7"}, true, "QEMU exited with code 1 (log: `pvenode task log 'UPID:father:"},
		"9.2":        {pve.Config{}, guest.NIC{Name: "lan", Bridge: "vmbr7"}, false, "task qmstart ended with: bridge 'vmbr7' does not exist (log"},
		"no port":    {pve.Config{Address: "10.0.0.1/24"}, guest.NIC{Name: "lan", Bridge: "vmbr0", VLAN: 7}, false, "QEMU exited with code 1: no physical interface on bridge 'vmbr0' (log"},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Fault = pve.Faults(pve.Fault{Method: "GET", Pattern: "/nodes/father/network", Status: 403}) // so the plan does not refuse the bridge
			w := newWorld(t, c.config)
			w.Node("web-1", func(v *guest.VM) {
				v.NICs = []guest.NIC{c.nic}
				v.Options = map[string]string{"tpmstate0": "local-lvm:1,version=v2.0"}
			})
			if c.dark {
				w.answers(1, "/log", `{"data":null}`, http.StatusForbidden)
			}
			failed := w.Run(w.Plan())
			require.Len(t, failed, 1)
			for _, err := range failed {
				require.ErrorContains(t, err, c.says)
			}
		})
	}
}

// The tasks of a step are in its result, so that a receipt leads to the
// logs of PVE.
func TestResultsNameTheTasksThatTheHostRan(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Node("web-2", nil)
		seen := 0
		for _, change := range []func(){func() {}, func() { w.Drop("web-2") }} {
			change()
			var noted []string
			for _, r := range apply.Run(t.Context(), w.Plan().Steps, apply.Options{}, w.Driver.Apply) {
				require.NoError(t, r.Err)
				require.NotEmpty(t, r.Tasks, r.Step.Address)
				noted = append(noted, r.Tasks...)
			}
			var ran []string
			for _, task := range w.Host.Snapshot().Tasks[seen:] {
				ran = append(ran, task.UPID)
			}
			require.ElementsMatch(t, ran, noted)
			seen += len(ran)
		}
	})
}

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
		check := proxmoxtest.CheckNamed(t, w.Examine(nil), "storage local")
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
