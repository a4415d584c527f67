package proxmox_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// inTime runs a story on a clock that jumps.
func inTime(t *testing.T, c pve.Config, story func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { story(t, newWorld(t, c)) })
}

func TestCreateFromImage(t *testing.T) {
	inTime(t, pve.Config{TaskTime: 2 * time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) {
			order, down := 3, 20
			v.Tags, v.Description, v.OnBoot, v.Protection = []string{"Prod", "web"}, "the front\nsecond line ü 100%", true, true
			v.Startup = &guest.Startup{Order: &order, Down: &down}
			v.Disks = []guest.Disk{{Name: "data", Size: 40}}
			v.NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.5/24"}, {Name: "dmz", VLAN: 12, MAC: "bc:24:11:00:00:09"}}
			v.Options = map[string]string{"balloon": "0", "numa": "true", "hotplug": "network,disk"}
		})
		p := w.Apply()
		require.Len(t, p.Steps, 2)
		g := w.Guest(10000)
		require.True(t, g.Running)
		require.Empty(t, g.Lock)
		c := g.Config
		require.Equal(t, "web-1", c["name"])
		require.Equal(t, []string{"2", "2048", "homestak;prod;web", "1", "1"}, []string{c["cores"], c["memory"], c["tags"], c["onboot"], c["protection"]})
		require.Contains(t, c["scsi0"], "size=10G")
		require.Contains(t, c["scsi1"], "size=40G")
		require.Contains(t, c["net0"], "bridge=vmbr0")
		require.Contains(t, c["net1"], "BC:24:11:00:00:09")
		require.Contains(t, c["net1"], "tag=12")
		require.Equal(t, "ip=10.0.0.5/24,gw=10.0.0.1", c["ipconfig0"])
		require.Equal(t, []string{"homestak", "10.0.0.1", "home.test", "0", "1"}, []string{c["ciuser"], c["nameserver"], c["searchdomain"], c["balloon"], c["numa"]})
		require.Equal(t, []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCd ops@home", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCe dev+1@home"}, api.DecodeSSHKeys(c["sshkeys"]))
		require.Contains(t, c["ide2"], "cloudinit")
		require.True(t, strings.HasPrefix(c["description"], "the front\nsecond line ü 100%\nhomestak-gitops: {"), c["description"])
		_, m, found := owner.ParseDescription(c["description"])
		require.True(t, found)
		require.Equal(t, "uuid="+m.UUID, c["smbios1"])
		require.NotContains(t, c["description"], "ssh-ed25519")
		w.Converged()
		time.Sleep(30 * time.Second) // the clock of the bubble: the node's status is sampled
		w.Converged()
	})
}

func TestSecondApplyWritesNothing(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		for i := range 5 {
			w.Node(fmt.Sprintf("web-%d", i+1), nil)
		}
		w.Apply()
		writes := w.Host.Snapshot().Writes
		w.Converged()
		w.Apply()
		require.Equal(t, writes, w.Host.Snapshot().Writes)
		require.Equal(t, []int{10000, 10001, 10002, 10003, 10004}, vmids(w))
	})
}

func vmids(w *world) []int {
	var ids []int
	for _, g := range w.Host.Snapshot().Guests {
		ids = append(ids, g.VMID)
	}
	return ids
}

