package proxmox_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// newArchive declares the container template of the tests again, with other content.
func (w *world) newArchive() {
	w.declare("debian-ct", &guest.Template{URL: "https://images.test/debian-12.tar.zst", Checksum: "sha256:" + strings.Repeat("cd", 32)})
}

// origins are two guests and a clone whose image and templates have other content since they were created.
func origins(w *world) (vm *guest.VM, ct *guest.CT) {
	w.makes("tank")
	w.Node("web", nil)
	w.cloned("copy", "")
	ct = w.ct("db", nil)
	w.Apply()
	w.Converged()
	w.newImage()
	w.newArchive()
	w.Apply()
	return w.VM("web"), ct
}

func recreation(p *plan.Plan, addr string) *plan.Step {
	for i, s := range p.Steps {
		if s.Address.String() == addr {
			return &p.Steps[i]
		}
	}
	return nil
}

// TestN14TheNextImage: a guest that was made from an earlier content of its image is reported and stays; recreate replaces
// it, and then everything is in sync.
func TestN14TheNextImage(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		vm, ct := origins(w)
		p := w.Plan()
		require.True(t, p.InSync(), "%s %v", proxmoxtest.Describe(p), p.Findings)
		require.Len(t, p.Findings, 3)
		var text strings.Builder
		diag.Text(&text, p.Findings)
		for _, line := range []string{
			"ct.db was made from an earlier template.debian-ct (homestak.home.debian-ct.000000000000.tar.zst)",
			"vm.copy was made from an earlier template.golden (homestak.home.debian-12.000000000000.qcow2)",
			"vm.web was made from an earlier image.debian-12 (homestak.home.debian-12.000000000000.qcow2)",
			`recreate = "…" on its node replaces it`,
		} {
			require.Contains(t, text.String(), line)
		}
		doc, err := json.Marshal(p)
		require.NoError(t, err)
		require.Contains(t, string(doc), `"summary":"vm.web was made from an earlier image.debian-12 (`)

		vm.Recreate, ct.Recreate = "2026-11", "2026-11"
		w.VM("copy").Memory = 4096
		old := w.Guest(10002)
		p = w.Apply()
		for _, addr := range []string{"vm.web", "ct.db"} {
			s := recreation(p, addr)
			require.NotNil(t, s, "%s %v", proxmoxtest.Describe(p), p.Findings)
			require.Equal(t, []any{plan.Replace, model.ClassDataLoss, []string{"recreate"}}, []any{s.Action, s.Class, proxmoxtest.Paths(*s)})
		}
		require.Len(t, p.Findings, 1, "what is replaced is not reported")
		p = w.Plan()
		require.True(t, p.InSync(), "%s %v", proxmoxtest.Describe(p), p.Findings)
		require.Len(t, p.Findings, 1)
		require.Equal(t, "vm.copy", p.Findings[0].Address, "another change keeps what the tag says")
		require.NotEqual(t, old.Config["smbios1"], w.Guest(10002).Config["smbios1"])
		m := w.tagOf(10002)
		require.Equal(t, []string{"homestak.home.debian-12.cdcdcdcdcdcd.qcow2", "2026-11"}, []string{m.Content, m.Recreate})

		vm.Recreate, ct.Recreate = "", ""
		w.Converged()
		vm.Recreate, ct.Recreate = "2026-11", "2026-11"
		w.Converged()
	})
}

// TestN14TheFactStays: a new key, a changed guest and the signature of an unsigned tag keep what a guest was created with.
func TestN14TheFactStays(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		w.hasNoKey()
		w.Node("web", func(v *guest.VM) { v.Recreate = "a" })
		w.ct("db", func(c *guest.CT) { c.Recreate = "a" })
		w.Apply()
		w.hasKey()
		fact := func() []string {
			var out []string
			for _, vmid := range []int{ourCT, ourVM} {
				m := w.tagOf(vmid)
				out = append(out, fmt.Sprint(m.V), m.Content, m.Recreate)
			}
			return out
		}
		was := fact()
		require.Equal(t, []string{"1", "homestak.home.debian-ct.000000000000.tar.zst", "a", "1", "homestak.home.debian-12.000000000000.qcow2", "a"}, was)
		was[0], was[3] = "2", "2"
		w.Apply()
		require.Equal(t, was, fact())
		w.reopenWith(func(string) [][]byte { return [][]byte{[]byte("the new key"), keysOfTests("father")[0]} }, false)
		w.VM("web").Memory = 4096
		w.Apply()
		w.Converged()
		require.Equal(t, was, fact())
	})
}

// TestN14TagsWithoutTheField: of a guest whose tag does not have the fields nothing is claimed, and it is replaced only when
// the files ask for that.
func TestN14TagsWithoutTheField(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		vm, ct := origins(w)
		for _, vmid := range []int{10000, 10001, 10002} {
			g := w.Guest(vmid)
			m := w.tagOf(vmid)
			m.Content, m.Recreate = "", ""
			id := owner.Identity{Site: "home", Owner: "father", Host: "father", Keys: keysOfTests}
			line := id.Sign(m, api.GuestRef{Node: "father", VMID: vmid, LXC: g.Kind == "lxc"}, configOf(g)).Line()
			w.Host.Edit(func(e *pve.Edit) { e.Set(vmid, "description", line) })
		}
		p := w.Plan()
		require.True(t, p.InSync(), "%s %v", proxmoxtest.Describe(p), p.Findings)
		require.Empty(t, p.Findings)
		vm.Recreate, ct.Recreate = "x", "x"
		w.Apply()
		w.Converged()
	})
}

