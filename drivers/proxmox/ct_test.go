package proxmox_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// ct declares a container, unpacked from a template that is downloaded.
func (w *world) ct(name string, edit func(*guest.CT)) *guest.CT { return w.CT(name, edit) }

func (w *world) declare(name string, t *guest.Template) { w.Declare(name, t) }

func TestCreateContainer(t *testing.T) {
	inTime(t, pve.Config{TaskTime: 2 * time.Second}, func(t *testing.T, w *world) {
		order := 3
		w.ct("cache", func(c *guest.CT) {
			c.Tags, c.Description, c.OnBoot, c.Protection = []string{"Prod", "web"}, "the front\nsecond line ü 100%", true, true
			c.Startup = &guest.Startup{Order: &order}
			c.Disks = []guest.CTDisk{{Name: "data", Size: 40, Path: "/srv/data/", Backup: true, Options: map[string]string{"mountoptions": "noatime"}}}
			c.NICs = []guest.CTNIC{
				{Name: "lan", IP: "10.0.0.5/24", IP6: "fd00::5/64", Gateway6: "fd00::1", Firewall: true},
				{Name: "dmz", VLAN: 12, MAC: "bc:24:11:00:00:09", MTU: 1400},
			}
			c.Features, c.Timezone, c.Password = []string{"nesting"}, "Europe/Berlin", "hunter22"
			c.Options = map[string]string{"cpulimit": "1.5", "console": "false", "tty": "4"}
		})
		p := w.Apply()
		require.Len(t, p.Steps, 2)
		g := w.Guest(10000)
		require.Equal(t, "lxc", g.Kind)
		require.True(t, g.Running)
		c := g.Config
		require.Equal(t, []string{"cache", "2", "2048", "512", "homestak;prod;web", "1", "1", "1"},
			[]string{c["hostname"], c["cores"], c["memory"], c["swap"], c["tags"], c["onboot"], c["protection"], c["unprivileged"]})
		require.Contains(t, c["rootfs"], "size=10G")
		require.Contains(t, c["mp0"], "mp=/srv/data,backup=1,mountoptions=noatime,size=40G")
		require.Contains(t, c["net0"], "name=eth0,bridge=vmbr0,firewall=1,gw=10.0.0.1,gw6=fd00::1,hwaddr=BC:24:11:")
		require.Contains(t, c["net0"], ",ip=10.0.0.5/24,ip6=fd00::5/64,type=veth")
		require.Contains(t, c["net1"], "hwaddr=BC:24:11:00:00:09,mtu=1400,tag=12")
		require.Equal(t, []string{"10.0.0.1", "home.test", "Europe/Berlin", "nesting=1", "1.5", "0", "4"},
			[]string{c["nameserver"], c["searchdomain"], c["timezone"], c["features"], c["cpulimit"], c["console"], c["tty"]})
		_, m, found := owner.ParseDescription(c["description"])
		require.True(t, found)
		require.Contains(t, c["net0"], "hwaddr="+m.MAC)
		require.NotContains(t, c["description"], "hunter22")
		require.NotContains(t, c["description"], "ssh-ed25519")
		w.Converged()
		time.Sleep(30 * time.Second) // the clock of the bubble: the node's status is sampled
		w.Converged()
		writes := w.Host.Snapshot().Writes
		w.Apply()
		require.Equal(t, writes, w.Host.Snapshot().Writes)
	})
}