// TestEditsWriteExactlyTheEditedKeys edits one thing at a time.
func TestEditsWriteExactlyTheEditedKeys(t *testing.T) {
	one := 1
	for name, c := range map[string]struct {
		edit  func(*guest.VM)
		paths []string
		keys  []string // that differ in the guest's configuration afterwards, pending ones too
		class model.Class
	}{
		"cores":          {func(v *guest.VM) { v.Cores = 4 }, []string{"cores"}, []string{"cores"}, model.ClassPending},
		"memory allowed": {func(v *guest.VM) { v.Memory, v.Restart = 4096, "allowed" }, []string{"memory"}, []string{"memory"}, model.ClassRestart},
		"tags":           {func(v *guest.VM) { v.Tags = []string{"b", "A"} }, []string{"tags"}, []string{"tags"}, model.ClassNone},
		"description":    {func(v *guest.VM) { v.Description = "new" }, []string{"description"}, []string{"description"}, model.ClassNone},
		"onboot":         {func(v *guest.VM) { v.OnBoot = true }, []string{"onboot"}, []string{"onboot"}, model.ClassNone},
		"startup":        {func(v *guest.VM) { v.Startup = &guest.Startup{Order: &one} }, []string{"startup.order"}, []string{"startup"}, model.ClassNone},
		"disk grows":     {func(v *guest.VM) { v.Disk = 12 }, []string{"disk.root.size"}, []string{"scsi0"}, model.ClassHot},
		"disk added":     {func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data", Size: 5}} }, []string{"disk.data.size", "disk.data.storage"}, []string{"description", "scsi1"}, model.ClassHot},
		"vlan":           {func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", VLAN: 7}} }, []string{"nic.lan.vlan"}, []string{"net0"}, model.ClassHot},
		"nic added":      {func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan"}, {Name: "dmz", IP: "dhcp"}} }, []string{"nic.dmz.bridge", "nic.dmz.ip"}, []string{"description", "ipconfig1", "net1"}, model.ClassPending}, // its address is for cloud-init
		"option":         {func(v *guest.VM) { v.Options = map[string]string{"balloon": "512"} }, []string{"options.balloon"}, []string{"balloon", "description"}, model.ClassHot},
		"power":          {func(v *guest.VM) { v.Power = "stopped" }, []string{"power"}, nil, model.ClassRestart},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.hasNoKey()
				w.Node("web-1", nil)
				w.Node("web-2", nil)
				w.Apply()
				time.Sleep(time.Minute) // booted
				before, other := w.Guest(10000), w.Guest(10001)
				c.edit(w.VM("web-1"))
				p := w.Apply()
				require.Len(t, p.Steps, 1, "%s", proxmoxtest.Describe(p))
				require.Equal(t, plan.Update, p.Steps[0].Action)
				require.Equal(t, c.class, p.Steps[0].Class)
				for _, path := range c.paths {
					require.Contains(t, proxmoxtest.Paths(p.Steps[0]), path)
				}
				after := w.Guest(10000)
				keys := changedKeys(merged(before), merged(after))
				require.Equal(t, c.keys, keys)
				require.Equal(t, other.Config, w.Guest(10001).Config)
				w.Converged()
			})
		})
	}
}

func merged(g pve.Guest) map[string]string {
	out := maps.Clone(g.Config)
	maps.Copy(out, g.Pending)
	return out
}

func changedKeys(a, b map[string]string) []string {
	var out []string
	for k := range a {
		if a[k] != b[k] {
			out = append(out, k)
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

func TestPendingIsListedAndNoStep(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("db", nil)
		w.Apply()
		w.VM("db").Cores = 8
		p := w.Apply()
		require.Equal(t, model.ClassPending, p.Steps[0].Class)
		p = w.Plan()
		require.Empty(t, p.Steps)
		require.Len(t, p.Pending, 1)
		require.Equal(t, "cores", p.Pending[0].Path)
		require.EqualValues(t, 2, p.Pending[0].Before)
		require.EqualValues(t, 8, p.Pending[0].After)
		require.Equal(t, "2", w.Guest(10000).Config["cores"])
	})
}

func TestWithdrawalTakesAway(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) {
			v.Tags, v.OnBoot = []string{"web"}, true
			v.Options = map[string]string{"balloon": "512"}
			v.NICs = []guest.NIC{{Name: "lan"}, {Name: "dmz", IP: "dhcp"}}
			v.Disks = []guest.Disk{{Name: "data", Size: 5}}
		})
		w.Node("web-2", nil)
		w.Apply()
		v := w.VM("web-1")
		v.Tags, v.OnBoot, v.Options, v.NICs, v.Disks = nil, false, nil, nil, nil
		w.Drop("web-2")
		w.Apply()
		require.Equal(t, []int{10000}, vmids(w))
		c := w.Guest(10000).Config
		require.Equal(t, "homestak", c["tags"])
		require.Empty(t, c["balloon"])
		require.Empty(t, c["net1"])
		require.Empty(t, c["ipconfig1"])
		require.Empty(t, c["scsi1"])
		require.NotEmpty(t, c["unused0"], "data of a detached disk are kept")
		w.Converged()
	})
}

func TestCloneOfATemplate(t *testing.T) {
	inTime(t, pve.Config{TaskTime: 2200 * time.Millisecond}, func(t *testing.T, w *world) {
		w.Template(9000, "golden")
		w.Node("web-1", func(v *guest.VM) { v.Template = "golden" })
		w.Apply()
		g := w.Guest(10000)
		require.True(t, g.Running)
		require.Equal(t, "web-1", g.Config["name"])
		_, m, _ := owner.ParseDescription(g.Config["description"])
		require.Equal(t, "uuid="+m.UUID, g.Config["smbios1"])
		require.Zero(t, m.VMID)
		w.Converged()
	})
}

