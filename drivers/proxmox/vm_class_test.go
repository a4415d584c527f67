package proxmox_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

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

// TestSeedingIsSaid: what makes cloud-init start anew is named, and nothing else is.
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

// TestMovedDigestMeansLookAgain: PVE renews the digest for its own bookkeeping too.
// A write that meets another one looks again, goes on if nothing that we look at
// changed, and else leaves everything to the next plan.
func TestMovedDigestMeansLookAgain(t *testing.T) {
	const other = "local-lvm:vm-10000-disk-9,size=5G"
	for what, of := range map[string]struct {
		do         func(*guest.VM)
		key, value string // what we look at
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
