package proxmox_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// pend lets something wait of guest 10000.
func (w *world) pend(key, value string) {
	w.Host.Edit(func(e *pve.Edit) { e.Pend(10000, key, value) })
}

// reverts checks that one step of class none takes back all that waits: what is in force
// stays as it is, the guest is not restarted, and nothing is left to plan.
func (w *world) reverts(what string) *plan.Plan {
	w.T.Helper()
	before, boots := w.Guest(10000).Config, w.boots()
	require.NotEmpty(w.T, w.Guest(10000).Pending, what)
	p := w.Plan()
	require.Len(w.T, p.Steps, 1, what)
	for _, c := range p.Steps[0].Changes {
		require.Equal(w.T, model.ClassNone, c.Class, "%s: %s", what, proxmoxtest.Describe(p))
	}
	require.Contains(w.T, p.Steps[0].Reason, "reverted", what)
	require.Empty(w.T, p.Pending, "%s: what a step reverts is no longer pending", what)
	require.Empty(w.T, w.Run(p), "%s: %s", what, proxmoxtest.Describe(p))
	after := w.Guest(10000)
	require.Empty(w.T, after.Pending, what)
	for key := range after.Config {
		require.Equal(w.T, strings.TrimSuffix(before[key], ",size=4M"), strings.TrimSuffix(after.Config[key], ",size=4M"), "%s: %s", what, key) // PVE tells the size of a cloud-init drive that it writes again
	}
	require.Len(w.T, after.Config, len(before), what)
	w.Converged()
	require.Equal(w.T, boots, w.boots(), "%s: it was restarted", what)
	return p
}

// boots counts what starts and stops guests.
func (w *world) boots() int {
	n := 0
	for call, times := range w.Host.Snapshot().Requests {
		if strings.Contains(call, "/status/") && strings.HasPrefix(call, "POST") {
			n += times
		}
	}
	return n
}

// TestPendingOfVMIsReverted: a pending change of any key that was made by hand, set or deleted, is reverted, whether the key is
// declared or not.
func TestPendingOfVMIsReverted(t *testing.T) {
	for _, version := range []string{"8.4", "9.2"} {
		c := twoStorages()
		c.Version, c.TaskTime = version, time.Second
		inTime(t, c, func(t *testing.T, w *world) {
			fullHouse(w)
			if version == "8.4" {
				delete(w.VM("web-1").Options, "allow-ksm")
			}
			w.Apply()
			w.Host.Edit(func(e *pve.Edit) {
				e.Snippet("local:snippets/x.yaml")
				e.Start(10000)
			})
			w.VM("web-1").Power, w.VM("web-1").Restart = "running", "allowed"
			w.Converged()
			conf := w.Guest(10000).Config
			tried := 0
			for _, key := range slices.Sorted(maps.Keys(everyOption)) {
				val, k := everyOption[key], index(key)
				if strings.HasPrefix(k, "hostpci") || strings.HasPrefix(k, "usb") || strings.HasPrefix(k, "virtiofs") || k == "rng0" {
					continue // a mapping needs a privilege of its own
				}
				for _, other := range []string{val.byHand, ""} {
					if conf[k] == "" || other != "" && conf[k] == other || guest.AppliesAtOnce(k) || strings.HasPrefix(k, "ci") {
						continue
					}
					w.pend(k, other)
					if len(w.Guest(10000).Pending) == 0 {
						continue
					}
					p := w.reverts(fmt.Sprintf("%s=%q", k, other))
					require.Equal(t, []string{"options." + k}, proxmoxtest.Paths(p.Steps[0]))
					tried++
				}
			}
			require.Greater(t, tried, 40)
			for _, c := range []struct{ key, value, path string }{
				{"cores", "7", "cores"},
				{"cores", "", "cores"},
				{"memory", "current=1024", "memory"},
				{"memory", "", "memory"},
				{"agent", "0", "agent"},
				{"net0", "virtio=BC:24:11:00:00:09,bridge=vmbr0,tag=9", "nic.lan.vlan"},
				{"net0", conf["net0"] + ",rate=3", "nic.lan.rate"},
				{"net0", "", "nic.lan.bridge"},
				{"net5", "virtio=BC:24:11:00:00:55,bridge=vmbr0", "nic.net5.bridge"},
				{"scsi1", "", "disk.a.size"},
				{"virtio0", "", "disk.b.size"},
				{"sata0", "", "disk.c.size"},
				{"scsi0", "", "disk.root.size"},
				{"scsi1", conf["scsi1"] + ",cache=writeback", "disk.a"},
				{"ide2", "", "ide2"},
				{"smbios1", "uuid=00000000-0000-4000-8000-000000000000", "smbios1"},
				{"vmgenid", "00000000-0000-4000-8000-000000000000", "vmgenid"},
				{"args", "-snapshot", "args"},
				{"numa3", "cpus=0,memory=512", "options.numa3"},
			} {
				w.pend(c.key, c.value)
				require.Contains(t, proxmoxtest.Paths(w.reverts(c.key + "=" + c.value).Steps[0]), c.path, c.key)
			}
		})
	}
}