// TestContainerEditsWriteExactlyTheEditedKeys edits one thing at a time.
func TestContainerEditsWriteExactlyTheEditedKeys(t *testing.T) {
	one := 1
	lan := func(n guest.CTNIC) []guest.CTNIC { n.Name = "lan"; return []guest.CTNIC{n} }
	data := func(d guest.CTDisk) []guest.CTDisk {
		d.Name, d.Size, d.Path = "data", max(d.Size, 3), "/srv"+d.Path
		return []guest.CTDisk{d}
	}
	for name, c := range map[string]struct {
		edit  func(*guest.CT)
		keys  []string // that differ in the configuration afterwards, pending ones too
		class model.Class
	}{
		"cores":               {func(c *guest.CT) { c.Cores = 4 }, []string{"cores"}, model.ClassNone},
		"memory":              {func(c *guest.CT) { c.Memory = 4096 }, []string{"memory"}, model.ClassHot},
		"no swap":             {func(c *guest.CT) { c.Swap = 0 }, []string{"swap"}, model.ClassHot},
		"tags":                {func(c *guest.CT) { c.Tags = []string{"b", "A"} }, []string{"tags"}, model.ClassNone},
		"description":         {func(c *guest.CT) { c.Description = "new" }, []string{"description"}, model.ClassNone},
		"onboot":              {func(c *guest.CT) { c.OnBoot = true }, []string{"onboot"}, model.ClassNone},
		"protection":          {func(c *guest.CT) { c.Protection = true }, []string{"protection"}, model.ClassNone},
		"startup":             {func(c *guest.CT) { c.Startup = &guest.Startup{Order: &one} }, []string{"startup"}, model.ClassNone},
		"hostname":            {func(c *guest.CT) { c.Hostname = "other" }, []string{"hostname"}, model.ClassNone},
		"nesting waits":       {func(c *guest.CT) { c.Features = []string{"nesting"} }, []string{"features"}, model.ClassPending},
		"nameserver restarts": {func(c *guest.CT) { c.Nameserver, c.Restart = []string{"9.9.9.9"}, "allowed" }, []string{"nameserver"}, model.ClassRestart},
		"timezone":            {func(c *guest.CT) { c.Timezone = "host" }, []string{"timezone"}, model.ClassPending},
		"root grows":          {func(c *guest.CT) { c.Disk = 12 }, []string{"rootfs"}, model.ClassHot},
		"mount point grows":   {func(c *guest.CT) { c.Disks = data(guest.CTDisk{Size: 5}) }, []string{"mp0"}, model.ClassHot},
		"mount point moves":   {func(c *guest.CT) { c.Disks = data(guest.CTDisk{Path: "/else"}) }, []string{"mp0"}, model.ClassPending},
		"backup":              {func(c *guest.CT) { c.Disks, c.Restart = data(guest.CTDisk{Backup: true}), "allowed" }, []string{"mp0"}, model.ClassRestart},
		"mount point goes":    {func(c *guest.CT) { c.Disks, c.Restart = nil, "allowed" }, []string{"description", "mp0", "unused0"}, model.ClassRestart},
		"mount point comes": {func(c *guest.CT) {
			c.Disks = append(c.Disks, guest.CTDisk{Name: "more", Size: 2, Path: "/more"})
		}, []string{"description", "mp1"}, model.ClassHot},
		"storage":     {func(c *guest.CT) { c.Disks[0].Storage, c.Restart = "fast", "allowed" }, []string{"description", "mp0"}, model.ClassMigrate},
		"vlan":        {func(c *guest.CT) { c.NICs = lan(guest.CTNIC{VLAN: 7}) }, []string{"net0"}, model.ClassHot},
		"address":     {func(c *guest.CT) { c.NICs = lan(guest.CTNIC{IP: "10.0.0.9/24"}) }, []string{"net0"}, model.ClassHot},
		"mac":         {func(c *guest.CT) { c.NICs = lan(guest.CTNIC{MAC: "BC:24:11:AA:AA:AA"}) }, []string{"description", "net0"}, model.ClassHot},
		"nic added":   {func(c *guest.CT) { c.NICs = append(lan(guest.CTNIC{}), guest.CTNIC{Name: "dmz"}) }, []string{"description", "net1"}, model.ClassHot},
		"nic renamed": {func(c *guest.CT) { c.NICs = []guest.CTNIC{{Name: "wan"}} }, []string{"description", "net0", "net1"}, model.ClassHot},
		"hot option":  {func(c *guest.CT) { c.Options = map[string]string{"cpulimit": "0.5"} }, []string{"cpulimit", "description"}, model.ClassHot},
		"option":      {func(c *guest.CT) { c.Options = map[string]string{"tty": "4"} }, []string{"description", "tty"}, model.ClassPending},
		"power":       {func(c *guest.CT) { c.Power = "stopped" }, nil, model.ClassRestart},
	} {
		t.Run(name, func(t *testing.T) {
			fast := pve.Storage{Name: "fast", Type: "lvmthin", Content: []string{"images", "rootdir"}}
			inTime(t, pve.Config{TaskTime: time.Second, Storages: append(pve.DefaultStorages(), fast)}, func(t *testing.T, w *world) {
				ct := w.ct("cache", func(c *guest.CT) { c.Disks = data(guest.CTDisk{}) })
				w.ct("other", nil)
				w.Apply()
				time.Sleep(time.Minute) // booted
				before, other := w.Guest(10000), w.Guest(10001)
				c.edit(ct)
				p := w.Apply()
				require.Len(t, p.Steps, 1, "%s", proxmoxtest.Describe(p))
				require.Equal(t, plan.Update, p.Steps[0].Action)
				require.Equal(t, c.class, p.Steps[0].Class, "%s", proxmoxtest.Describe(p))
				after := w.Guest(10000)
				require.Equal(t, c.keys, keysThatDiffer(before, after))
				require.Equal(t, other, w.Guest(10001))
				require.Equal(t, ct.Power == "running", after.Running)
				if n := after.Config["net0"]; n != "" && name != "mac" {
					require.Contains(t, n, between(before.Config["net0"], "hwaddr=", ","))
				}
				left := w.Plan()
				require.Empty(t, left.Steps, "%s", proxmoxtest.Describe(left))
				require.Equal(t, c.class == model.ClassPending, len(left.Pending) > 0)
			})
		})
	}
}

func between(s, from, to string) string {
	_, s, _ = strings.Cut(s, from)
	s, _, _ = strings.Cut(s, to)
	return s
}

func keysThatDiffer(a, b pve.Guest) []string {
	seen := map[string]bool{}
	for _, m := range []map[string]string{a.Config, b.Config, a.Pending, b.Pending} {
		for k := range m {
			seen[k] = true
		}
	}
	value := func(g pve.Guest, k string) string { return cmp.Or(g.Pending[k], g.Config[k]) }
	var out []string
	for k := range seen {
		if value(a, k) != value(b, k) {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

func TestContainerIsRemovedAndReplaced(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		ct := w.ct("cache", nil)
		w.Apply()
		mac := between(w.Guest(10000).Config["net0"], "hwaddr=", ",")
		ct.Unprivileged = false
		p := w.Apply()
		require.Len(t, p.Steps, 1)
		require.Equal(t, []any{plan.Replace, model.ClassDataLoss}, []any{p.Steps[0].Action, p.Steps[0].Class})
		require.NotContains(t, w.Guest(10000).Config, "unprivileged")
		require.NotEqual(t, mac, between(w.Guest(10000).Config["net0"], "hwaddr=", ","))
		w.Converged()
		ct.Protection = true
		w.Apply()
		w.Drop("cache")
		require.True(t, w.Plan().Findings.HasErrors(), "protected")
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "protection", "") })
		w.Apply()
		s := w.Host.Snapshot()
		require.Empty(t, s.Guests)
		require.Empty(t, s.Volumes["local-lvm"])
		w.Converged()
	})
}