// TestN14AnEditedFact: who edits the fields in a tag breaks its signature. Nothing is replaced for it, and the plan says so.
func TestN14AnEditedFact(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		w.Node("web", func(v *guest.VM) { v.Recreate = "2026-11" })
		w.ct("db", func(c *guest.CT) { c.Recreate = "2026-11" })
		w.Apply()
		edit := func(recreate string) {
			for _, vmid := range []int{ourCT, ourVM} {
				m := w.tagOf(vmid)
				m.Recreate, m.Content = recreate, "other.qcow2"
				w.Host.Edit(func(e *pve.Edit) { e.Set(vmid, "description", m.Line()) })
			}
		}
		edit("2026-10")
		guests := func() []pve.Guest { return []pve.Guest{w.Guest(ourCT), w.Guest(ourVM)} }
		before := guests()
		p := w.Apply()
		require.Empty(t, p.Steps)
		text := fmt.Sprint(p.Findings)
		require.Contains(t, text, "vm.web is not replaced: nothing proves that VM 10001 is this guest")
		require.Contains(t, text, "ct.db is not replaced: nothing proves that CT 10000 is this guest")
		require.NotContains(t, text, "earlier")
		require.Equal(t, before, guests())

		edit("2026-11")
		p = w.Plan()
		require.Empty(t, p.Findings, "an unproven tag shows nothing")
		for _, s := range p.Steps {
			require.Equal(t, []string{"mark"}, proxmoxtest.Paths(s))
		}
	})
}

// TestN14ALostTag: the line that restores a lost tag does not say what the guest was made from, and does not have it replaced.
func TestN14ALostTag(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.hasKey()
		w.Node("web", func(v *guest.VM) { v.Recreate = "2026-11" })
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "description", "") })
		line := strings.Split(w.Plan().Findings[0].Detail, "\n")[1]
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "description", line) })
		w.Apply()
		w.Converged()
		m := w.tagOf(10000)
		require.Equal(t, []string{"", "2026-11"}, []string{m.Content, m.Recreate})
	})
}

// TestN14AHalfMadeClone: a clone that was interrupted keeps what the tag says of its template and of recreate: it is
// completed first, and then replaced.
func TestN14AHalfMadeClone(t *testing.T) {
	inTime(t, withTank(), func(t *testing.T, w *world) {
		w.makes("tank")
		vm := w.cloned("web", "")
		w.ctTemplate(9001)
		w.declare("golden-ct", &guest.Template{VMID: 9001})
		ct := w.ct("db", func(c *guest.CT) { c.Template = "golden-ct" })
		w.Apply()
		id := owner.Identity{Site: "home", Owner: "father", Host: "father", Keys: keysOfTests}
		for _, vmid := range []int{ourCT, ourVM} {
			g, m := w.Guest(vmid), w.tagOf(vmid)
			m.UUID, m.MAC, m.VMID, m.Content, m.Recreate = "", "", vmid, "earlier.qcow2", "a"
			line := id.Sign(id.Begin(m), api.GuestRef{Node: "father", VMID: vmid, LXC: g.Kind == "lxc"}, configOf(g)).Line()
			w.Host.Edit(func(e *pve.Edit) { e.Set(vmid, "description", line) })
		}
		vm.Recreate, ct.Recreate = "b", "b"
		for i, action := range []plan.Action{plan.Update, plan.Replace} {
			p := w.Apply()
			require.Len(t, p.Steps, 2, "%s %v", proxmoxtest.Describe(p), p.Findings)
			for j, vmid := range []int{ourCT, ourVM} {
				require.Equal(t, action, p.Steps[j].Action)
				require.Equal(t, []string{"a", "b"}[i], w.tagOf(vmid).Recreate)
				require.Equal(t, i == 0, w.tagOf(vmid).Content == "earlier.qcow2")
			}
		}
		w.Converged()
	})
}

// TestN14AProtectedGuestStays: recreate replaces no guest whose protection is set.
func TestN14AProtectedGuestStays(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web", func(v *guest.VM) { v.Protection = true })
		ct := w.ct("db", func(c *guest.CT) { c.Protection = true })
		w.Apply()
		w.VM("web").Recreate, ct.Recreate = "a", "a"
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.Len(t, p.Findings, 2)
		for _, f := range p.Findings {
			require.Contains(t, f.Summary, "is not replaced: it is protected")
		}
	})
}

// replacementLife recreates a VM and a container.
func replacementLife(t *testing.T, r *storyRun) {
	t.Helper()
	r.quiet.Store(true)
	w := r.world(t, pve.Config{TaskTime: time.Second})
	w.Node("web", nil)
	ct := w.ct("db", nil)
	settle(w)
	was := map[string]string{ // identities by node
		"web": w.tagOf(ourVM).UUID,
		"db":  w.tagOf(ourCT).MAC,
	}
	r.quiet.Store(false)
	w.VM("web").Recreate, ct.Recreate = "a", "a"
	settle(w)
	s := w.Host.Snapshot()
	require.Len(t, s.Guests, 2)
	for _, g := range s.Guests {
		m := w.tagOf(g.VMID)
		require.NotEmpty(t, was[m.Node])
		require.NotEqual(t, was[m.Node], m.UUID+m.MAC, "%s was not replaced", m.Node)
		delete(was, m.Node)
		require.Equal(t, "a", m.Recreate)
		require.True(t, g.Running)
		require.Empty(t, g.Lock)
	}
	require.Len(t, s.Volumes["local-lvm"], 3, "root and cloud-init, and that of the container")
}

func TestN14EveryRequestOfAReplacementMayFail(t *testing.T) {
	tellWithFaults(t, "replacement", []int{596, 500, -1}, replacementLife)
}
