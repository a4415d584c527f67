package proxmox_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHN0b3J5c3RvcnlzdG9yeXN0b3J5c3RvcnlzdG9yeXN0 ops@home"

// scope is that of a node in a site with a preset, a spec, an image and two templates.
func scope() model.Scope {
	spec := &model.Spec{
		Name: "base", Identity: &model.Identity{Domain: "lab.example"},
		Network: &model.Network{IP: "10.0.0.5/24", DNS: []string{"10.0.0.2"}},
	}
	site := &model.Site{
		Name: "home", Bridge: "vmbr1", Gateway: "10.0.0.1", DNS: []string{"10.0.0.9"}, Timezone: "UTC",
		Presets: map[string]*model.Preset{"small": {Name: "small", Cores: 2, Memory: 2048, Disk: 10}},
		Specs:   map[string]*model.Spec{"base": spec},
		Secrets: &model.Secrets{Values: map[string]map[string]string{"ssh_keys": {"ops": publicKey}}},
		Objects: map[model.Address]*model.Resource{
			{Kind: "image", Name: "debian"}:     {Spec: &objects.Image{URL: "https://example.org/debian.qcow2", Format: "qcow2"}},
			{Kind: "template", Name: "golden"}:  {Spec: &guest.Template{VMID: 9000}},
			{Kind: "template", Name: "archive"}: {Spec: &guest.Template{Volume: "local:vztmpl/debian-12.tar.zst"}},
		},
	}
	host := &model.Host{Name: "father", API: "https://10.0.0.10:8006", Storage: &model.Storage{Disks: "fast"}}
	return model.Scope{Site: site, Host: host, Name: "web-1", Node: &model.Node{Name: "web-1", Spec: "base"}}
}

// vm resolves a VM, and lists the paths and summaries of its problems.
func vm(edit func(*guest.VM)) (guest.VMTarget, []string) {
	v := guest.WithDefaults(&guest.VM{Preset: "small", Image: "debian"})
	if edit != nil {
		edit(v)
	}
	r := &model.Resource{Addr: model.Address{Kind: "vm", Name: "web-1"}, Spec: v}
	problems := proxmox.ResolveGuest("vm")(r, scope())
	return guest.TargetOf(r).(guest.VMTarget), summaries(problems)
}

// ct resolves a container.
func ct(edit func(*guest.CT)) (guest.CTTarget, []string) {
	c := guest.WithDefaults(&guest.CT{Preset: "small", Template: "archive"})
	if edit != nil {
		edit(c)
	}
	r := &model.Resource{Addr: model.Address{Kind: "ct", Name: "web-1"}, Spec: c}
	problems := proxmox.ResolveGuest("ct")(r, scope())
	return guest.TargetOf(r).(guest.CTTarget), summaries(problems)
}

func summaries(problems []model.Problem) []string {
	out := []string{}
	for _, p := range problems {
		out = append(out, p.Path+": "+p.Summary)
	}
	return out
}

// Attributes that the files leave open come from preset, spec, site and host.
func TestDefaults(t *testing.T) {
	v, problems := vm(nil)
	require.Empty(t, problems)
	require.Equal(t, []int{2, 2048}, []int{v.Cores, v.Memory})
	require.Equal(t, []guest.Disk{{Name: "root", Size: 10, Storage: "fast"}}, v.Disks)
	require.Equal(t, []guest.NIC{{Name: "lan", Bridge: "vmbr1", Model: "virtio", IP: "10.0.0.5/24", Gateway: "10.0.0.1"}}, v.NICs)
	require.Equal(t, []string{"homestak", "lab.example", "10.0.0.2"}, append([]string{v.User, v.Domain}, v.DNS...))
	require.Equal(t, []string{publicKey}, v.Keys)
	require.Equal(t, []string{"homestak"}, v.Tags)
	require.Equal(t, []string{"fast", "local"}, []string{v.DriveStorage, v.SeedStorage})
	require.Equal(t, "image.debian", v.OwnerTag.From)

	c, problems := ct(nil)
	require.Empty(t, problems)
	require.Equal(t, []guest.CTDisk{{Name: "root", Size: 10, Storage: "fast"}}, c.Disks)
	require.Equal(t, "web-1", c.Hostname)
	require.Equal(t, []string{"10.0.0.2"}, c.Nameserver)
	require.Equal(t, "local:vztmpl/debian-12.tar.zst", c.Source)

	clone, problems := vm(func(v *guest.VM) { v.Image, v.Template = "", "golden" })
	require.Empty(t, problems)
	require.Equal(t, 9000, clone.TemplateVMID)
	host, _ := vm(func(v *guest.VM) { v.Options = map[string]string{"cpu": "host"} })
	require.Equal(t, "host", host.Options["cpu"], "a default replaces nothing that is declared")
}

