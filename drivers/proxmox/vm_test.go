package proxmox_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
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
			v.Password = "hunter22"
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
		require.Regexp(t, `^\$5\$`, c["cipassword"])
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

func TestUnmanagedGuestsAreNeverTouched(t *testing.T) {
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

// TestNothingIsLeftToDo: values that PVE keeps in another form than they were
// written in are no differences.
func TestNothingIsLeftToDo(t *testing.T) {
	for name, edit := range map[string]func(*world, *guest.VM){
		"description with blanks at its end": func(_ *world, v *guest.VM) { v.Description = "notes\n\n" },
		"blank description":                  func(_ *world, v *guest.VM) { v.Description = " \n" },
		"two keys in one secret": func(w *world, _ *guest.VM) {
			w.Site.Secrets.Values["ssh_keys"]["both"] = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCx x@home\n\nssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCy y@home\n"
		},
		"boot order": func(_ *world, v *guest.VM) { v.Options = map[string]string{"boot": "order=scsi0;net0"} },
		"UEFI": func(_ *world, v *guest.VM) {
			v.Options = map[string]string{"bios": "ovmf", "efidisk0": "local-lvm:1,efitype=4m"}
		},
		"startup without anything": func(_ *world, v *guest.VM) { v.Startup = &guest.Startup{} },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.Node("web-1", func(v *guest.VM) { edit(w, v) })
				w.Apply()
				w.Converged()
				for _, g := range w.Host.Snapshot().Guests {
					require.Empty(t, g.Config["unused0"])
				}
			})
		})
	}
}

// TestCloneTakesOverNothing: what a template has and the files have not goes at once,
// or the next plan would show it.
func TestCloneTakesOverNothing(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(_ *testing.T, w *world) {
		w.Template(9000, "golden")
		w.Host.Edit(func(e *pve.Edit) {
			for k, v := range map[string]string{
				"ipconfig0": "ip=dhcp", "ipconfig1": "ip=10.9.9.9/24", "startup": "order=2", "nameserver": "9.9.9.9", "searchdomain": "else.test",
				"sshkeys": "ssh-rsa%20AAAA%20old", "protection": "1",
			} {
				e.Set(9000, k, v)
			}
		})
		w.Site.DNS, w.Site.Domain, w.Site.Secrets = nil, "", nil
		w.Node("web-1", func(v *guest.VM) {
			v.Template = "golden"
			v.NICs = []guest.NIC{{Name: "lan"}, {Name: "dmz"}}
		})
		w.Apply()
		w.Converged()
	})
}

// edit is one change of a declared guest, and the PVE keys that it goes into.
type edit struct {
	do   func(*guest.VM)
	keys []string
	seed bool // for cloud-init: PVE has nothing pending, the guest reads it when it boots
}

func option(key, value string) edit {
	return edit{do: func(v *guest.VM) { v.Options[key] = value }, keys: []string{key}}
}

func without(key string) edit {
	return edit{do: func(v *guest.VM) { delete(v.Options, key) }, keys: []string{key}}
}

