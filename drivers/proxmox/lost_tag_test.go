package proxmox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestALostTagIsPutBack: somebody cleared the notes of a guest whose VMID is declared. The
// advice says first how to put the tag back, and to follow it literally is enough.
func TestALostTagIsPutBack(t *testing.T) {
	for name, c := range map[string]struct {
		declare func(w *world)
		tool    string
	}{
		"vm": {func(w *world) {
			w.Node("web-1", func(v *guest.VM) {
				v.Disks = []guest.Disk{{Name: "data", Size: 5}}
				v.Options = map[string]string{"balloon": "512"}
			}).Resource.Guest.VMID = 10050
		}, "qm"},
		"ct": {func(w *world) {
			w.ct("web-1", func(c *guest.CT) { c.Disks = []guest.CTDisk{{Name: "data", Size: 5, Path: "/srv"}} })
			w.Site.Manifests["web"].Nodes[0].Resource.Guest.VMID = 10050
		}, "pct"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				c.declare(w)
				w.Apply()
				was := w.Guest(10050)
				w.Host.Edit(func(e *pve.Edit) { e.Set(10050, "description", "call Anna first") })

				p := w.Plan()
				require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
				advice := p.Findings[0].Detail
				require.True(t, strings.HasPrefix(advice, "if it is "+name+".web-1 and only lost its ownership tag, put that back as the last line of its Notes in the web interface (`"+
					c.tool+" set 10050 --description` would replace all other lines):\nhomestak-gitops: {"), advice)
				require.Contains(t, advice, "\nif it is another guest: choose another vmid for "+name+".web-1, or remove this guest")
				line := strings.Split(advice, "\n")[1]

				w.Host.Edit(func(e *pve.Edit) { e.Set(10050, "description", "call Anna first\n"+line) })
				p = w.Apply()
				for _, s := range p.Steps {
					require.Equal(t, plan.Update, s.Action)
					for _, change := range s.Changes {
						require.Contains(t, []string{"description", "mark"}, change.Path)
					}
				}
				is := w.Guest(10050)
				require.Equal(t, was.Config["smbios1"], is.Config["smbios1"])
				require.Equal(t, was.Config["net0"], is.Config["net0"])
				w.Converged()
			})
		})
	}
}

// TestALostTagThatIsNotKnown: a guest that does not look like the wanted one gets no line
// to hand it over with.
func TestALostTagThatIsNotKnown(t *testing.T) {
	for name, edit := range map[string]func(*pve.Edit){
		"another name": func(e *pve.Edit) { e.Set(10050, "name", "mine") },
		"one nic more": func(e *pve.Edit) { e.Set(10050, "net5", "virtio=BC:24:11:00:00:01,bridge=vmbr0") },
		"another slot": func(e *pve.Edit) {
			e.Set(10050, "net1", "virtio=BC:24:11:00:00:02,bridge=vmbr0")
			e.Set(10050, "net0", "")
		},
		"no identity":   func(e *pve.Edit) { e.Set(10050, "smbios1", "") },
		"one disk more": func(e *pve.Edit) { e.Set(10050, "scsi5", "local-lvm:vm-10050-disk-9,size=4G") },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				w.Node("web-1", nil).Resource.Guest.VMID = 10050
				w.Apply()
				w.Host.Edit(func(e *pve.Edit) { e.Set(10050, "description", ""); edit(e) })
				advice := w.Plan().Findings[0].Detail
				require.NotContains(t, advice, "homestak-gitops: {")
				require.Contains(t, advice, "as its last backup has it (`pvesm extractconfig VOLUME` on the node")
				require.Contains(t, advice, "if it is another guest: choose another vmid for vm.web-1")
			})
		})
	}
}