// TestVolumesOfAContainerMoveByDigest: what moves or grows a volume says of which
// configuration it speaks, also behind writes of our own.
func TestVolumesOfAContainerMoveByDigest(t *testing.T) {
	conf := pve.Config{TaskTime: time.Second, Storages: append(pve.DefaultStorages(), pve.Storage{Name: "fast", Type: "zfspool", Content: []string{"rootdir"}})}
	inTime(t, conf, func(t *testing.T, w *world) {
		ct := w.ct("cache", func(c *guest.CT) {
			c.Restart, c.Disk = "allowed", 8
			c.Disks = []guest.CTDisk{{Name: "data", Size: 3, Path: "/srv"}}
		})
		w.Apply()
		o := w.tap()
		ct.Cores, ct.Disk = 3, 12
		ct.Disks = []guest.CTDisk{{Name: "data", Size: 5, Path: "/srv", Storage: "fast"}}
		w.Apply()
		w.Converged()
		require.Contains(t, w.Guest(10000).Config["mp0"], "fast:")
		sent := 0
		for line := range strings.Lines(o.plain.String()) {
			if strings.Contains(line, `"disk":`) || strings.Contains(line, `"volume":`) {
				require.Contains(t, line, `"digest":"`)
				sent++
			}
		}
		require.Equal(t, 3, sent, "one moved, two grown")
	})
}

func srv(size int) []guest.CTDisk {
	return []guest.CTDisk{{Name: "data", Size: size, Path: "/srv"}}
}

// A detached mount is attached again with its data, of a running or stopped container, before and after the restart
// that detaches it.
func TestDetachedMountComesBack(t *testing.T) {
	for name, c := range map[string]struct{ power, restart string }{
		"stopped": {"stopped", "never"}, "running": {"running", "never"}, "restarted": {"running", "allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, twoStorages(), func(t *testing.T, w *world) {
				ct := w.ct("cache", func(ct *guest.CT) { ct.Power, ct.Restart, ct.Disks = c.power, c.restart, srv(5) })
				w.Apply()
				volume, all := file(w.Guest(10000).Config["mp0"]), volumesOf(w, 10000)
				require.Len(t, all, 2)
				ct.Disks = nil
				w.Apply()
				w.Converged()
				require.Equal(t, all, volumesOf(w, 10000), "its data stay")
				ct.Tags = []string{"a"} // the ownership tag is written without forgetting it
				w.Apply()

				ct.Disks = srv(5)
				w.Apply()
				w.Converged()
				require.Equal(t, all, volumesOf(w, 10000))
				require.Equal(t, volume, file(w.Guest(10000).Config["mp0"]))
				require.Empty(t, w.Guest(10000).Config["unused0"])
				require.Empty(t, w.Guest(10000).Pending)

				ct.Disks = nil
				w.Apply()
				ct.Power = "stopped"
				w.Apply()
				ct.Disks = srv(8)
				ct.Disks[0].Storage = "local-zfs" // it may come back bigger, and elsewhere
				w.Apply()
				w.Converged()
				require.Len(t, volumesOf(w, 10000), 2)
				require.Contains(t, w.Guest(10000).Config["mp0"], "local-zfs:")
				require.Contains(t, w.Guest(10000).Config["mp0"], "size=8G")
			})
		})
	}
}

// TestDetachedByHandFromARunningGuest: until the restart the volume is still in use, so
// it is kept, and no empty one is ordered in its place.
func TestDetachedByHandFromARunningGuest(t *testing.T) {
	for name, c := range map[string]struct{ url, slot string }{
		"container": {"/nodes/father/lxc/10000/config", "mp0"}, "machine": {"/nodes/father/qemu/10000/config", "sata0"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, twoStorages(), func(t *testing.T, w *world) {
				if name == "container" {
					w.ct("db", func(ct *guest.CT) { ct.Disks = srv(5) })
				} else {
					w.Node("db", func(vm *guest.VM) { vm.Disks = []guest.Disk{{Name: "data", Size: 5, Bus: "sata"}} })
				}
				w.Apply()
				volume, all := file(w.Guest(10000).Config[c.slot]), volumesOf(w, 10000)
				require.NotEmpty(t, volume)
				w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "unused0", "local-zfs:vm-10000-disk-9") }) // the program cannot know what it is
				_, err := w.Driver.Put(t.Context(), c.url, map[string]any{"delete": c.slot})
				require.NoError(t, err)
				require.NotEmpty(t, w.Guest(10000).Pending)
				w.Apply()
				require.Empty(t, w.Guest(10000).Pending)
				w.Converged()
				require.Equal(t, volume, file(w.Guest(10000).Config[c.slot]))
				w.Host.Edit(func(e *pve.Edit) { e.Stop(10000); e.Start(10000) })
				w.Converged()
				require.Equal(t, all, volumesOf(w, 10000))
			})
		})
	}
}