// edits are changes of the guest that edited declares.
func edits() map[string]edit {
	nic := func(n guest.NIC) func(*guest.VM) {
		return func(v *guest.VM) { v.NICs = []guest.NIC{n} }
	}
	out := map[string]edit{
		"cores": {do: func(v *guest.VM) { v.Cores = 4 }, keys: []string{"cores"}}, "sockets": {do: func(v *guest.VM) { v.Sockets = 2 }, keys: []string{"sockets"}}, "memory": {do: func(v *guest.VM) { v.Memory = 4096 }, keys: []string{"memory"}},
		"agent": {do: func(v *guest.VM) { v.Agent = false }, keys: []string{"agent"}}, "tags": {do: func(v *guest.VM) { v.Tags = []string{"x"} }, keys: []string{"tags"}},
		"description": {do: func(v *guest.VM) { v.Description = "x" }, keys: []string{"description"}}, "onboot": {do: func(v *guest.VM) { v.OnBoot = true }, keys: []string{"onboot"}},
		"protection": {do: func(v *guest.VM) { v.Protection = true }, keys: []string{"protection"}},
		"vlan":       {do: nic(guest.NIC{Name: "lan", VLAN: 5}), keys: []string{"net0"}}, "mac": {do: nic(guest.NIC{Name: "lan", MAC: "BC:24:11:00:00:07"}), keys: []string{"net0"}, seed: true},
		"ip":          {do: nic(guest.NIC{Name: "lan", IP: "10.0.0.9/24"}), keys: []string{"ipconfig0"}, seed: true},
		"model":       {do: nic(guest.NIC{Name: "lan", Model: "e1000"}), keys: []string{"net0"}},
		"firewall":    {do: nic(guest.NIC{Name: "lan", Firewall: true}), keys: []string{"net0"}},
		"mtu":         {do: nic(guest.NIC{Name: "lan", MTU: 1400}), keys: []string{"net0"}},
		"bridge mtu":  {do: nic(guest.NIC{Name: "lan", MTU: 1}), keys: []string{"net0"}},
		"queues":      {do: nic(guest.NIC{Name: "lan", Queues: 4}), keys: []string{"net0"}},
		"rate":        {do: nic(guest.NIC{Name: "lan", Rate: 12.5}), keys: []string{"net0"}},
		"link down":   {do: nic(guest.NIC{Name: "lan", LinkDown: true}), keys: []string{"net0"}},
		"trunks":      {do: nic(guest.NIC{Name: "lan", Trunks: []string{"20-29", "5"}}), keys: []string{"net0"}},
		"all of nic":  {do: nic(guest.NIC{Name: "lan", VLAN: 7, Queues: 2, Rate: 1, Firewall: true, Trunks: []string{"5"}}), keys: []string{"net0"}},
		"ip6":         {do: nic(guest.NIC{Name: "lan", IP6: "fd00::9/64", Gateway6: "fd00::1"}), keys: []string{"ipconfig0"}, seed: true},
		"nic added":   {do: func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan"}, {Name: "dmz"}} }, keys: []string{"net1"}},
		"disk added":  {do: func(v *guest.VM) { v.Disks = append(v.Disks, guest.Disk{Name: "more", Size: 1}) }, keys: []string{"scsi2"}},
		"virtio disk": {do: func(v *guest.VM) { v.Disks = append(v.Disks, guest.Disk{Name: "more", Size: 1, Bus: "virtio"}) }, keys: []string{"virtio0"}},
		"sata disk":   {do: func(v *guest.VM) { v.Disks = append(v.Disks, guest.Disk{Name: "more", Size: 1, Bus: "sata"}) }, keys: []string{"sata0"}},
		"disk gone":   {do: func(v *guest.VM) { v.Disks = nil }, keys: []string{"scsi1"}}, "disk grown": {do: func(v *guest.VM) { v.Disks[0].Size = 6 }, keys: []string{"scsi1"}},
		"cpulimit gone": without("cpulimit"), "balloon gone": without("balloon"), "tablet gone": without("tablet"), "usb gone": without("usb1"), "vga gone": without("vga"),
		"ciupgrade": {do: func(v *guest.VM) { v.Options["ciupgrade"] = "1" }, keys: []string{"ciupgrade"}, seed: true},
	}
	for key, val := range map[string]string{
		"cpu": "host", "numa": "1", "bios": "ovmf", "machine": "q35", "ostype": "l24", "scsihw": "lsi", "vga": "std", "boot": "order=scsi0", "acpi": "0", "kvm": "0",
		"cpulimit": "2", "cpuunits": "300", "balloon": "1024", "shares": "100", "tablet": "1", "usb0": "spice", "vcpus": "2", "watchdog": "ib700", "serial1": "socket",
		"migrate_downtime": "1", "vmstatestorage": "local-lvm", "rng0": "/dev/urandom", "efidisk0": "local-lvm:1", "localtime": "1", "keyboard": "de",
	} {
		out[key] = option(key, val)
	}
	for name, slot := range map[string]string{"ide": "ide0", "sata": "sata5", "scsi": "scsi7"} { // what PVE plugs into a running guest needs a medium
		out["empty drive on "+name] = option(slot, "none,media=cdrom")
		out["disc on "+name] = option(slot, "local:iso/a.iso,media=cdrom")
	}
	out["hotplug usb"], out["hotplug memory"] = option("hotplug", "usb"), option("hotplug", "memory,disk")
	out["balloon off"] = option("balloon", "0")
	return out
}

func edited(w *world, hotplug, restart, power string) {
	w.vlanAware("vmbr0")
	w.iso("local:iso/a.iso")
	w.Node("web-1", func(v *guest.VM) {
		v.Power, v.Restart = power, restart
		v.Disks, v.NICs = []guest.Disk{{Name: "data", Size: 5}}, []guest.NIC{{Name: "lan", MAC: "BC:24:11:00:00:09"}}
		v.Options = map[string]string{"cpulimit": "1", "balloon": "512", "tablet": "0", "usb1": "spice", "vga": "virtio"}
		if hotplug != "" {
			v.Options["hotplug"] = hotplug
		}
		if strings.Contains(hotplug, "memory") {
			v.Options["numa"] = "1"
		}
	})
	w.Apply()
	w.Converged()
}

// waiting reports whether PVE holds back any of the keys.
func waiting(g pve.Guest, keys []string) bool {
	gone := strings.FieldsFunc(g.Pending["delete"], func(r rune) bool { return r == ',' || r == ' ' })
	return slices.ContainsFunc(keys, func(k string) bool { return g.Pending[k] != "" || slices.Contains(gone, k) })
}

// TestHotplugChangesBesideAnAddedDisk: a disk is created by a request of its own, which the features of hotplug in force
// when the plan was made decide, not those that the same step sets.
func TestHotplugChangesBesideAnAddedDisk(t *testing.T) {
	for _, c := range []struct {
		was, becomes string // "" is the default, which has disk
		restarts     bool
	}{{"", "usb", false}, {"disk", "", false}, {"usb", "", true}, {"usb", "disk", true}} {
		t.Run(fmt.Sprintf("%q becomes %q", c.was, c.becomes), func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				edited(w, c.was, "allowed", "running")
				v := w.VM("web-1")
				v.Disks = append(v.Disks, guest.Disk{Name: "more", Size: 1})
				if v.Options["hotplug"] = c.becomes; c.becomes == "" {
					delete(v.Options, "hotplug")
				}
				p := w.Apply()
				require.Equal(t, c.restarts, p.Steps[0].Class == model.ClassRestart, "%s", proxmoxtest.Describe(p))
				w.Converged()
				require.Equal(t, c.becomes, w.Guest(10000).Config["hotplug"])
				require.NotEmpty(t, w.Guest(10000).Config["scsi2"])
			})
		})
	}
}