// TestPendingOfContainerIsReverted does the same for a container, where PVE's deletion
// would leave the value that waits.
func TestPendingOfContainerIsReverted(t *testing.T) {
	for _, version := range []string{"8.4", "9.2"} {
		inTime(t, pve.Config{Version: version, TaskTime: time.Second}, func(t *testing.T, w *world) {
			w.vlanAware("vmbr0")
			w.ct("cache", func(c *guest.CT) {
				everyKey(c)
				if version == "8.4" {
					delete(c.Options, "entrypoint")
					delete(c.Options, "env")
				}
			})
			w.Apply()
			w.Converged()
			conf := w.Guest(10000).Config
			for _, c := range []struct{ key, value, path string }{
				{"tty", "1", "options.tty"},
				{"tty", "", "options.tty"},
				{"console", "1", "options.console"},
				{"console", "", "options.console"},
				{"cmode", "console", "options.cmode"},
				{"cmode", "", "options.cmode"},
				{"ostype", "alpine", "options.ostype"},
				{"debug", "1", "options.debug"},
				{"arch", "arm64", "options.arch"},
				{"features", "nesting=0", "features"},
				{"features", "", "features"},
				{"timezone", "host", "timezone"},
				{"timezone", "", "timezone"},
				{"nameserver", "8.8.8.8", "nameserver"},
				{"nameserver", "", "nameserver"},
				{"searchdomain", "y.test", "searchdomain"},
				{"searchdomain", "", "searchdomain"},
				{"mp0", strings.Replace(conf["mp0"], "mp=/srv", "mp=/else", 1), "disk.data.path"},
				{"mp0", "", "disk.data.size"},
				{"rootfs", strings.Replace(conf["rootfs"], "acl=1", "acl=0", 1), "disk.root.options.acl"},
				{"net10", "name=eth10,bridge=vmbr0,hwaddr=BC:24:11:00:00:10,type=veth", "nic.net10.bridge"},
				{"mp7", "local-lvm:vm-10000-disk-7,mp=/x", "mp7"},
			} {
				w.pend(c.key, c.value)
				p := w.reverts(c.key + "=" + c.value)
				require.Contains(t, proxmoxtest.Paths(p.Steps[0]), c.path, c.key)
			}
			if version != "8.4" {
				w.pend("entrypoint", "/bin/x")
				require.Equal(t, []string{"options.entrypoint"}, proxmoxtest.Paths(w.reverts("entrypoint").Steps[0]))
			}
		})
	}
}

// TestPendingOfUndeclaredKeyIsReverted, with its value in force shown as what it will be:
// an option that no file names keeps the value set by hand, and its pending change is reverted.
func TestPendingOfUndeclaredKeyIsReverted(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.ct("cache", func(c *guest.CT) { c.Restart = "allowed" })
		w.Apply()
		w.pend("tty", "1")
		p := w.reverts("tty")
		require.Equal(t, []plan.Change{{Path: "options.tty", Before: 1, Class: model.ClassNone}}, p.Steps[0].Changes)
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "cmode", "shell") })
		w.Converged()
		w.pend("cmode", "console")
		p = w.reverts("cmode")
		require.Equal(t, []plan.Change{{Path: "options.cmode", Before: "console", After: "shell", Class: model.ClassNone}}, p.Steps[0].Changes)
	})
}

