package proxmox_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
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