// TestClassIsWhatPVEDoes compares what the plan says of a change with what the host
// then does: hold it back, or not.
func TestClassIsWhatPVEDoes(t *testing.T) {
	for _, power := range []string{"running", "stopped"} {
		for _, hotplug := range []string{"", "0", "network", "disk,usb", "network,disk,usb,cpu,memory"} {
			for name, e := range edits() {
				t.Run(fmt.Sprintf("%s %q %s", power, hotplug, name), func(t *testing.T) {
					inTime(t, pve.Config{}, func(t *testing.T, w *world) {
						edited(w, hotplug, "never", power)
						time.Sleep(time.Minute) // it runs for a while
						e.do(w.VM("web-1"))
						p := w.Plan()
						if len(p.Steps) == 0 {
							return // it is so already
						}
						class := p.Steps[0].Class
						require.Empty(t, w.Run(p))
						inUse := waiting(w.Guest(10000), e.keys)
						switch {
						case power == "stopped":
							require.Equal(t, model.ClassNone, class)
							require.False(t, inUse)
						case e.seed && !inUse:
							require.Equal(t, model.ClassPending, class)
						default:
							require.Equal(t, inUse, class == model.ClassPending, proxmoxtest.Describe(p)+"class %s, pending %v", class, w.Guest(10000).Pending)
						}
						q := w.Plan()
						require.Empty(t, q.Steps, "%s", proxmoxtest.Describe(q))
						require.Equal(t, inUse || e.seed && power == "running", len(q.Pending) > 0, "what waits is listed")
					})
				})
			}
		}
	}
}

// TestRestartAllowedAppliesIt by one clean restart, after which nothing waits.
func TestRestartAllowedAppliesIt(t *testing.T) {
	for name, e := range edits() {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				edited(w, "", "allowed", "running")
				time.Sleep(time.Minute)
				before := w.Host.Snapshot().Requests
				e.do(w.VM("web-1"))
				p := w.Plan()
				if len(p.Steps) == 0 {
					return
				}
				require.NotEqual(t, model.ClassPending, p.Steps[0].Class)
				require.Empty(t, w.Run(p))
				restarts := 0
				for call, n := range w.Host.Snapshot().Requests {
					if strings.Contains(call, "reboot") {
						restarts += n - before[call]
					}
				}
				require.Equal(t, p.Steps[0].Class == model.ClassRestart, restarts == 1, "%d restarts for class %s", restarts, p.Steps[0].Class)
				require.True(t, w.Guest(10000).Running)
				left := w.Guest(10000).Pending
				if p.Steps[0].Class == model.ClassHot {
					delete(left, "boot") // PVE puts a new disc at its end, which is worth no restart
				}
				require.Empty(t, left)
				w.Converged()
			})
		})
	}
}

// TestRestartBesideAMove: the step's class is that of the worse of two, and the
// restart is made all the same.
func TestRestartBesideAMove(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		edited(w, "", "allowed", "running")
		w.VM("web-1").Cores, w.VM("web-1").Disks[0].Storage = 5, "local-zfs"
		p := w.Apply()
		require.Equal(t, model.ClassMigrate, p.Steps[0].Class)
		w.Converged()
		require.Equal(t, "5", w.Guest(10000).Config["cores"])
	})
}

// TestHotplugThatFailsIsPending: PVE keeps the value and says why it is not in force;
// the next pass has nothing to do.
func TestHotplugThatFailsIsPending(t *testing.T) {
	unlisted := pve.Faults(pve.Fault{Method: "GET", Pattern: "/nodes/father/network", Status: 403}) // so the plan does not refuse it
	inTime(t, pve.Config{Fault: unlisted}, func(t *testing.T, w *world) {
		edited(w, "", "never", "running")
		w.VM("web-1").NICs[0].Bridge = "vmbr9" // which the host does not have
		p := w.Plan()
		require.Equal(t, model.ClassHot, p.Steps[0].Class)
		failed := w.Run(p)
		require.ErrorContains(t, failed[p.Steps[0].Address], "pending until its next restart")
		require.ErrorContains(t, failed[p.Steps[0].Address], "hotplug problem")
		p = w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.Len(t, p.Pending, 1)
	})
}

// TestSeedingIsSaid: changes that make cloud-init run again are named, and no others.
func TestSeedingIsSaid(t *testing.T) {
	const sentence = "as on a new machine"
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		edited(w, "", "never", "running")
		for name, c := range map[string]struct {
			do   func()
			said bool
		}{
			"keys":   {func() { delete(w.Site.Secrets.Values["ssh_keys"], "dev") }, true},
			"dns":    {func() { w.Site.DNS = []string{"9.9.9.9"} }, true},
			"domain": {func() { w.Site.Domain = "else.test" }, true},
			"user":   {func() { w.Site.VMUser = "ops" }, true},
			"ip":     {func() { w.VM("web-1").NICs[0].IP = "10.0.0.8/24" }, true},
			"tags":   {func() { w.VM("web-1").Tags = []string{"a"} }, false},
			"notes":  {func() { w.VM("web-1").Description = "n" }, false},
			"onboot": {func() { w.VM("web-1").OnBoot = true }, false},
			"cores":  {func() { w.VM("web-1").Cores = 3 }, false},
		} {
			c.do()
			p := w.Plan()
			require.Len(t, p.Steps, 1, name)
			require.Equal(t, c.said, strings.Contains(p.Steps[0].Reason, sentence), "%s: %s", name, p.Steps[0].Reason)
			if c.said {
				require.Equal(t, model.ClassPending, p.Steps[0].Class)
			}
			require.Empty(t, w.Run(p))
			w.Converged()
		}
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "name", "renamed") })
		require.Contains(t, w.Plan().Steps[0].Reason, sentence)
	})
}