// TestLineThatLeavesIsReverted: a key is declared while the guest runs, so that it waits,
// and then its line is taken out again. Nothing of it is left.
func TestLineThatLeavesIsReverted(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(_ *testing.T, w *world) {
		for key, value := range map[string]string{"tty": "1", "console": "0", "cmode": "shell", "debug": "1"} {
			w.lineComesAndGoes("ct.cache "+key, func(on bool) {
				w.ct("cache", func(c *guest.CT) {
					if on {
						c.Options = map[string]string{key: value}
					}
				})
			})
		}
		w.lineComesAndGoes("ct.cache features", func(on bool) {
			w.ct("cache", func(c *guest.CT) {
				if on {
					c.Features = []string{"nesting"}
				}
			})
		})
		w.lineComesAndGoes("ct.cache timezone", func(on bool) {
			w.ct("cache", func(c *guest.CT) {
				if on {
					c.Timezone = "Europe/Berlin"
				}
			})
		})
	})
	inTime(t, pve.Config{TaskTime: time.Second}, func(_ *testing.T, w *world) {
		w.vlanAware("vmbr0")
		for key, e := range edits() {
			if e.seed || strings.Contains(key, "gone") || key == "boot" {
				continue
			}
			w.lineComesAndGoes("vm "+key, func(on bool) {
				w.Node("web-1", func(v *guest.VM) {
					v.Options = map[string]string{"balloon": "512", "tablet": "0", "hotplug": "0"}
					v.Disks, v.NICs = []guest.Disk{{Name: "data", Size: 5}}, []guest.NIC{{Name: "lan", MAC: "BC:24:11:00:00:09"}}
					if on && key != "disk grown" && key != "disk gone" {
						e.do(v)
					}
				})
			})
		}
	})
}

// lineComesAndGoes applies a declaration with a line and then without.
func (w *world) lineComesAndGoes(what string, declare func(on bool)) {
	w.T.Helper()
	declare(false)
	w.Apply()
	w.Converged()
	time.Sleep(time.Minute)
	before, boots := w.Guest(10000), w.boots()
	require.Empty(w.T, before.Pending, what)
	declare(true)
	w.Apply()
	declare(false)
	w.Apply()
	after := w.Guest(10000)
	require.Empty(w.T, after.Pending, what)
	p := w.Plan()
	require.Empty(w.T, p.Steps, "%s: %s", what, proxmoxtest.Describe(p))
	require.Empty(w.T, p.Pending, what)
	require.Equal(w.T, boots, w.boots(), what)
	for key, value := range before.Config {
		if key != "description" {
			require.Equal(w.T, value, after.Config[key], "%s: %s", what, key)
		}
	}
}

// TestRevertThenDelete: of a container a value in force and another one that waits leave
// together; PVE takes that in two requests only.
func TestRevertThenDelete(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		ct := w.ct("cache", func(c *guest.CT) { c.Options = map[string]string{"cmode": "shell"} })
		w.Apply()
		w.Converged()
		w.pend("cmode", "console")
		ct.Options = map[string]string{}
		p := w.Apply()
		require.Equal(t, []string{"options.cmode"}, proxmoxtest.Paths(p.Steps[0]))
		require.Equal(t, model.ClassPending, p.Steps[0].Class)
		require.Equal(t, map[string]string{"delete": "cmode"}, w.Guest(10000).Pending)
		w.Converged()
		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000); e.Start(10000) })
		require.NotContains(t, w.Guest(10000).Config, "cmode")
		w.Converged()
	})
}

// TestRevertBesideOtherChanges goes with them, and before PVE stops the guest for them.
func TestRevertBesideOtherChanges(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		ct := w.ct("cache", func(c *guest.CT) { c.Restart, c.Disks = "allowed", srv(2) })
		w.Apply()
		w.pend("tty", "1")
		ct.Disks[0].Storage, ct.Memory = "local-zfs", 1024
		p := w.Apply()
		require.Contains(t, proxmoxtest.Paths(p.Steps[0]), "options.tty")
		g := w.Guest(10000)
		require.Empty(t, g.Pending)
		require.NotContains(t, g.Config, "tty", "it never took effect")
		require.Equal(t, "1024", g.Config["memory"])
		require.Contains(t, g.Config["mp0"], "local-zfs:")
		w.Converged()
	})
}

// TestPendingThatNoTokenRevertsStays, is listed, and restarts nothing.
func TestPendingThatNoTokenRevertsStays(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) { v.Restart = "allowed" })
		w.Apply()
		w.pend("hostpci0", "0000:01:00.0")
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.Len(t, p.Pending, 1)
		require.Contains(t, p.Pending[0].Why, "qm set VMID --revert hostpci0")
	})
}