// TestRemovedMountTakesItsData where the files said so before it left them.
func TestRemovedMountTakesItsData(t *testing.T) {
	for _, power := range []string{"stopped", "running"} {
		t.Run(power, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				ct := w.ct("cache", func(c *guest.CT) {
					c.Power = power
					c.Disks = append(srv(5), guest.CTDisk{Name: "logs", Size: 2, Path: "/logs"})
				})
				w.Apply()
				ct.Disks[0].Remove = true
				p := w.Apply()
				require.Equal(t, []string{"disk.data.remove"}, proxmoxtest.Paths(p.Steps[0]))
				require.Equal(t, model.ClassNone, p.Steps[0].Class)
				w.Converged()
				ct.Disks = nil
				p = w.Apply()
				require.Contains(t, p.Steps[0].Reason, "the data of disk data are removed")
				require.NotContains(t, p.Steps[0].Reason, "disk logs")
				w.Converged()
				if power == "running" { // both wait for the restart; then the data of the one go
					require.Len(t, volumesOf(w, 10000), 3)
					w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
					p = w.Apply() // PVE let go of them as it stopped
					require.Contains(t, p.Steps[0].Reason, "the data of disk data are removed")
				}
				w.Converged()
				require.Len(t, volumesOf(w, 10000), 2, "root and logs")
				_, m, _ := owner.ParseDescription(w.Guest(10000).Config["description"])
				require.NotContains(t, m.Detached, "data")
				require.Contains(t, m.Detached, "logs")
			})
		})
	}
}

// mountsLife detaches two disks of a stopped container, of which one goes with its
// data, and takes the other one back.
func mountsLife(t *testing.T, r *storyRun) {
	t.Helper()
	w := r.world(t, pve.Config{TaskTime: time.Second})
	ct := w.ct("cache", func(c *guest.CT) {
		c.Power = "stopped"
		c.Disks = append(srv(5), guest.CTDisk{Name: "logs", Size: 2, Path: "/logs", Remove: true})
	})
	settle(w)
	volume := file(w.Guest(10000).Config["mp0"])
	ct.Disks = nil
	settle(w)
	require.Len(t, volumesOf(w, 10000), 2, "root and data")
	ct.Disks = srv(6)
	settle(w)
	g := w.Guest(10000)
	require.Len(t, volumesOf(w, 10000), 2)
	require.Equal(t, volume, file(g.Config["mp0"]))
	require.Contains(t, g.Config["mp0"], "size=6G")
	require.NotContains(t, fmt.Sprint(g.Config), "unused")
	_, m, _ := owner.ParseDescription(g.Config["description"])
	require.Empty(t, m.Detached)
}

func TestEveryRequestOfMountsMayFail(t *testing.T) {
	runWithFaults(t, "mounts", []int{596, 500, -1}, mountsLife)
}

// TestRootOfAContainerCannotLeave the files.
func TestRootOfAContainerCannotLeave(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.ct("cache", func(c *guest.CT) { c.Disks = []guest.CTDisk{{Name: "root", Remove: true}} })
		_, found := w.Site.Want("father")
		require.Contains(t, fmt.Sprint(found), "the root disk cannot be removed from the files")
	})
}

// A pending change of a mount has the size from the time of its request, while the mount grows.
func TestMountGrowsWhileItsChangeWaits(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		ct := w.ct("cache", func(c *guest.CT) { c.Disks = srv(5) })
		w.Apply()
		ct.Disks[0].Backup = true
		w.Apply()
		ct.Disks[0].Size = 8
		w.Apply()
		require.Contains(t, w.Guest(10000).Config["mp0"], "size=8G")
		require.Contains(t, w.Guest(10000).Pending["mp0"], "size=5G")
		w.Converged()
		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
		w.Apply()
		require.Contains(t, w.Guest(10000).Config["mp0"], "size=8G")
		require.Contains(t, w.Guest(10000).Config["mp0"], "backup=1")
		w.Converged()
	})
}

// TestAnInterruptedGrowthIsNotASuccess: PVE has grown the volume and not said so in the
// configuration, and takes the order no second time.
func TestAnInterruptedGrowthIsNotASuccess(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.ct("cache", func(c *guest.CT) { c.Disks = []guest.CTDisk{{Name: "data", Size: 8, Path: "/srv"}} })
		w.Apply()
		mp := w.Guest(10000).Config["mp0"]
		require.Contains(t, mp, "size=8G")
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "mp0", strings.Replace(mp, "size=8G", "size=5G", 1)) })
		err := w.Run(w.Plan())[model.Address{Kind: "ct", Name: "cache"}]
		require.ErrorContains(t, err, "its volume has that size, but its configuration says 5")
		require.ErrorContains(t, err, "`pct rescan --vmid 10000`")
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "mp0", mp) }) // what that does
		w.Converged()
	})
}

// containerLife creates two containers, changes one, replaces it, and removes the
// other; after each chapter passes run until nothing is left to do.
func containerLife(t *testing.T, r *storyRun) {
	t.Helper()
	w := r.world(t, pve.Config{TaskTime: time.Second, Guests: 2})
	others := w.Host.Snapshot().Guests
	ct := w.ct("cache", nil)
	w.ct("other", nil)
	settle(w)
	ct.Nameserver, ct.Restart, ct.Disk = []string{"9.9.9.9"}, "allowed", 12
	ct.Disks = []guest.CTDisk{{Name: "data", Size: 3, Path: "/srv"}}
	ct.NICs = []guest.CTNIC{{Name: "wan", VLAN: 7}}
	w.Drop("other")
	settle(w)
	requireLife(t, w, others, "1")
	ct.Unprivileged = false
	settle(w)
	requireLife(t, w, others, "")
	w.Drop("cache")
	settle(w)
	s := w.Host.Snapshot()
	require.Len(t, s.Guests, len(others))
	for _, v := range s.Volumes["local-lvm"] {
		require.Less(t, v.VMID, 10000, v.ID)
	}
}