// TestSeedingWaitsForABoot: until PVE starts the guest again, what was written for
// cloud-init is pending, and with leave to restart a lost restart is made up for.
func TestSeedingWaitsForABoot(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		edited(w, "", "never", "running")
		time.Sleep(time.Hour)
		w.Site.DNS = []string{"9.9.9.9"}
		w.Apply()
		for range 2 {
			p := w.Plan()
			require.Empty(t, p.Steps)
			require.Len(t, p.Pending, 1)
			require.Equal(t, "cloud-init", p.Pending[0].Path)
			require.Contains(t, p.Pending[0].Why, "as on a new machine")
			time.Sleep(time.Hour)
		}
		w.VM("web-1").Cores = 5 // the ownership tag is written without forgetting it
		w.Apply()
		w.VM("web-1").Restart = "allowed"
		p := w.Apply()
		require.Equal(t, []string{"pending"}, proxmoxtest.Paths(p.Steps[0]))
		require.Equal(t, model.ClassRestart, p.Steps[0].Class)
		require.Contains(t, p.Steps[0].Reason, "as on a new machine")
		w.Converged()
		require.Empty(t, w.Plan().Pending)
		time.Sleep(time.Hour)
		require.Empty(t, w.Plan().Pending)
	})
}

// TestAChangedDigestIsReadAgain: PVE renews the digest for its own bookkeeping too.
// A write that meets another one looks again, goes on if nothing that we look at
// changed, and else leaves everything to the next plan.
func TestAChangedDigestIsReadAgain(t *testing.T) {
	const other = "local-lvm:vm-10000-disk-9,size=5G"
	for what, of := range map[string]struct {
		do         func(*guest.VM)
		key, value string // of the configuration
	}{
		"/config":    {func(v *guest.VM) { v.Cores = 4 }, "cores", "7"},
		"/resize":    {func(v *guest.VM) { v.Disks[0].Size = 7 }, "scsi1", other},
		"/move_disk": {func(v *guest.VM) { v.Disks[0].Storage = "local-zfs" }, "scsi1", other},
	} {
		for name, c := range map[string]struct {
			key, value string
			goesOn     bool
		}{
			"bookkeeping": {"meta", "creation-qemu=9", true},
			"ours":        {of.key, of.value, false},
			"taken away":  {"description", "", false},
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				var sent atomic.Int32
				conf := twoStorages()
				conf.Fault = func(r *http.Request) (int, bool) {
					if strings.HasSuffix(r.URL.Path, what) && r.Method != http.MethodGet {
						sent.Add(1)
					}
					return 0, false
				}
				inTime(t, conf, func(t *testing.T, w *world) {
					w.hasNoKey()
					edited(w, "", "never", "running")
					of.do(w.VM("web-1"))
					p := w.Plan()
					require.Len(t, p.Steps, 1)
					sent.Store(0)
					w.Host.Edit(func(e *pve.Edit) { e.Set(10000, c.key, c.value) })
					before := w.Guest(10000).Config
					failed := w.Run(p)
					if c.goesOn {
						require.Empty(t, failed)
						require.EqualValues(t, 2, sent.Load(), "once with the old digest, once with the new")
						w.Converged()
						return
					}
					require.Len(t, failed, 1)
					require.Equal(t, before, w.Guest(10000).Config, "nothing was written")
				})
			})
		}
	}
}

// value is one option as the files have it, and as it may be written by hand.
type value struct{ declared, byHand string }

// everyOption holds every key of the API table that an option may set.
var everyOption = map[string]value{
	"acpi": {"0", "1"}, "allow-ksm": {"0", "1"}, "audio0": {"device=AC97", "device=ich9-intel-hda,driver=spice"},
	"autostart": {"1", "0"}, "balloon": {"512", "1024"}, "bios": {"ovmf", "seabios"}, "boot": {"order=scsi0;net0", "order=net0;scsi0"},
	"cicustom": {"vendor=local:snippets/x.yaml", "vendor=local:snippets/y.yaml"}, "citype": {"nocloud", "configdrive2"}, "ciupgrade": {"1", "0"},
	"cpu": {"x86-64-v2-AES,flags=+aes;-pcid", "host"}, "cpulimit": {"2", "1.5"}, "cpuunits": {"200", "300"},
	"efidisk0": {"local-lvm:1,efitype=4m,pre-enrolled-keys=1", ""}, // by hand it cannot become another one
	"ide[n]":   {"none,media=cdrom", "local:iso/x.iso,media=cdrom"},
	"freeze":   {"1", "0"}, "hostpci[n]": {"mapping=gpu", "mapping=gpu,pcie=1"}, "hotplug": {"disk,network", "usb"},
	"keyboard": {"de", "fr"}, "kvm": {"0", "1"}, "localtime": {"1", "0"}, "machine": {"q35", "pc"},
	"migrate_downtime": {"0.5", "1"}, "migrate_speed": {"10", "20"}, "numa": {"true", "0"}, "numa[n]": {"cpus=0;1,memory=2048", "cpus=0,memory=1024"},
	"ostype": {"l24", "l26"}, "reboot": {"0", "1"}, "rng0": {"/dev/urandom", "source=/dev/random"}, "scsihw": {"virtio-scsi-pci", "lsi"},
	"serial[n]": {"socket", ""}, "shares": {"500", "600"}, "startdate": {"2020-01-01", "now"},
	"tablet": {"0", "1"}, "tdf": {"1", "0"}, "tpmstate0": {"local-lvm:1,version=v2.0", ""}, "usb[n]": {"mapping=key", "spice"},
	"vcpus": {"1", "2"}, "vga": {"virtio,memory=32", "type=std"}, "virtiofs[n]": {"share", "dirid=share,cache=never"},
	"vmstatestorage": {"local-lvm", "local-zfs"}, "watchdog": {"i6300esb,action=reset", "model=ib700"},
}