// TestDetachedRootDiskIsReverted: it is in use until the next restart, whatever its slot.
func TestDetachedRootDiskIsReverted(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) {
			v.Disks = []guest.Disk{{Name: "root", Bus: "sata"}, {Name: "data", Size: 3, Bus: "sata"}}
		})
		w.Apply()
		w.Converged()
		_, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/config", map[string]any{"delete": "sata0,sata1"})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Equal(t, "sata0,sata1", w.Guest(10000).Pending["delete"])
		require.NotEmpty(t, w.Guest(10000).Pending["boot"], "PVE takes it out of the order, too")
		p := w.reverts("root")
		require.Contains(t, strings.Join(proxmoxtest.Paths(p.Steps[0]), " "), "disk.root.size")
		require.Empty(t, p.Findings)
		require.Len(t, volumesOf(w, 10000), 3, "root, data and cloud-init")
	})
}

// TestNICsThatCouldNotBePluggedStayInThePlan: PVE stores a card of a container and then
// fails. The container does not have it, so the next plan has to show it.
func TestNICsThatCouldNotBePluggedStayInThePlan(t *testing.T) {
	for name, wrong := range map[string]func(*guest.CTNIC){
		"stored":          func(n *guest.CTNIC) { n.Bridge, n.LinkDown = "vmbr9", true },
		"old device gone": func(n *guest.CTNIC) { n.Bridge, n.MAC = "vmbr9", "BC:24:11:00:00:77" },
		"nothing stored":  func(n *guest.CTNIC) { n.Bridge = "vmbr9" },
	} {
		t.Run(name, func(t *testing.T) {
			unlisted := pve.Faults(pve.Fault{Method: "GET", Pattern: "/nodes/father/network", Status: 403}) // so the plan does not refuse it
			inTime(t, pve.Config{TaskTime: time.Second, Fault: unlisted}, func(t *testing.T, w *world) {
				ct := w.ct("cache", func(c *guest.CT) { c.NICs = []guest.CTNIC{{Name: "lan"}, {Name: "dmz"}} })
				w.Apply()
				w.Converged()
				before := w.Guest(10000).Config
				wrong(&ct.NICs[0])
				if name != "stored" { // where another card fails, too, PVE stores neither
					ct.NICs = append(ct.NICs, guest.CTNIC{Name: "new", Bridge: "vmbr9"})
				}
				p := w.Plan()
				shown := proxmoxtest.Paths(p.Steps[0])
				failed := w.Run(p)[p.Steps[0].Address]
				require.ErrorContains(t, failed, "vmbr9")
				after := w.Guest(10000)
				require.Empty(t, after.Pending, "%v", failed)
				require.Equal(t, before["net0"], after.Config["net0"])
				require.NotContains(t, after.Config, "net2")
				p = w.Plan()
				require.Len(t, p.Steps, 1, "it is still the same container")
				require.Equal(t, shown, proxmoxtest.Paths(p.Steps[0]))
				ct.NICs = []guest.CTNIC{{Name: "lan"}, {Name: "dmz"}}
				w.Apply()
				w.Converged()
			})
		})
	}
}

// TestOptionsSetByHandAreShown with -v: they are not drift, stay, and cost neither a step nor a request.
func TestOptionsSetByHandAreShown(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) { v.Options = map[string]string{"vga": "virtio"} })
		w.ct("cache", nil)
		w.Apply()
		asked := func() int {
			n := 0
			for _, times := range w.Host.Snapshot().Requests {
				n += times
			}
			return n
		}
		start := asked()
		require.Empty(t, w.Plan().Undeclared)
		usual := asked() - start
		w.Host.Edit(func(e *pve.Edit) {
			e.Set(10000, "tty", "1")
			e.Set(10001, "numa", "1")
			e.Set(10001, "tablet", "1") // its default
			e.Set(10001, "boot", "order=net0;scsi0")
		})
		start = asked()
		p := w.Plan()
		require.Equal(t, usual, asked()-start)
		require.Empty(t, p.Steps)
		require.Equal(t, []model.Setting{
			{Address: model.Address{Kind: "ct", Name: "cache"}, Path: "options.tty", Value: "1"},
			{Address: model.Address{Kind: "vm", Name: "web-1"}, Path: "options.boot", Value: "order=net0;scsi0"},
			{Address: model.Address{Kind: "vm", Name: "web-1"}, Path: "options.numa", Value: "1"},
		}, p.Undeclared)
		var short, all strings.Builder
		p.Text(&short, plan.TextOptions{})
		p.Text(&all, plan.TextOptions{All: true})
		require.NotContains(t, short.String(), "numa")
		require.Contains(t, all.String(), "options.numa is 1: set by hand and not declared, so it is not drift")
		delete(w.VM("web-1").Options, "vga")
		require.Equal(t, []string{"options.vga"}, proxmoxtest.Paths(w.Apply().Steps[0]), "one that a file named is drift")
	})
}