func requireLife(t *testing.T, w *world, others []pve.Guest, unprivileged string) {
	t.Helper()
	s := w.Host.Snapshot()
	require.Len(t, s.Guests, len(others)+1)
	for _, f := range others {
		require.Equal(t, f.Config, w.Guest(f.VMID).Config)
	}
	g := s.Guests[len(s.Guests)-1]
	require.Equal(t, "lxc", g.Kind)
	require.True(t, g.Running)
	require.Empty(t, g.Lock)
	require.Equal(t, []string{"cache", "9.9.9.9", unprivileged}, []string{g.Config["hostname"], g.Config["nameserver"], g.Config["unprivileged"]})
	require.Contains(t, g.Config["rootfs"], "size=12G")
	require.Contains(t, g.Config["mp0"], "mp=/srv,size=3G")
	volumes := 0
	for _, v := range s.Volumes["local-lvm"] {
		if v.VMID == g.VMID {
			volumes++
		}
	}
	require.Equal(t, 2, volumes, "root and data: an order repeated would have made another")
}

// containerClone makes one container from a template.
func containerClone(t *testing.T, r *storyRun) {
	t.Helper()
	r.quiet.Store(true)
	w := r.world(t, pve.Config{TaskTime: time.Second})
	w.ctTemplate(9001)
	r.quiet.Store(false)
	w.declare("golden-ct", &guest.Template{VMID: 9001})
	w.ct("cache", func(c *guest.CT) {
		c.Template = "golden-ct"
		c.Disks = []guest.CTDisk{{Name: "data", Size: 3, Path: "/srv"}}
	})
	settle(w)
	s := w.Host.Snapshot()
	require.Len(t, s.Guests, 2)
	g := w.Guest(10000)
	require.True(t, g.Running)
	require.Empty(t, g.Lock)
	require.Contains(t, g.Config["rootfs"], "size=10G")
	require.Contains(t, g.Config["mp0"], "size=3G")
	require.Empty(t, g.Config["net1"], "of the template only")
	require.Empty(t, g.Config["startup"], "of the template only")
	_, m, _ := owner.ParseDescription(g.Config["description"])
	require.Contains(t, g.Config["net0"], "hwaddr="+m.MAC)
	require.Equal(t, map[string]string{"disk.root": "rootfs", "disk.data": "mp0", "nic.lan": "net0"}, m.Slots)
	volumes := 0
	for _, v := range s.Volumes["local-lvm"] {
		if v.VMID == g.VMID {
			volumes++
		}
	}
	require.Equal(t, 2, volumes)
}

// TestCopiesOfOneContainerTakeTurns: PVE locks a template while it copies it, however
// long that takes.
func TestCopiesOfOneContainerTakeTurns(t *testing.T) {
	inTime(t, pve.Config{TaskTime: 5 * time.Second}, func(t *testing.T, w *world) {
		w.ctTemplate(9001)
		w.declare("golden-ct", &guest.Template{VMID: 9001})
		for _, name := range []string{"a", "b", "c"} {
			w.ct(name, func(c *guest.CT) { c.Template, c.Power = "golden-ct", "stopped" })
		}
		g, ctx := errgroup.WithContext(t.Context())
		for _, s := range w.Plan().Steps {
			if s.Address.Kind == "ct" {
				g.Go(func() error { return w.Driver.Apply(ctx, s) })
			}
		}
		require.NoError(t, g.Wait())
		w.Apply() // the template of the others
		w.Converged()

		w.ct("d", func(c *guest.CT) { c.Template = "golden-ct" })
		w.ct("e", func(c *guest.CT) { c.Template = "golden-ct" })
		steps := w.Plan().Steps
		require.Len(t, steps, 2)
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		errs := make(chan error, 2)
		for _, s := range steps {
			go func() { errs <- w.Driver.Apply(short, s) }()
		}
		require.Contains(t, (<-errs).Error()+(<-errs).Error(), "waiting for another copy of CT 9001")
	})
}

// ctTemplate makes a container template to clone as an administrator does.
func (w *world) ctTemplate(vmid int) {
	w.T.Helper()
	for _, call := range []struct {
		path string
		p    map[string]any
	}{
		{"/nodes/father/storage/local/download-url", map[string]any{"content": "vztmpl", "filename": "debian-12.tar.zst", "url": "https://images.test/debian-12.tar.zst"}},
		{"/nodes/father/lxc", map[string]any{
			"vmid": vmid, "hostname": "golden-ct", "ostemplate": "local:vztmpl/debian-12.tar.zst", "rootfs": "local-lvm:2", "unprivileged": true, "startup": "order=7",
			"net0": "name=eth0,bridge=vmbr0", "net1": "name=eth1,bridge=vmbr0",
		}},
		{fmt.Sprintf("/nodes/father/lxc/%d/template", vmid), map[string]any{}},
	} {
		upid, err := w.Driver.Post(w.T.Context(), call.path, call.p)
		require.NoError(w.T, err)
		if upid != "" {
			require.NoError(w.T, w.Driver.WaitTask(w.T.Context(), upid))
		}
	}
	time.Sleep(10 * time.Second) // PVE does not report the task that makes a template of a container
	require.Equal(w.T, "1", w.Guest(vmid).Config["template"])
}