// index names one key of a family: the highest that the defaults leave free.
func index(key string) string {
	return strings.Replace(key, "[n]", map[bool]string{true: "0", false: "1"}[key == "ide[n]"], 1) // q35 has no ide1
}

// fullHouse declares a stopped guest that has every option and every attribute.
func fullHouse(w *world) {
	order := 3
	w.Node("web-1", func(v *guest.VM) {
		v.Power, v.Options = "stopped", map[string]string{}
		v.Tags, v.Description, v.OnBoot, v.Startup = []string{"Web", "prod"}, "notes \n", true, &guest.Startup{Order: &order}
		v.Disks = []guest.Disk{{Name: "a", Size: 1}, {Name: "b", Size: 1, Bus: "virtio"}, {Name: "c", Size: 1, Bus: "sata", Remove: true}}
		v.NICs = []guest.NIC{fullNIC(), {Name: "dmz", IP: "dhcp"}}
		for key, val := range everyOption {
			if val.declared != "" {
				v.Options[index(key)] = val.declared
			}
		}
	})
}

func twoStorages() pve.Config {
	return pve.Config{Storages: append(pve.DefaultStorages(), pve.Storage{Name: "local-zfs", Type: "zfspool", Content: []string{"images", "rootdir"}})}
}

// TestEveryDocumentedKeyIsSpokenFor: what a VM can be told is an attribute, an
// option, or refused with a reason; nothing is left to chance.
func TestEveryDocumentedKeyIsSpokenFor(t *testing.T) {
	for _, call := range [][2]string{{"POST", "/nodes/n/qemu"}, {"PUT", "/nodes/n/qemu/100/config"}} {
		m, _, _ := pveapi.Lookup(call[0], call[1])
		for key, v := range m.Params {
			if v.Until != "" || key == "background_delay" {
				continue // PVE 9 dropped it
			}
			attribute, refused := guest.SetBy(key), guest.RefusedKey(key)
			said := 0
			for _, is := range []bool{attribute != "", refused != "", everyOption[key].declared != ""} {
				if is {
					said++
				}
			}
			require.Equal(t, 1, said, "%s: attribute %q, refused %q, option %v", key, attribute, refused, everyOption[key])
		}
	}
}

// TestEveryKeyConvergesOnce: all of them together are written once, and never differ again.
func TestEveryKeyConvergesOnce(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		fullHouse(w)
		w.Apply()
		c := w.Guest(10000).Config
		for key := range w.VM("web-1").Options {
			require.Contains(t, c, key)
		}
		for _, key := range []string{"name", "cores", "memory", "tags", "description", "onboot", "startup", "agent", "ciuser", "sshkeys", "nameserver", "searchdomain", "net1", "ipconfig1", "scsi1", "virtio0", "sata0"} {
			require.Contains(t, c, key)
		}
		w.Converged()
		writes := w.Host.Snapshot().Writes
		w.Apply()
		require.Equal(t, writes, w.Host.Snapshot().Writes)
		w.Host.Edit(func(e *pve.Edit) { e.Start(10000) })
		w.VM("web-1").Power = "running"
		w.Converged()
	})
}

// TestEveryKeyChangedByHandIsFound under its own name and no other, and is reverted.
func TestEveryKeyChangedByHandIsFound(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		fullHouse(w)
		w.Apply()
		for _, key := range slices.Sorted(maps.Keys(everyOption)) {
			val, k := everyOption[key], index(key)
			if val.byHand == "" {
				continue
			}
			was := w.Guest(10000).Config[k]
			for _, other := range []string{val.byHand, ""} {
				if (&guest.VM{}).SameValue(k, val.declared, other) {
					continue
				}
				w.Host.Edit(func(e *pve.Edit) { e.Set(10000, k, other) })
				p := w.Plan()
				require.Len(t, p.Steps, 1, k)
				require.Equal(t, []string{"options." + k}, proxmoxtest.Paths(p.Steps[0]))
				require.Empty(t, w.Run(p), k)
				require.Equal(t, was, w.Guest(10000).Config[k])
				w.Converged()
			}
		}
	})
}