func TestProblemsOfAVM(t *testing.T) {
	for name, c := range map[string]struct {
		files func(*guest.VM)
		want  string
	}{
		"no size":            {func(v *guest.VM) { v.Preset = "" }, ": node without size"},
		"no origin":          {func(v *guest.VM) { v.Image = "" }, ": vm without image or template"},
		"two origins":        {func(v *guest.VM) { v.Template = "golden" }, "template: image and template on one node"},
		"archive":            {func(v *guest.VM) { v.Image, v.Template = "", "archive" }, `template: template "archive" is not a VM template`},
		"clone of an image":  {func(v *guest.VM) { v.Clone = "full" }, "clone: clone without template"},
		"disk without size":  {func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data"}} }, `disk.data.size: disk "data" without a size`},
		"unknown bus":        {func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data", Size: 1, Bus: "ide"}} }, `disk.data.bus: bus = "ide" is not valid`},
		"MAC of a group":     {func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", MAC: "01:00:00:00:00:01"}} }, `nic.lan.mac: "01:00:00:00:00:01" is not the MAC address of a single card`},
		"VLAN":               {func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", VLAN: 4095}} }, "nic.lan.vlan: VLAN tag out of range"},
		"gateway elsewhere":  {func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", IP: "10.1.0.5/24", Gateway: "10.2.0.1"}} }, "nic.lan.ip: gateway 10.2.0.1 is not in the network of 10.1.0.5/24"},
		"host's address":     {func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.10/24"}} }, "nic.lan.ip: static address 10.0.0.10 is that of host father"},
		"gateway's address":  {func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.1/24"}} }, "nic.lan.ip: static address 10.0.0.1 is that of its gateway"},
		"GiB for MiB":        {func(v *guest.VM) { v.Memory = 32 }, "memory: memory is 32 MiB"},
		"IPv6 for ip":        {func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", IP: "fd00::5/64", Gateway: "fd00::1"}} }, `nic.lan.ip: "fd00::5/64" is not an address with prefix length`},
		"power":              {func(v *guest.VM) { v.Power = "on" }, `power: power = "on" is not valid`},
		"tag":                {func(v *guest.VM) { v.Tags = []string{"a b"} }, `tags: "a b" is not a tag`},
		"option with a name": {func(v *guest.VM) { v.Options = map[string]string{"cores": "4"} }, `options.cores: option "cores" has an attribute of its own`},
		"unknown option":     {func(v *guest.VM) { v.Options = map[string]string{"balon": "0"} }, `options.balon: PVE has no option "balon" for a VM`},
		"slot of cloud-init": {func(v *guest.VM) { v.Options = map[string]string{"ide2": "none,media=cdrom"} }, "options.ide2: ide2 is the cloud-init drive"},
		"ownership tag":      {func(v *guest.VM) { v.Description = "homestak-gitops: x" }, "description: description contains an ownership tag"},
		"password and image": {func(v *guest.VM) { v.Password, v.UserData = "hunter22", "#cloud-config\n" }, "password: password on a machine with an image of its own for cloud-init"},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := vm(c.files)
			require.Equal(t, []string{c.want}, problems)
		})
	}
}

// TestDisksOfTheNode: the refusal says how such a disk is attached.
func TestDisksOfTheNode(t *testing.T) {
	r := &model.Resource{Addr: model.Address{Kind: "vm", Name: "web-1"}, Spec: guest.WithDefaults(&guest.VM{Preset: "small", Image: "debian", Options: map[string]string{"scsi5": "/dev/sdb"}})}
	problems := proxmox.ResolveGuest("vm")(r, scope())
	require.Len(t, problems, 1)
	require.Contains(t, problems[0].Detail, "by root@pam with qm set")
}

// TestZeroIsNoSize: a size of zero does not mean that of the preset.
func TestZeroIsNoSize(t *testing.T) {
	r := &model.Resource{Addr: model.Address{Kind: "vm", Name: "web-1"}, Spec: guest.WithDefaults(&guest.VM{Preset: "small", Image: "debian"}), Ranges: []model.AttrRange{{Path: "memory"}}}
	require.Equal(t, []string{"memory: memory = 0 is not valid"}, summaries(proxmox.ResolveGuest("vm")(r, scope())))

	r.Spec = guest.WithDefaults(&guest.VM{Cores: 2, Image: "debian"})
	require.Equal(t, []string{"memory: memory = 0 is not valid"}, summaries(proxmox.ResolveGuest("vm")(r, scope())), "said once")
	r.Spec, r.Missing = guest.WithDefaults(&guest.VM{Cores: 2, Image: "debian"}), []string{"secret.auth.memory"}
	require.Empty(t, summaries(proxmox.ResolveGuest("vm")(r, scope())), "it is not known here")
}

func TestProblemsOfAContainer(t *testing.T) {
	for name, c := range map[string]struct {
		files func(*guest.CT)
		want  string
	}{
		"no template":           {func(c *guest.CT) { c.Template = "" }, ": ct without template"},
		"password of a clone":   {func(c *guest.CT) { c.Template, c.Password = "golden", "secret" }, "password: a clone takes no password"},
		"short password":        {func(c *guest.CT) { c.Password = "1234" }, "password: password too short"},
		"disk without path":     {func(c *guest.CT) { c.Disks = []guest.CTDisk{{Name: "data", Size: 1}} }, `disk.data.path: disk "data" has no path to be mounted on`},
		"feature of root@pam":   {func(c *guest.CT) { c.Features = []string{"fuse"} }, `features: feature "fuse" cannot be set by an API token`},
		"nesting as root":       {func(c *guest.CT) { c.Features, c.Unprivileged = []string{"nesting"}, false }, "features: features of a privileged container cannot be set by an API token"},
		"member with attribute": {func(c *guest.CT) { c.NICs = []guest.CTNIC{{Name: "lan", Options: map[string]string{"mtu": "1400"}}} }, `nic.lan.options.mtu: "mtu" is set by an attribute or by the program`},
		"range in trunks":       {func(c *guest.CT) { c.NICs = []guest.CTNIC{{Name: "lan", Trunks: []string{"10-20"}}} }, `nic.lan.trunks: range "10-20" in the trunk of a container`},
		"device of the node":    {func(c *guest.CT) { c.Options = map[string]string{"dev0": "/dev/fuse"} }, `options.dev0: option "dev0" cannot be set by an API token`},
		"folder of the node":    {func(c *guest.CT) { c.Options = map[string]string{"mp0": "/tank,mp=/srv"} }, `options.mp0: option "mp0" cannot be set by an API token`},
		"time zone":             {func(c *guest.CT) { c.Timezone = "Nowhere" }, `timezone: PVE refuses timezone = "Nowhere"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := ct(c.files)
			require.Equal(t, []string{c.want}, problems)
		})
	}
}

// A key whose value is not known here is missing where the guest needs it, and nowhere else.
func TestMissingKeys(t *testing.T) {
	const known, unknown = "ops", "boss"
	missing := func(kind string, spec any, names *[]string) []string {
		in := scope()
		in.Site.Secrets.Values["ssh_keys"][unknown] = ""
		in.Site.Specs["base"].Access = &model.Access{Users: []model.User{{Name: "homestak", SSHKeys: names}}}
		r := &model.Resource{Addr: model.Address{Kind: kind, Name: "web-1"}, Spec: spec, Missing: []string{"secret.passwords.x"}}
		require.Empty(t, proxmox.ResolveGuest(kind)(r, in))
		return r.Missing
	}
	for _, c := range []struct {
		names *[]string // nil: all keys
		want  []string
	}{
		{nil, []string{"secret.passwords.x", "secret.ssh_keys.boss"}},
		{&[]string{unknown, unknown, known}, []string{"secret.passwords.x", "secret.ssh_keys.boss"}},
		{&[]string{known}, []string{"secret.passwords.x"}},
		{&[]string{}, []string{"secret.passwords.x"}},
	} {
		require.Equal(t, c.want, missing("vm", guest.WithDefaults(&guest.VM{Preset: "small", Image: "debian"}), c.names))
		require.Equal(t, c.want, missing("ct", guest.WithDefaults(&guest.CT{Preset: "small", Template: "archive"}), c.names))
	}
}

// TestN14RecreateIsShown: the ownership tag shows recreate, so no secret may be in it.
func TestN14RecreateIsShown(t *testing.T) {
	v := guest.WithDefaults(&guest.VM{Preset: "small", Image: "debian", Recreate: "hunter22"})
	r := &model.Resource{Addr: model.Address{Kind: "vm", Name: "web-1"}, Spec: v, Sensitive: []string{"recreate"}}
	require.Equal(t, []string{"recreate: recreate must not come from a secret"}, summaries(proxmox.ResolveGuest("vm")(r, scope())))
}

// The address of the host is a warning only: in a network of its own a guest may have it, and one that the host is reached through.
func TestAGuestMayHaveTheAddressOfItsHost(t *testing.T) {
	v := guest.WithDefaults(&guest.VM{Preset: "small", Image: "debian", NICs: []guest.NIC{{Name: "lan", VLAN: 99, IP: "10.0.0.10/24"}}})
	r := &model.Resource{Addr: model.Address{Kind: "vm", Name: "web-1"}, Spec: v, Guest: &model.Guest{}}
	found := proxmox.ResolveGuest("vm")(r, scope())
	require.Equal(t, []string{"nic.lan.ip: static address 10.0.0.10 is that of host father"}, summaries(found))
	require.Equal(t, diag.Warning, found[0].Severity)
}

// A date without quotes is a number: 2026-11 and 2027-12 are the same one.
func TestRecreateIsWrittenInQuotes(t *testing.T) {
	for _, spec := range []any{guest.VM{}, guest.CT{}} {
		fields := model.Fields(reflect.TypeOf(spec))
		i := slices.IndexFunc(fields, func(f model.Field) bool { return f.Name == "recreate" })
		require.True(t, fields[i].Quoted)
	}
}

// A schedule of cron is not one of Proxmox VE, and there is no hour 25.
func TestSchedulesThatAreNotMeant(t *testing.T) {
	for schedule, want := range map[string]string{
		"30 2 * * *": "this is the form of cron: write a time of day such as 02:30",
		"25:00":      `schedule "25:00" is minute 25 of every hour`,
		"sat 04:00":  "",
	} {
		w := proxmoxtest.New(t, pve.Config{})
		w.Node("web-1", nil)
		for _, m := range w.Site.Manifests {
			for _, n := range m.Nodes {
				n.Backup = &model.Backup{Schedule: schedule}
			}
		}
		_, found := w.Site.Want("father")
		require.Equal(t, want == "", len(found) == 0, "%v", found)
		require.Contains(t, everyWord(found), want)
	}
}

// TestCDDrivesThatCannotBe are refused at their line, with what to write.
func TestCDDrivesThatCannotBe(t *testing.T) {
	for _, c := range []struct{ slot, value, want string }{
		{"ide2", "local:iso/x.iso,media=cdrom", "ide2 is the cloud-init drive"},
		{"cdrom", "local:iso/x.iso", "it is an old name of ide2"},
		{"ide0", "local-lvm:10", "option \"ide0\" is not a CD drive"},
		{"ide0", "local:iso/x.iso", "lacks media=cdrom"},
		{"ide0", "none", "lacks media=cdrom"},
		{"ide0", "cdrom,media=cdrom", "the CD drive of the node itself"},
		{"ide0", "local-lvm:cloudinit,media=cdrom", "is not an ISO image"},
		{"ide0", "local:iso/x.qcow2,media=cdrom", "is not an ISO image"},
		{"ide0", "/dev/sr0,media=cdrom", "is not an ISO image"},
		{"ide0", "debian-12,media=cdrom", "image \"debian-12\" is not an ISO image"},
		{"ide3", "none,media=cdrom", "a machine of type q35 does not start with a drive at ide3"},
		{"ide0", "none,media=cdrom,nonsense=1", "PVE refuses option ide0"},
		{"ide7", "none,media=cdrom", "PVE has no option"},
		{"scsi3", "local-lvm:10", "it is set by disk blocks"},
		{"virtio0", "none,media=cdrom", "it is set by disk blocks"},
		{"boot", "order=scsi0;ide0", "options.boot names ide0, where no drive is"},
	} {
		w := proxmoxtest.New(t, pve.Config{})
		w.Node("web-1", func(v *guest.VM) { v.Options = map[string]string{c.slot: c.value, "machine": "q35"} })
		_, found := w.Site.Want("father")
		require.NotZero(t, found.Errors(), "%v", c)
		require.Contains(t, everyWord(found), c.want, "%v", c)
	}
}

// TestTemplatesThatCannotBe are refused before anything is asked of PVE.
func TestTemplatesThatCannotBe(t *testing.T) {
	for name, c := range map[string]guest.Template{
		"nothing":           {},
		"two ways":          {VMID: 9000, Volume: "local:vztmpl/x.tar.zst"},
		"no archive":        {URL: "https://images.test/debian.qcow2"},
		"no URL":            {URL: "images.test/debian.tar.zst"},
		"no template":       {Volume: "local:iso/x.iso"},
		"half a checksum":   {URL: "https://images.test/x.tar.zst", Checksum: "sha256:00"},
		"not a volume's id": {Volume: "vztmpl/x.tar.zst"},
	} {
		t.Run(name, func(t *testing.T) {
			proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
				w.Declare("x", &c)
				w.CT("n", func(v *guest.CT) { v.Template = "x" })
				_, found := w.Site.Want("father")
				require.NotZero(t, found.Errors())
			})
		})
	}
}

// TestContainersThatCannotBe: what PVE would refuse, or keeps for root@pam, is said
// of the files.
func TestContainersThatCannotBe(t *testing.T) {
	disk := func(d guest.CTDisk) func(*guest.CT) {
		return func(c *guest.CT) { c.Disks = append(c.Disks, d) }
	}
	nic := func(n guest.CTNIC) func(*guest.CT) {
		return func(c *guest.CT) { n.Name = "lan"; c.NICs = []guest.CTNIC{n} }
	}
	option := func(k, v string) func(*guest.CT) {
		return func(c *guest.CT) { c.Options = map[string]string{k: v} }
	}
	for says, edit := range map[string]func(*guest.CT){
		"ct without template":                                   func(c *guest.CT) { c.Template = "" },
		"node without size":                                     func(c *guest.CT) { c.Preset = "" },
		`feature "fuse" cannot be set by an API token`:          func(c *guest.CT) { c.Features = []string{"nesting", "fuse"} },
		"features of a privileged container cannot be set":      func(c *guest.CT) { c.Features, c.Unprivileged = []string{"nesting"}, false },
		`option "hookscript" cannot be set by an API token`:     option("hookscript", "local:snippets/x"),
		`option "dev0" cannot be set by an API token`:           option("dev0", "/dev/x"),
		`option "mp7" has an attribute of its own`:              option("mp7", "local-lvm:1,mp=/x"),
		`PVE has no option "bwlimit" for a container`:           option("bwlimit", "5"),
		`PVE refuses tty = "9"`:                                 option("tty", "9"),
		`disk "data" has no path to be mounted on`:              disk(guest.CTDisk{Name: "data", Size: 1}),
		`disk "data" without a size`:                            disk(guest.CTDisk{Name: "data", Path: "/x"}),
		"the root disk has neither path nor backup":             disk(guest.CTDisk{Name: "root", Path: "/x"}),
		`PVE has no "fast" in mp0`:                              disk(guest.CTDisk{Name: "data", Size: 1, Path: "/x", Options: map[string]string{"fast": "1"}}),
		`"size" is set by an attribute`:                         disk(guest.CTDisk{Name: "data", Size: 1, Path: "/x", Options: map[string]string{"size": "1G"}}),
		`disk "data" with quotas in an unprivileged container`:  disk(guest.CTDisk{Name: "data", Size: 1, Path: "/x", Options: map[string]string{"quota": "yes"}}),
		`PVE refuses timezone = "US/Eastern"`:                   func(c *guest.CT) { c.Timezone = "US/Eastern" },
		"VLAN tag out of range":                                 nic(guest.CTNIC{VLAN: 5000}),
		`"10.0.0.5" is not an address with prefix length`:       nic(guest.CTNIC{IP: "10.0.0.5"}),
		`"10.0.0.5/24" is not an address with prefix length`:    nic(guest.CTNIC{IP6: "10.0.0.5/24"}),
		"gateway 10.9.0.1 is not in the network of 10.0.0.5/24": nic(guest.CTNIC{IP: "10.0.0.5/24", Gateway: "10.9.0.1"}),
		`"fd00::1" is not an IPv4 address`:                      nic(guest.CTNIC{IP: "10.0.0.5/24", Gateway: "fd00::1"}),
		`"10.0.0.1" is not an IPv6 address`:                     nic(guest.CTNIC{IP6: "fd00::5/64", Gateway6: "10.0.0.1"}),
		"gateway without a static address":                      nic(guest.CTNIC{Gateway6: "fd00::1", IP6: "auto"}),
		"PVE refuses net0":                                      nic(guest.CTNIC{Options: map[string]string{"host-managed": "maybe"}}),
		`"mtu" is set by an attribute`:                          nic(guest.CTNIC{Options: map[string]string{"mtu": "1400"}}),
		"mtu out of range":                                      nic(guest.CTNIC{MTU: 63}),
		"rate out of range":                                     nic(guest.CTNIC{Rate: -1}),
		`"x" is not a VLAN`:                                     nic(guest.CTNIC{Trunks: []string{"x"}}),
		`range "2-4" in the trunk of a container`:               nic(guest.CTNIC{Trunks: []string{"2-4"}}),
		"PVE refuses timezone":                                  func(c *guest.CT) { c.Timezone = "../x" },
		"password too short":                                    func(c *guest.CT) { c.Password = "abc" },
		`power = "off" is not valid`:                            func(c *guest.CT) { c.Power = "off" },
		`"a b" is not a tag`:                                    func(c *guest.CT) { c.Tags = []string{"a b"} },
		"description contains an ownership tag":                 func(c *guest.CT) { c.Description = "homestak-gitops: {}" },
		"swap out of range":                                     func(c *guest.CT) { c.Swap = -1 },
	} {
		t.Run(says, func(t *testing.T) {
			proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
				w.CT("n", edit)
				_, found := w.Site.Want("father")
				require.NotZero(t, found.Errors())
				require.Contains(t, fmt.Sprint(found), says)
			})
		})
	}
}

// TestSiteTimezoneThatNoContainerTakes is one error, at the site's block, however many
// containers there are, and none where there are only machines.
func TestSiteTimezoneThatNoContainerTakes(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		w.Site.Timezone, w.Site.At = "Etc/UTC", diag.Range{File: "site.hcl"}
		w.Node("web-1", nil)
		_, found := w.Site.Want("father")
		require.Zero(t, found.Errors())
		w.CT("cache", nil)
		own := w.CT("own", func(c *guest.CT) { c.Timezone = "Europe/Berlin" })
		w.CT("other", nil)
		_, found = w.Site.Want("father")
		found = found.Sorted()
		require.Equal(t, 1, found.Errors(), "%v", found)
		i := slices.IndexFunc(found, func(f diag.Finding) bool { return f.Severity == diag.Error })
		require.Equal(t, "site.hcl", found[i].At.File)
		require.Contains(t, found[i].Summary, `timezone = "Etc/UTC"`)
		own.Timezone = "Etc/UTC"
		w.Site.Timezone = "UTC"
		_, found = w.Site.Want("father")
		require.Equal(t, 1, found.Errors())
		require.Equal(t, "ct.own", found.Sorted()[0].Address)
	})
}

func TestNumbersThatAreNone(t *testing.T) {
	less := -1
	v := proxmox.Kinds().Get("vm").New().(*guest.VM)
	v.Preset, v.Image, v.Cores, v.Memory, v.Startup = "", "d", 1, 512, &guest.Startup{Order: &less}
	problems := proxmox.Kinds().Get("vm").Resolve(&model.Resource{Spec: v}, model.Scope{Site: &model.Site{Name: "home"}, Name: "web"})
	require.Len(t, problems, 1)
	require.Equal(t, "startup.order", problems[0].Path)
}

// TestOptionsThatAreNotSettings are refused before anything is asked of PVE.
func TestOptionsThatAreNotSettings(t *testing.T) {
	for key, value := range map[string]string{
		"virtio0": "local-lvm:5", "sata1": "local-lvm:5", "unused0": "local-lvm:vm-1-disk-0", // each apply would allocate another one
		"bwlimit": "100", "live-restore": "1", // of a request, not of a guest
		"delete": "cores", "skiplock": "1", "digest": "x", "revert": "cores",
		"snaptime": "1", "cipassword": "secret", "args": "-S", "cdrom": "none",
		"usb0": "host=1234:5678", "hostpci0": "0000:01:00.0", "serial1": "/dev/ttyS0", "efidisk0": "local-lvm:vm-1-disk-0",
	} {
		proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
			w.Node("web-1", func(v *guest.VM) { v.Options = map[string]string{key: value} })
			_, found := w.Site.Want("father")
			require.NotZero(t, found.Errors(), key)
		})
	}
}

// TestOnlyPublicKeysGoToGuests: an entry that is not a public key is reported when the site is read, and a private key among the
// site's keys goes to no guest.
func TestOnlyPublicKeysGoToGuests(t *testing.T) {
	const public = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHN0b3J5c3RvcnlzdG9yeXN0b3J5c3RvcnlzdG9yeXN0 ops@home"
	const private = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----\n"
	for name, c := range map[string]struct {
		keys  map[string]string
		named []string
		says  string
	}{
		"public":                  {keys: map[string]string{"ops": public}},
		"with options":            {keys: map[string]string{"ops": `from="192.0.2.1" ` + public}},
		"private, kept for hosts": {keys: map[string]string{"ops": public, "root@father": private}},
		"private, given to guest": {keys: map[string]string{"ops": public, "root@father": private}, named: []string{"root@father"}, says: `ssh key "root@father" is a private key`},
		"placeholder":             {keys: map[string]string{"ops@laptop": "ssh-ed25519 PUT-THE-PUBLIC-KEY-HERE ops@laptop"}, says: `ssh key "ops@laptop" is not a public key`},
		"cut off":                 {keys: map[string]string{"ops": public[:39]}, says: `ssh key "ops" is not a public key`},
		"written out":             {named: []string{"hunter2"}, says: `ssh key "ssh_keys" is not a public key`},
	} {
		t.Run(name, func(t *testing.T) {
			proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
				w.Site.Secrets = &model.Secrets{Values: map[string]map[string]string{"ssh_keys": c.keys}, Source: "s.yaml", Lines: map[string]int{"ops": 7}}
				n := w.Node("web", nil)
				if c.named == nil {
					w.Node("web-2", nil)
				}
				if c.named != nil {
					w.Site.Specs = map[string]*model.Spec{"s": {Name: "s", Access: &model.Access{Users: []model.User{{Name: "homestak", SSHKeys: &c.named}}}}}
					n.Spec = "s"
				}
				_, found := w.Site.Want("father")
				if c.says == "" {
					require.False(t, found.HasErrors(), "%v", found)
					w.Apply()
					require.NotContains(t, w.Guest(10000).Config["sshkeys"], "PRIVATE")
					return
				}
				found = found.Sorted()
				require.Len(t, found, 1, "once for all who would get it")
				require.Equal(t, c.says, found[0].Summary)
				require.NotContains(t, found[0].Detail, "hunter2")
				require.Equal(t, name == "cut off", strings.HasPrefix(found[0].Detail, "s.yaml:7: "), "where its line is known")
			})
		})
	}
}

// everyWord is all that was found, with what to do.
func everyWord(found diag.List) string {
	out := ""
	for _, f := range found {
		out += f.Summary + " | " + f.Detail + "\n"
	}
	return out
}

// TestBlankIsSaid: a machine whose image was forgotten is none that is installed by hand.
func TestBlankIsSaid(t *testing.T) {
	for want, edit := range map[string]func(*guest.VM){
		"vm without image or template":         func(v *guest.VM) { v.Disks = nil },
		"blank = true":                         func(v *guest.VM) { v.Disks[0].Blank = false },
		"blank on a root disk that is made of": func(v *guest.VM) { v.Image = "debian-12" },
		"blank on disk \"data\"":               func(v *guest.VM) { v.Disks = append(v.Disks, guest.Disk{Name: "data", Size: 1, Blank: true}) },
		"a blank root disk without a size":     func(v *guest.VM) { v.Preset, v.Cores, v.Memory, v.Disks[0].Size = "", 1, 512, 0 },
		"clone without template":               func(v *guest.VM) { v.Clone = "full" },
	} {
		w := proxmoxtest.New(t, pve.Config{})
		w.Node("win", func(v *guest.VM) {
			v.Image, v.Agent, v.Disks = "", false, []guest.Disk{{Name: "root", Size: 64, Blank: true}}
			edit(v)
		}).Resource.Needs = nil
		_, found := w.Site.Want("father")
		require.Contains(t, everyWord(found), want)
	}
}