// TestEveryRequestOfAContainerMayFail faults each request of the stories in turn,
// once without and once with effect.
func TestEveryRequestOfAContainerMayFail(t *testing.T) {
	for name, story := range map[string]tale{"life": containerLife, "clone": containerClone} {
		runWithFaults(t, name, []int{596, 500, -1}, story)
	}
}

// everyKey declares every key that PVE documents for a container and lets a token set.
func everyKey(c *guest.CT) {
	one := 1
	c.Description, c.OnBoot, c.Startup, c.Restart = "notes", true, &guest.Startup{Order: &one}, "allowed"
	c.Features, c.Timezone, c.Nameserver, c.Searchdomain = []string{"nesting"}, "Europe/Berlin", []string{"9.9.9.9", "1.1.1.1"}, "x.test"
	c.Disks = []guest.CTDisk{
		{Name: "root", Options: map[string]string{"acl": "1"}},
		{Name: "data", Size: 2, Path: "/srv", Backup: true, Options: map[string]string{"ro": "0", "quota": "0", "replicate": "0", "mountoptions": "noatime;nodev"}},
	}
	c.NICs = []guest.CTNIC{{
		Name: "lan", VLAN: 5, IP: "10.0.0.5/24", IP6: "auto", Firewall: true, MTU: 1400, Rate: 5, Trunks: []string{"5", "6"},
	}}
	c.Options = map[string]string{
		"arch": "amd64", "ostype": "debian", "cmode": "shell", "console": "no", "cpulimit": "2.0", "cpuunits": "512", "debug": "0", "tty": "4",
		"entrypoint": "/sbin/init", "env": "A=b",
	}
}

// byHand is another value for each of these keys.
var byHand = map[string]string{
	"arch": "arm64", "cmode": "console", "console": "1", "cores": "7", "cpulimit": "3", "cpuunits": "99", "debug": "1", "description": "",
	"entrypoint": "/bin/x", "env": "A=c", "features": "nesting=0", "hostname": "other", "memory": "999", "mp0": "mp=/srv=>mp=/else", "nameserver": "8.8.8.8",
	"net0": "bridge=vmbr0=>bridge=vmbr9", "onboot": "0", "ostype": "alpine", "protection": "1", "rootfs": "acl=1=>acl=0", "searchdomain": "y.test", "startup": "order=2",
	"swap": "0", "tags": "mine", "timezone": "host", "tty": "1", "unprivileged": "0",
}

// TestEveryKeyOfAContainer: what the files say of any key is there after one apply;
// changed or deleted by hand it is found, by the name it has in the files, and reverted.
func TestEveryKeyOfAContainer(t *testing.T) {
	m, _, _ := pveapi.Lookup("PUT", "/nodes/n/lxc/100/config")
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.vlanAware("vmbr0")
		w.ct("cache", everyKey)
		w.Apply()
		w.Converged()
		time.Sleep(time.Minute)
		w.Converged()
		whole := w.Guest(10000)
		for family := range m.Params {
			switch family {
			case "node", "vmid", "digest", "delete", "revert", // of the request
				"lock", "hookscript", "dev[n]", // refused to every token
				"template", "unused[n]": // no settings
				continue
			}
			key := strings.Replace(map[string]string{"mp[n]": "mp0", "net[n]": "net0"}[family], "[n]", "", 1)
			if key == "" {
				key = family
			}
			hand, ok := byHand[key]
			require.True(t, ok, "no case covers %s", key)
			value := whole.Config[key]
			for _, change := range []string{hand, "(deleted)"} {
				set := change
				old, repl, part := strings.Cut(change, "=>")
				switch {
				case part:
					require.Contains(t, value, old, key)
					set = strings.Replace(value, old, repl, 1)
				case key == "description": // without its notes
					_, set, _ = strings.Cut(value, "\n")
				case change == "(deleted)":
					set = ""
				}
				if change == "(deleted)" && (key == "rootfs" || key == "mp0" || key == "net0" || key == "description" || key == "unprivileged") {
					continue // disks lost and proof lost are stories of their own
				}
				w.Host.Edit(func(e *pve.Edit) { e.Set(10000, key, set) })
				p := w.Plan()
				if meansTheSame(key, value, set) {
					require.Empty(t, p.Steps, "%s: %s", key, proxmoxtest.Describe(p))
					continue
				}
				require.Len(t, p.Steps, 1, "%s=%q", key, set)
				if key == "unprivileged" {
					require.Equal(t, plan.Replace, p.Steps[0].Action, "it cannot be changed")
					w.Host.Edit(func(e *pve.Edit) { e.Set(10000, key, value) })
					continue
				}
				require.Len(t, p.Steps[0].Changes, 1, "%s=%q: %s", key, set, proxmoxtest.Describe(p))
				require.Empty(t, w.Run(p), "%s=%q", key, set)
				w.Converged()
				after := w.Guest(10000)
				require.Empty(t, after.Pending)
				require.True(t, meansTheSame(key, value, after.Config[key]), "%s: %q, %q", key, value, after.Config[key])
			}
		}
	})
}