// TestAttributesChangedByHandAreFound does the same for the keys with attributes.
func TestAttributesChangedByHandAreFound(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		order := 2
		w.Node("web-1", func(v *guest.VM) {
			v.Power, v.OnBoot, v.Protection, v.Tags, v.Startup = "stopped", true, true, []string{"web"}, &guest.Startup{Order: &order}
			v.NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.5/24", MAC: "BC:24:11:00:00:09", VLAN: 5}}
		})
		w.Apply()
		for _, c := range []struct{ key, byHand, path string }{
			{"name", "other", "name"},
			{"cores", "7", "cores"},
			{"cores", "", "cores"},
			{"memory", "current=1024", "memory"},
			{"memory", "", "memory"},
			{"tags", "homestak", "tags"},
			{"onboot", "0", "onboot"},
			{"protection", "", "protection"},
			{"agent", "0", "agent"},
			{"startup", "order=3", "startup.order"},
			{"ciuser", "root", "ci_user"},
			{"sshkeys", "ssh-rsa%20AAAA", "ssh_keys"},
			{"nameserver", "9.9.9.9", "dns"},
			{"searchdomain", "x.test", "domain"},
			{"net0", "virtio=BC:24:11:00:00:08,bridge=vmbr0,tag=5", "nic.lan.mac"},
			{"net0", "virtio=BC:24:11:00:00:09,bridge=vmbr0", "nic.lan.vlan"},
			{"ipconfig0", "ip=10.0.0.6/24,gw=10.0.0.1", "nic.lan.ip"},
			{"ipconfig0", "ip=10.0.0.5/24", "nic.lan.gateway"},
		} {
			w.Host.Edit(func(e *pve.Edit) { e.Set(10000, c.key, c.byHand) })
			p := w.Plan()
			require.Len(t, p.Steps, 1, "%v", c)
			require.Equal(t, []string{c.path}, proxmoxtest.Paths(p.Steps[0]))
			require.Empty(t, w.Run(p))
			w.Converged()
		}
	})
}

// TestOtherSpellingsOnTheHost: values that were written in another form on the host.
func TestOtherSpellingsOnTheHost(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		order, down := 3, 20
		w.Node("web-1", func(v *guest.VM) {
			v.Description, v.Tags, v.Startup = "notes", []string{"web", "prod"}, &guest.Startup{Order: &order, Down: &down}
			v.NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.5/24", MAC: "bc:24:11:00:00:09"}}
		})
		w.Site.DNS = []string{"10.0.0.1", "10.0.0.2"}
		w.Apply()
		was := w.Guest(10000).Config
		keys := api.DecodeSSHKeys(was["sshkeys"])
		slices.Reverse(keys)
		for key, other := range map[string]string{
			"memory": "current=2048", "tags": "WEB prod,homestak;web", "description": was["description"] + "\n \n", "startup": "down=20,order=3",
			"net0": "bridge=vmbr0,macaddr=bc:24:11:00:00:09,model=virtio", "ipconfig0": "gw=10.0.0.1,ip=10.0.0.5/24", "agent": "enabled=1,type=virtio",
			"nameserver": "10.0.0.1,10.0.0.2", "sshkeys": api.EncodeSSHKeys(append(keys, "", keys[0])), "smbios1": was["smbios1"] + ",manufacturer=YWNtZQ==,base64=1",
			"scsi0": strings.Replace(was["scsi0"], "10G", "10240M", 1), "vmgenid": "11111111-1111-4111-8111-111111111111",
		} {
			w.Host.Edit(func(e *pve.Edit) { e.Set(10000, key, other) })
			p := w.Plan()
			require.Empty(t, p.Steps, "%s: %s", key, proxmoxtest.Describe(p))
		}
	})
}

// TestStateDrivesAreOrderedOnce, moved with their content, and never recreated.
func TestStateDrivesAreOrderedOnce(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) {
			v.Options = map[string]string{"bios": "ovmf", "efidisk0": "local-lvm:1,efitype=4m", "tpmstate0": "local-lvm:1,version=v2.0"}
		})
		w.Apply()
		w.Converged()
		require.Len(t, volumesOf(w, 10000), 4)
		w.VM("web-1").Options["efidisk0"] = "local-zfs:1,efitype=4m"
		p := w.Apply()
		require.Equal(t, []string{"options.efidisk0"}, proxmoxtest.Paths(p.Steps[0]))
		require.Equal(t, model.ClassMigrate, p.Steps[0].Class)
		require.Contains(t, w.Guest(10000).Config["efidisk0"], "local-zfs:")
		require.Len(t, volumesOf(w, 10000), 4, "moved, not recreated")
		w.Converged()
		w.VM("web-1").Options["tpmstate0"] = "local-zfs:1,version=v2.0"
		p = w.Plan()
		require.Empty(t, p.Steps)
		require.Contains(t, fmt.Sprint(p.Findings), "cannot be moved while the guest runs")
		w.VM("web-1").Options["tpmstate0"] = "local-lvm:1,version=v2.0"
		w.VM("web-1").Options["efidisk0"] = "local-zfs:1,efitype=2m"
		p = w.Plan()
		require.Empty(t, p.Steps)
		require.Contains(t, fmt.Sprint(p.Findings), "efidisk0")
	})
}

// TestCloneKeepsItsStateDrives: the template's are copied with the rest, and an order
// for them makes no second ones.
func TestCloneKeepsItsStateDrives(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		golden := map[string]any{"vmid": 9000, "name": "golden", "scsi0": "local-lvm:2", "bios": "ovmf", "efidisk0": "local-lvm:1,efitype=4m"}
		for _, path := range []string{"/nodes/father/qemu", "/nodes/father/qemu/9000/template"} {
			upid, err := w.Driver.Post(t.Context(), path, golden)
			require.NoError(t, err)
			require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
			golden = map[string]any{}
		}
		w.Node("web-1", func(v *guest.VM) {
			v.Template, v.Options = "golden", map[string]string{"bios": "ovmf", "efidisk0": "local-lvm:1,efitype=4m"}
		})
		w.Apply()
		w.Converged()
		require.Len(t, volumesOf(w, 10000), 3, "root, firmware state, cloud-init")
		require.Empty(t, w.Guest(10000).Config["unused0"])
	})
}