func TestDriftIsPutBack(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Node("web-2", nil)
		w.Node("web-3", nil)
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) {
			e.Set(10000, "memory", "512")
			e.Set(10000, "tags", "")
			e.Set(10000, "name", "renamed")
			e.Delete(10001)
			e.Stop(10002)
		})
		p := w.Apply()
		got := map[string][]string{}
		for _, s := range p.Steps {
			got[string(s.Action)+" "+s.Address.String()] = proxmoxtest.Paths(s)
		}
		require.ElementsMatch(t, []string{"memory", "name", "tags"}, got["update vm.web-1"])
		require.Contains(t, got, "create vm.web-2")
		require.Equal(t, []string{"power"}, got["update vm.web-3"])
		w.Converged()
		require.Equal(t, []int{10000, 10001, 10002}, vmids(w))
	})
}

func TestForeignGuestsAreNeverTouched(t *testing.T) {
	inTime(t, pve.Config{Guests: 6}, func(t *testing.T, w *world) {
		before := w.Host.Snapshot().Guests
		w.Node("web-1", nil)
		w.Apply()
		mine := w.Guest(10000)
		w.Host.Edit(func(e *pve.Edit) {
			copied := maps.Clone(mine.Config) // tag and all, but a clone gets a uuid of its own
			copied["name"], copied["smbios1"] = "copy", "uuid=00000000-0000-4000-8000-000000000001"
			e.Add(pve.Guest{VMID: 10001, Kind: "qemu", Config: copied})
			e.Add(pve.Guest{VMID: 10002, Kind: "qemu", Config: map[string]string{"name": "stranger", "tags": "homestak"}})
		})
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.Len(t, p.Unmanaged, len(before)+2)
		w.Drop("web-1")
		w.Apply()
		ids := vmids(w)
		require.NotContains(t, ids, 10000)
		require.Subset(t, ids, []int{10001, 10002})
		for _, g := range before {
			require.Equal(t, g.Config, w.Guest(g.VMID).Config)
			require.Equal(t, g.Running, w.Guest(g.VMID).Running)
		}
	})
}

func TestTwoOfOneIdentityAreLeftAlone(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.hasNoKey()
		w.Node("web-1", nil)
		w.Apply()
		mine := w.Guest(10000)
		w.Host.Edit(func(e *pve.Edit) { e.Add(pve.Guest{VMID: 10050, Kind: "qemu", Config: maps.Clone(mine.Config)}) }) // a restored backup
		w.VM("web-1").Cores = 8
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.True(t, p.Findings.HasErrors())
		require.Len(t, p.Unmanaged, 2)
		require.Contains(t, p.Unmanaged[0].Why, "identity of vm.web-1")
	})
}

func TestStrippedDescriptionMakesNoSecondGuest(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) {
			e.Set(10000, "description", "")
			e.Set(10000, "tags", "")
		})
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.True(t, p.Findings.HasErrors())
		require.Contains(t, p.Findings[0].Summary+p.Findings[0].Detail, "10000")
	})
}

func TestShrinkIsRefused(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.VM("web-1").Disk = 5
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.True(t, p.Findings.HasErrors())
		require.Contains(t, p.Findings[0].Summary, "shrink")
	})
}

func TestProtectedGuestIsNotDeleted(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) { v.Protection = true })
		w.Apply()
		w.Drop("web-1")
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.True(t, p.Findings.HasErrors())
	})
}

func TestMovingACableIsHotEvenWithoutHotplug(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) { v.Options = map[string]string{"hotplug": "disk"} })
		w.Apply()
		w.VM("web-1").NICs = []guest.NIC{{Name: "lan", VLAN: 7}}
		p := w.Apply()
		require.Equal(t, model.ClassHot, p.Steps[0].Class)
		w.Converged()
		require.Empty(t, w.Guest(10000).Pending)
		w.VM("web-1").NICs = []guest.NIC{{Name: "lan", VLAN: 7}, {Name: "dmz"}}
		require.Equal(t, model.ClassPending, w.Plan().Steps[0].Class)
	})
}

func TestNumbersThatAreNone(t *testing.T) {
	less := -1
	v := proxmox.Kinds().Get("vm").New().(*guest.VM)
	v.Preset, v.Image, v.Cores, v.Memory, v.Startup = "", "d", 1, 64, &guest.Startup{Order: &less}
	problems := proxmox.Kinds().Get("vm").Resolve(&model.Resource{Spec: v}, model.Scope{Site: &model.Site{Name: "home"}, Name: "web"})
	require.Len(t, problems, 1)
	require.Equal(t, "startup.order", problems[0].Path)
}