// meansTheSame: the fixture declares these as their defaults, so that deleting them
// changes nothing.
func meansTheSame(key, a, b string) bool {
	if a == b || key == "mp0" || key == "rootfs" || key == "net0" {
		return strings.ReplaceAll(a, ",ro=0", "") == strings.ReplaceAll(b, ",ro=0", "")
	}
	defaults := map[string]string{"arch": "amd64", "debug": "0", "entrypoint": "/sbin/init", "protection": "0", "swap": "512"}
	return defaults[key] != "" && (a == "" || a == defaults[key]) && (b == "" || b == defaults[key])
}

// drawCT draws what a container may be; disks only grow from one drawing to the next.
func drawCT(t *rapid.T, c *guest.CT, label string) {
	flag := func(name string) bool { return rapid.Bool().Draw(t, label+name) }
	c.Cores, c.Memory = rapid.IntRange(0, 8).Draw(t, label+"cores"), rapid.IntRange(16, 4096).Draw(t, label+"memory")
	c.Swap, c.Disk = rapid.IntRange(0, 1024).Draw(t, label+"swap"), max(c.Disk, rapid.IntRange(1, 20).Draw(t, label+"disk"))
	c.Tags = rapid.SliceOfN(rapid.StringMatching(`[A-Za-z0-9_][a-z0-9_\-+.]{0,4}`), 0, 3).Draw(t, label+"tags")
	c.Description = rapid.StringMatching(`[a-zü%&=;#"{}\\ \n\t]{0,30}`).Draw(t, label+"notes")
	c.OnBoot, c.Restart, c.Features = flag("onboot"), "allowed", nil
	c.Startup, c.Options, c.NICs = nil, nil, nil
	if flag("startup") {
		n := rapid.IntRange(0, 5).Draw(t, label+"order")
		c.Startup = &guest.Startup{Order: &n}
	}
	if flag("nesting") {
		c.Features = []string{"nesting"}
	}
	c.Power = rapid.SampledFrom([]string{"running", "stopped"}).Draw(t, label+"power")
	c.Timezone = rapid.SampledFrom([]string{"", "host", "Europe/Berlin"}).Draw(t, label+"zone")
	for key, values := range map[string][]string{"cpulimit": {"0", "1", "1.5"}, "tty": {"0", "2", "6"}, "console": {"0", "1", "true"}, "cmode": {"shell", "tty"}} {
		if flag(key) {
			if c.Options == nil {
				c.Options = map[string]string{}
			}
			c.Options[key] = rapid.SampledFrom(values).Draw(t, label+key+" value")
		}
	}
	for i := range rapid.IntRange(1, 3).Draw(t, label+"nics") {
		n := guest.CTNIC{Name: fmt.Sprintf("n%d", i), VLAN: rapid.IntRange(0, 4).Draw(t, label+"vlan"), Firewall: flag("firewall")}
		n.IP = rapid.SampledFrom([]string{"", "dhcp", "manual", "10.0.0.5/24"}).Draw(t, label+"ip")
		n.MTU = rapid.SampledFrom([]int{0, 64, 1300}).Draw(t, label+"mtu")
		n.Rate = rapid.SampledFrom([]float64{0, 0.5, 100}).Draw(t, label+"rate")
		n.LinkDown = flag("link_down")
		n.Trunks = rapid.SliceOfN(rapid.SampledFrom([]string{"2", "3", "40"}), 0, 4).Draw(t, label+"trunks")
		n.IP6 = rapid.SampledFrom([]string{"", "auto", "manual", "fd00::5/64", "FD00:0::6/64"}).Draw(t, label+"ip6")
		if flag("host-managed") && n.IP6 != "auto" {
			n.Options = map[string]string{"host-managed": rapid.SampledFrom([]string{"0", "1"}).Draw(t, label+"managed")}
		}
		c.NICs = append(c.NICs, n)
	}
	sizes := map[string]int{}
	for _, d := range c.Disks {
		sizes[d.Name] = d.Size
	}
	c.Disks = nil
	for i := range 3 {
		if flag("disk") || sizes[fmt.Sprintf("d%d", i)] > 0 { // one that went and comes back is a story of its own
			d := guest.CTDisk{Name: fmt.Sprintf("d%d", i), Path: fmt.Sprintf("/srv/%d", i), Backup: flag("backup")}
			d.Size = max(sizes[d.Name], rapid.IntRange(1, 5).Draw(t, label+"size"))
			c.Disks = append(c.Disks, d)
		}
	}
}

// TestAnyContainer: whatever is declared is there after one apply, and after any
// edit; and an edit writes exactly the keys that it changes.
func TestAnyContainer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first := *proxmox.Kinds().Get("ct").New().(*guest.CT)
		first.Preset, first.Template = "small", "debian-ct"
		drawCT(rt, &first, "first ")
		then := first
		drawCT(rt, &then, "then ")
		synctest.Test(t, func(t *testing.T) { becomes(t, first, then) })
	})
}

