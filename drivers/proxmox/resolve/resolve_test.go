package resolve_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/resolve"
	"github.com/homestak/homestak-gitops/engine/model"
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
	host := &model.Host{Name: "father", Storage: &model.Storage{Disks: "fast"}}
	return model.Scope{Site: site, Host: host, Name: "web-1", Node: &model.Node{Name: "web-1", Spec: "base"}}
}

// vm resolves a VM, and lists the paths and summaries of its problems.
func vm(edit func(*guest.VM)) (guest.VMTarget, []string) {
	v := guest.WithDefaults(&guest.VM{Preset: "small", Image: "debian"})
	if edit != nil {
		edit(v)
	}
	r := &model.Resource{Addr: model.Address{Kind: "vm", Name: "web-1"}, Spec: v}
	problems := resolve.Guest("vm")(r, scope())
	return guest.TargetOf(r).(guest.VMTarget), summaries(problems)
}

// ct resolves a container.
func ct(edit func(*guest.CT)) (guest.CTTarget, []string) {
	c := guest.WithDefaults(&guest.CT{Preset: "small", Template: "archive"})
	if edit != nil {
		edit(c)
	}
	r := &model.Resource{Addr: model.Address{Kind: "ct", Name: "web-1"}, Spec: c}
	problems := resolve.Guest("ct")(r, scope())
	return guest.TargetOf(r).(guest.CTTarget), summaries(problems)
}

func summaries(problems []model.Problem) []string {
	out := []string{}
	for _, p := range problems {
		out = append(out, p.Path+": "+p.Summary)
	}
	return out
}

// What the files leave open comes from preset, spec, site and host.
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
		"IPv6 for ip":        {func(v *guest.VM) { v.NICs = []guest.NIC{{Name: "lan", IP: "fd00::5/64", Gateway: "fd00::1"}} }, `nic.lan.ip: "fd00::5/64" is not an address with prefix length`},
		"power":              {func(v *guest.VM) { v.Power = "on" }, `power: power = "on" is not valid`},
		"tag":                {func(v *guest.VM) { v.Tags = []string{"a b"} }, `tags: "a b" is not a tag`},
		"option with a name": {func(v *guest.VM) { v.Options = map[string]string{"cores": "4"} }, `options.cores: option "cores" has an attribute of its own`},
		"unknown option":     {func(v *guest.VM) { v.Options = map[string]string{"balon": "0"} }, `options.balon: PVE has no option "balon" for a VM`},
		"slot of cloud-init": {func(v *guest.VM) { v.Options = map[string]string{"ide2": "none,media=cdrom"} }, "options.ide2: ide2 is the cloud-init drive"},
		"ownership tag":      {func(v *guest.VM) { v.Description = "homestak-gitops: x" }, "description: description holds an ownership tag"},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := vm(c.files)
			require.Equal(t, []string{c.want}, problems)
		})
	}
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
		require.Empty(t, resolve.Guest(kind)(r, in))
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
	require.Equal(t, []string{"recreate: recreate must not come from a secret"}, summaries(resolve.Guest("vm")(r, scope())))
}