// TestOtherPartsOfAKeyStay: an attribute that shares its key with a setting made by hand writes only its own part.
func TestOtherPartsOfAKeyStay(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) { v.Power = "stopped" })
		w.Apply()
		card := w.Guest(10000).Config["net0"] // with the address that PVE made up
		w.Host.Edit(func(e *pve.Edit) {
			e.Set(10000, "agent", "enabled=1,fstrim_cloned_disks=1")
			e.Set(10000, "net0", card+",firewall=0,host-tunnel=1")
		})
		w.Converged()
		v := w.VM("web-1")
		v.Agent, v.NICs = false, []guest.NIC{{Name: "lan", IP: "10.0.0.9/24", VLAN: 7}}
		w.Apply()
		w.Converged()
		require.Equal(t, "enabled=0,fstrim_cloned_disks=1", w.Guest(10000).Config["agent"])
		require.Equal(t, "ip=10.0.0.9/24,gw=10.0.0.1", w.Guest(10000).Config["ipconfig0"])
		require.ElementsMatch(t, strings.Split(card+",firewall=0,host-tunnel=1,tag=7", ","), strings.Split(w.Guest(10000).Config["net0"], ","))
	})
}

// volumesOf lists the volumes that carry a VMID, on all storages.
func volumesOf(w *world, vmid int) []string {
	var out []string
	for _, list := range w.Host.Snapshot().Volumes {
		for _, v := range list {
			if v.VMID == vmid {
				out = append(out, v.ID)
			}
		}
	}
	slices.Sort(out)
	return out
}

// drawVM draws what the files may say of a guest.
func drawVM(rt *rapid.T) func(*guest.VM) {
	flip := func(label string) bool { return rapid.Bool().Draw(rt, label) }
	some := func(label string, words ...string) []string {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(words), 0, len(words), rapid.ID[string]).Draw(rt, label)
	}
	drawn := guest.VM{
		Power: rapid.SampledFrom([]string{"running", "stopped"}).Draw(rt, "power"), Agent: flip("agent"), OnBoot: flip("onboot"), Protection: flip("protection"),
		Cores: rapid.IntRange(1, 8).Draw(rt, "cores"), Sockets: rapid.IntRange(1, 2).Draw(rt, "sockets"), Memory: rapid.SampledFrom([]int{512, 1000, 2048}).Draw(rt, "memory"),
		Tags: some("tags", "Web", "db", "x_1", "a.b", "c+d"), Description: rapid.SampledFrom([]string{"", "notes", "a\n\nb  ", "100% ü #"}).Draw(rt, "description"),
	}
	if flip("startup") {
		number := func(label string) *int { n := rapid.IntRange(0, 9).Draw(rt, label); return &n }
		drawn.Startup = &guest.Startup{Order: number("order"), Down: number("down")}
	}
	for i, name := range some("disks", "data", "logs", "swap") {
		drawn.Disks = append(drawn.Disks, guest.Disk{
			Name: name, Size: 1 + i, Bus: rapid.SampledFrom([]string{"", "scsi", "virtio", "sata"}).Draw(rt, "bus"),
			Storage: rapid.SampledFrom([]string{"", "local-zfs"}).Draw(rt, "storage"), Remove: flip("remove"),
		})
	}
	for i, name := range some("nics", "lan", "dmz", "san") {
		drawn.NICs = append(drawn.NICs, guest.NIC{
			Name: name, VLAN: rapid.IntRange(0, 3).Draw(rt, "vlan"), IP: rapid.SampledFrom([]string{"dhcp", fmt.Sprintf("10.0.%d.5/24", i)}).Draw(rt, "ip"),
			MAC: rapid.SampledFrom([]string{"", fmt.Sprintf("bc:24:11:00:00:%02x", i)}).Draw(rt, "mac"),
		})
		n := &drawn.NICs[i]
		n.Firewall, n.LinkDown = flip("firewall"), flip("link_down")
		n.Rate = rapid.SampledFrom([]float64{0, 0.125, 3, 1000}).Draw(rt, "rate")
		n.Trunks = rapid.SliceOfN(rapid.SampledFrom([]string{"2", "3", "40", "3-9", "39-41"}), 0, 4).Draw(rt, "trunks")
		n.IP6 = rapid.SampledFrom([]string{"", "auto", "dhcp", fmt.Sprintf("fd00:%d::5/64", i), fmt.Sprintf("FD00:%d:0:0::5/64", i)}).Draw(rt, "ip6")
		if strings.Contains(n.IP6, "/") && flip("gateway6") {
			n.Gateway6 = "fe80::1"
		}
		if n.Model = rapid.SampledFrom([]string{"", "virtio", "e1000", "vmxnet3"}).Draw(rt, "model"); n.Model == "" || n.Model == "virtio" {
			n.MTU = rapid.SampledFrom([]int{0, 1, 576, 1500}).Draw(rt, "mtu")
			n.Queues = rapid.IntRange(0, 8).Draw(rt, "queues")
		}
		if n.IP != "dhcp" {
			n.Gateway = fmt.Sprintf("10.0.%d.1", i)
		}
	}
	options := map[string]string{}
	for _, key := range some("options", slices.Sorted(maps.Keys(everyOption))...) {
		if val := everyOption[key]; val.declared != "" && key != "boot" { // which names what may not be there
			options[index(key)] = rapid.SampledFrom([]string{val.declared, cmp.Or(val.byHand, val.declared)}).Draw(rt, key)
		}
	}
	if node := index("numa[n]"); options[node] != "" { // a machine whose topology has another size than its memory does not start
		options[node] = fmt.Sprintf("cpus=0,memory=%d", drawn.Memory)
	}
	return func(v *guest.VM) {
		preset, image := v.Preset, v.Image
		*v = drawn
		v.Preset, v.Image, v.Restart = preset, image, "never"
		v.Options = maps.Clone(options)
	}
}