// becomes makes a container one thing, then another.
func becomes(t *testing.T, first, then guest.CT) {
	t.Helper()
	var written []string
	w := newWorld(t, pve.Config{Record: func(r *http.Request, body []byte, _ int) {
		var keys map[string]any
		if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/config") || json.Unmarshal(body, &keys) != nil {
			return
		}
		if gone, ok := keys["delete"].(string); ok {
			written = append(written, strings.Split(gone, ",")...)
		}
		delete(keys, "delete")
		delete(keys, "digest")
		written = append(written, slices.Collect(maps.Keys(keys))...)
	}})
	w.vlanAware("vmbr0")
	ct := w.ct("any", func(c *guest.CT) { *c = first })
	w.Apply()
	w.Converged()
	before := w.Guest(10000)
	written = nil
	*ct = then
	w.Apply()
	w.Converged()
	after := w.Guest(10000)
	require.Empty(t, after.Pending)
	differs := keysThatDiffer(before, after)
	for _, key := range written {
		require.Contains(t, differs, key, "written for nothing: %+v became %+v", first, then)
	}
	for _, key := range differs {
		grown := (key == "rootfs" || strings.HasPrefix(key, "mp")) && before.Config[key] != ""
		kept := strings.HasPrefix(key, "unused")
		require.True(t, grown || kept || slices.Contains(written, key), "%s changed behind the plan's back: %+v became %+v", key, first, then)
	}
}

// TestRestartedInTheMiddleOfATaskOfAContainer: as of a VM, with the tasks that PVE has
// for containers.
func TestRestartedInTheMiddleOfATaskOfAContainer(t *testing.T) {
	made := func(edit func(*guest.CT)) func(*world) {
		return func(w *world) { w.ct("web-1", edit) }
	}
	edited := func(edit func(*guest.CT)) func(*world) {
		return func(w *world) { edit(w.Site.Manifests["web"].Nodes[0].Resource.Spec.(*guest.CT)) }
	}
	for name, c := range map[string]interrupted{
		"create": {
			change: made(nil),
			once:   []string{"vzcreate", "vzstart"},
		},
		"clone": {
			before: func(w *world) { w.ctTemplate(9001); w.declare("golden-ct", &guest.Template{VMID: 9001}) },
			change: made(func(c *guest.CT) { c.Template = "golden-ct" }),
			once:   []string{"vzclone", "vzstart"},
		},
		"resize": {
			before: made(nil),
			change: edited(func(c *guest.CT) { c.Disk = 20 }),
			once:   []string{"resize"},
			holds: func(t *testing.T, w *world) {
				require.Contains(t, w.Guest(10000).Config["rootfs"], "size=20G")
			},
		},
		"mount": {
			before: made(nil),
			change: edited(func(c *guest.CT) {
				c.Disks, c.Restart = []guest.CTDisk{{Name: "data", Size: 3, Path: "/srv"}}, "allowed"
			}),
			holds: func(t *testing.T, w *world) {
				require.Contains(t, w.Guest(10000).Config["mp0"], "mp=/srv")
				require.Len(t, w.volumesOfContainer("local-lvm"), 2, "root and data: an order repeated would have made another")
			},
		},
		"move": {
			before: made(func(c *guest.CT) { c.Power = "stopped" }),
			change: edited(func(c *guest.CT) { c.Disks = []guest.CTDisk{{Name: "root", Storage: "local-zfs"}} }),
			once:   []string{"move_volume"},
			holds: func(t *testing.T, w *world) {
				require.Contains(t, w.Guest(10000).Config["rootfs"], "local-zfs:")
				require.Empty(t, w.volumesOfContainer("local-lvm"), "the old one went, once")
				require.Len(t, w.volumesOfContainer("local-zfs"), 1)
			},
		},
		"restart": {
			before: made(func(c *guest.CT) { c.Restart = "allowed" }),
			change: edited(func(c *guest.CT) { c.Options = map[string]string{"tty": "4"} }),
			once:   []string{"vzreboot"},
			holds: func(t *testing.T, w *world) {
				require.Empty(t, w.Guest(10000).Pending)
				require.Equal(t, "4", w.Guest(10000).Config["tty"])
			},
		},
		"stop": {
			before: made(nil),
			change: edited(func(c *guest.CT) { c.Power = "stopped" }),
			once:   []string{"vzshutdown"},
		},
		"start": {
			before: made(func(c *guest.CT) { c.Power = "stopped" }),
			change: edited(func(c *guest.CT) { c.Power = "running" }),
			once:   []string{"vzstart"},
		},
		"destroy": {
			before: made(nil),
			change: func(w *world) { w.Drop("web-1") },
			once:   []string{"vzshutdown", "vzdestroy"},
			holds: func(t *testing.T, w *world) {
				require.Empty(t, w.Host.Snapshot().Guests)
				require.Empty(t, w.volumesOfContainer("local-lvm"))
			},
		},
		"replace": {
			before: func(w *world) {
				w.ctTemplate(9001)
				w.declare("golden-ct", &guest.Template{VMID: 9001})
				w.ct("web-1", nil)
			},
			change: func(w *world) {
				n := w.Site.Manifests["web"].Nodes[0]
				n.Decomm, n.Resource.Needs = &model.Decomm{}, []model.Address{{Kind: "template", Name: "golden-ct"}}
				n.Resource.Spec.(*guest.CT).Template = "golden-ct"
			},
			once: []string{"vzdestroy", "vzclone"},
			holds: func(t *testing.T, w *world) {
				_, m, _ := owner.ParseDescription(w.Guest(10000).Config["description"])
				require.Equal(t, "template.golden-ct", m.From)
				require.True(t, w.Guest(10000).Running)
				require.Len(t, w.volumesOfContainer("local-lvm"), 1)
			},
		},
	} {
		t.Run(name, c.atAnyMoment)
	}
}

// volumesOfContainer are those of the container that these stories are about.
func (w *world) volumesOfContainer(storage string) []string {
	var out []string
	for _, v := range w.Host.Snapshot().Volumes[storage] {
		if v.VMID == 10000 {
			out = append(out, v.ID)
		}
	}
	return out
}