// TestRandomGuestsConvergeOnce: whatever the files say, one apply is enough, and
// neither the order of what they say nor another pass changes anything.
func TestRandomGuestsConvergeOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		edit := drawVM(rt)
		turn := func(n int) int { return rapid.IntRange(0, max(n-1, 0)).Draw(rt, "turn") }
		story := func(_ *testing.T, w *world) {
			w.vlanAware("vmbr0")
			w.iso("local:iso/x.iso")
			w.Host.Edit(func(e *pve.Edit) { // A start reads them.
				e.Snippet("local:snippets/x.yaml")
				e.Snippet("local:snippets/y.yaml")
			})
			w.Node("web-1", edit)
			w.Apply()
			w.Converged()
			v := w.VM("web-1")
			v.Tags, v.Disks, v.NICs = rotated(v.Tags, turn(len(v.Tags))), rotated(v.Disks, turn(len(v.Disks))), rotated(v.NICs, turn(len(v.NICs)))
			for key, val := range v.Options {
				v.Options[key] = reordered(key, val)
			}
			w.Converged()
			edit(v)
			w.Host.Edit(func(e *pve.Edit) { e.Start(10000) })
			v.Power = "running"
			w.Converged()
		}
		inTime(t, twoStorages(), story)
	})
}

func rotated[T any](list []T, by int) []T {
	return append(slices.Clone(list[by:]), list[:by]...)
}

// reordered says the same in another order, where a value has parts without one.
func reordered(key, val string) string {
	switch {
	case key == "hotplug":
		parts := strings.Split(val, ",")
		slices.Reverse(parts)
		return strings.Join(parts, ";")
	case strings.Contains(val, ",") && strings.Contains(strings.Split(val, ",")[0], "="):
		parts := strings.Split(val, ",")
		slices.Reverse(parts)
		return strings.Join(parts, ",")
	default:
		return val
	}
}

// writes records the keys that requests to /config set and delete.
type writes struct {
	mu   sync.Mutex
	keys map[string]bool
}

func (r *writes) record(req *http.Request, body []byte, _ int) {
	if req.Method != http.MethodPut || !strings.HasSuffix(req.URL.Path, "/config") {
		return
	}
	var form map[string]any
	if json.Unmarshal(body, &form) != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range form {
		switch key {
		case "digest":
		case "delete":
			for gone := range strings.SplitSeq(fmt.Sprint(form[key]), ",") {
				r.keys[gone] = true
			}
		default:
			r.keys[key] = true
		}
	}
}

// TestRandomEditsWriteExactlyTheirKeys: of a change of the files, the keys that it
// means are written and no others; then nothing is left to do.
func TestRandomEditsWriteExactlyTheirKeys(t *testing.T) {
	all := edits()
	names := slices.Sorted(maps.Keys(all))
	rapid.Check(t, func(rt *rapid.T) {
		chosen := map[string]string{} // by what they write: of two edits of one thing the second would undo the first
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, 6, rapid.ID[string]).Draw(rt, "edits") {
			about := all[name].keys[0]
			for _, block := range []string{"net", "ipconfig", "scsi", "virtio", "sata"} {
				if rest := strings.TrimLeft(strings.TrimPrefix(about, block), "0123456789"); rest == "" {
					about = map[string]string{"net": "nic", "ipconfig": "nic"}[block] + "s"
				}
			}
			chosen[about] = name
		}
		power := rapid.SampledFrom([]string{"running", "stopped"}).Draw(rt, "power")
		restart := rapid.SampledFrom([]string{"never", "allowed"}).Draw(rt, "restart")
		seen := &writes{keys: map[string]bool{}}
		c := twoStorages()
		c.Record = seen.record
		inTime(t, c, func(t *testing.T, w *world) {
			defer func() {
				if t.Failed() {
					t.Log("edits:", chosen, "power:", power, "restart:", restart)
				}
			}()
			edited(w, "", restart, power)
			v := w.VM("web-1")
			before := shape(v)
			expect := map[string]bool{}
			clear(seen.keys)
			for _, name := range chosen {
				all[name].do(v)
				for _, key := range all[name].keys {
					expect[key] = true
				}
				if all[name].seed && power == "running" {
					expect["description"] = true // the ownership tag says when it was written
				}
				if name == "disk grown" || name == "boot" { // the one is no key, the other is so already
					delete(expect, all[name].keys[0])
				}
			}
			grown := slices.Contains(slices.Collect(maps.Values(chosen)), "disk grown")
			if shape(v) != before && (grown || len(expect) > 0) {
				expect["description"] = true // the ownership tag names slots and options, and is written along with any step
			}
			w.Apply()
			require.Equal(t, slices.Sorted(maps.Keys(expect)), slices.Sorted(maps.Keys(seen.keys)), "%v", chosen)
			w.Converged()
		})
	})
}

// shape is what the ownership tag remembers of a declared guest.
func shape(v *guest.VM) string {
	var out []string
	for _, d := range v.Disks {
		out = append(out, d.Name)
	}
	for _, n := range v.NICs {
		out = append(out, n.Name)
	}
	options := map[string]string{"cpu": "", "ostype": "", "scsihw": "", "serial0": "", "ciupgrade": ""} // which every guest has
	maps.Copy(options, v.Options)
	return fmt.Sprint(out, slices.Sorted(maps.Keys(options)))
}
