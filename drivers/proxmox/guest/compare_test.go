package guest_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// schemaOf is the kind of a guest.
func schemaOf(r *model.Resource) model.Kind {
	if _, ct := r.Spec.(*guest.CT); ct {
		return guest.CTSchema()
	}
	return guest.VMSchema()
}

// differing lists what a plan would change, as "path: class", in the order of the paths.
func differing(k model.Kind, want, have *model.Resource) []string {
	aligned := *have
	aligned.Spec = model.Clone(have.Spec)
	k.Align(want, &aligned)
	values, costs := map[string][2]any{}, map[string]model.Class{}
	for i, r := range []*model.Resource{want, &aligned} {
		for _, a := range model.Attrs(r.Spec) {
			pair := values[a.Path]
			pair[i] = a.Value
			values[a.Path], costs[a.Path] = pair, a.Cost
		}
	}
	out := []string{}
	for _, path := range slices.Sorted(maps.Keys(values)) {
		if v := values[path]; !reflect.DeepEqual(v[0], v[1]) {
			out = append(out, fmt.Sprintf("%s: %s", path, k.Class(want, have, path, costs[path])))
		}
	}
	return out
}

// change is a change of a configuration: keys to set; one with "" is deleted.
type change map[string]string

func (c change) of(config map[string]string) map[string]string {
	out := maps.Clone(config)
	for key, val := range c {
		if out[key] = val; val == "" {
			delete(out, key)
		}
	}
	return out
}

// vmConfig and ctConfig are the configurations of the guests that wantedVM and wantedCT describe.
var (
	vmConfig = map[string]string{
		"name": "web-1", "cores": "2", "memory": "2048", "agent": "enabled=1", "tags": "homestak", "onboot": "0", "protection": "0",
		"scsi0": "local-lvm:vm-100-disk-0,discard=on,iothread=1,size=10G,ssd=1", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
		"ipconfig0": "ip=dhcp", "boot": "order=scsi0", "smbios1": "uuid=11111111-1111-4111-8111-111111111111", "cpu": "host",
	}
	ctConfig = map[string]string{
		"hostname": "ct-1", "cores": "1", "memory": "512", "swap": "512", "tags": "homestak", "onboot": "0", "protection": "0", "unprivileged": "1",
		"rootfs": "local-lvm:vm-100-disk-0,size=4G", "net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip=dhcp,type=veth",
	}
	vmTag = owner.Tag{
		Site: "home", Node: "web-1", Type: "vm", UUID: "11111111-1111-4111-8111-111111111111", Options: []string{"cpu"}, From: "image.debian-12",
		Slots: map[string]string{"disk.root": "scsi0", "nic.lan": "net0"},
	}
	ctTag = owner.Tag{
		Site: "home", Node: "ct-1", Type: "ct", MAC: "BC:24:11:00:00:01", From: "template.debian-12", Slots: map[string]string{"disk.root": "rootfs", "nic.lan": "net0"},
	}
)

func wantedVM(edit func(*guest.VM)) *model.Resource {
	v := guest.VMSchema().New().(*guest.VM) // with defaults
	v.Name, v.Image, v.Cores, v.Memory, v.Tags = "web-1", "debian-12", 2, 2048, []string{"homestak"}
	v.Disks = []guest.Disk{{Name: "root", Size: 10, Storage: "local-lvm"}}
	v.NICs = []guest.NIC{{Name: "lan", Bridge: "vmbr0", Model: "virtio", IP: "dhcp"}}
	v.Options, v.Terms = map[string]string{"cpu": "host"}, vmTag.Terms()
	if edit != nil {
		edit(v)
	}
	return &model.Resource{Addr: vmTag.Addr(), Spec: v, Private: &guest.Resolution{}, Guest: &model.Guest{VMID: 100, Node: "father"}}
}

func wantedCT(edit func(*guest.CT)) *model.Resource {
	c := guest.CTSchema().New().(*guest.CT) // with defaults
	c.Hostname, c.Template, c.Cores, c.Memory, c.Tags = "ct-1", "debian-12", 1, 512, []string{"homestak"}
	c.Disks = []guest.CTDisk{{Name: "root", Storage: "local-lvm"}}
	c.NICs = []guest.CTNIC{{Name: "lan", Bridge: "vmbr0", IP: "dhcp"}}
	c.Terms = ctTag.Terms()
	if edit != nil {
		edit(c)
	}
	return &model.Resource{Addr: ctTag.Addr(), Spec: c, Private: &guest.Resolution{}, Guest: &model.Guest{VMID: 100, Node: "father"}}
}

// observed is a running guest whose configuration somebody changed; the pending changes await a
// restart.
func observed(lxc bool, changed, pending change) *model.Resource {
	config, tag := vmConfig, vmTag
	if lxc {
		config, tag = ctConfig, ctTag
	}
	now := changed.of(config)
	cfg := api.GuestConfig{Now: now, Next: pending.of(now), Pending: len(pending) > 0, Digest: "d"}
	return guest.FromConfig(api.ListedGuest{VMID: 100, Node: "father", LXC: lxc, Running: true}, cfg, "", tag)
}

// A guest differs from the files by what they decide, and by nothing that they leave open.
func TestChangesOfAVM(t *testing.T) {
	for name, c := range map[string]struct {
		files            func(*guest.VM)
		changed, pending change
		want             []string
		reverts          []string
	}{
		"as the files say":                   {},
		"other spellings":                    {changed: change{"agent": "1", "tags": "HOMESTAK", "memory": "current=2048"}},
		"cores":                              {files: func(v *guest.VM) { v.Cores = 4 }, want: []string{"cores: pending"}},
		"cores, with a restart":              {files: func(v *guest.VM) { v.Cores, v.Restart = 4, "allowed" }, want: []string{"cores: restart"}},
		"weight of the CPU":                  {files: func(v *guest.VM) { v.Options["cpuunits"] = "200" }, want: []string{"options.cpuunits: hot"}},
		"option that no file has named":      {changed: change{"vga": "std"}},
		"option that left the files":         {files: func(v *guest.VM) { v.Options = nil }, want: []string{"options.cpu: pending"}},
		"MAC address that no file names":     {changed: change{"net0": "virtio=BC:24:11:00:00:99,bridge=vmbr0"}},
		"bridge":                             {changed: change{"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr9"}, want: []string{"nic.lan.bridge: hot"}},
		"disk that was attached by hand":     {changed: change{"scsi1": "local-lvm:vm-100-disk-1,size=1G"}},
		"disk that somebody grew":            {changed: change{"scsi0": "local-lvm:vm-100-disk-0,size=12G"}, want: []string{"disk.root.size: hot"}},
		"size that no file names":            {files: func(v *guest.VM) { v.Disks[0].Size = 0 }, changed: change{"scsi0": "local-lvm:vm-100-disk-0,size=12G"}},
		"storage":                            {files: func(v *guest.VM) { v.Disks[0].Storage = "fast" }, want: []string{"disk.root.storage: migrate"}},
		"image":                              {files: func(v *guest.VM) { v.Image = "debian-13" }, want: []string{"image: data-loss"}},
		"pending, and declared":              {files: func(v *guest.VM) { v.Cores = 4 }, pending: change{"cores": "4"}},
		"pending, and declared with restart": {files: func(v *guest.VM) { v.Cores, v.Restart = 4, "allowed" }, pending: change{"cores": "4"}, want: []string{"pending: restart"}},
		"pending, and not declared":          {pending: change{"cores": "4"}, want: []string{"cores: none"}},
		"pending option of nobody":           {pending: change{"vga": "std"}, reverts: []string{"options.vga"}},
		"pending deletion of nobody":         {changed: change{"vga": "std"}, pending: change{"vga": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			compare(t, wantedVM(c.files), observed(false, c.changed, c.pending), c.want, c.reverts)
		})
	}
}

func TestChangesOfAContainer(t *testing.T) {
	for name, c := range map[string]struct {
		files            func(*guest.CT)
		changed, pending change
		want             []string
	}{
		"as the files say":                   {},
		"memory":                             {files: func(c *guest.CT) { c.Memory = 1024 }, want: []string{"memory: hot"}},
		"name servers":                       {files: func(c *guest.CT) { c.Nameserver = []string{"10.0.0.1"} }, want: []string{"nameserver: pending"}},
		"name servers, with a restart":       {files: func(c *guest.CT) { c.Nameserver, c.Restart = []string{"10.0.0.1"}, "allowed" }, want: []string{"nameserver: restart"}},
		"limit of the CPU":                   {files: func(c *guest.CT) { c.Options = map[string]string{"cpulimit": "2"} }, want: []string{"options.cpulimit: hot"}},
		"further member that nobody named":   {changed: change{"net0": ctConfig["net0"] + ",host-managed=1"}},
		"privileges":                         {files: func(c *guest.CT) { c.Unprivileged = false }, want: []string{"unprivileged: data-loss"}},
		"size that no file names":            {changed: change{"rootfs": "local-lvm:vm-100-disk-0,size=9G"}},
		"pending, and not declared":          {pending: change{"nameserver": "10.0.0.9"}, want: []string{"nameserver: none"}},
		"pending, and declared with restart": {files: func(c *guest.CT) { c.Nameserver, c.Restart = []string{"10.0.0.9"}, "allowed" }, pending: change{"nameserver": "10.0.0.9"}, want: []string{"pending: restart"}},
	} {
		t.Run(name, func(t *testing.T) { compare(t, wantedCT(c.files), observed(true, c.changed, c.pending), c.want, nil) })
	}
}

// compare checks what a plan would change, and what it would revert because no file asks for it.
func compare(t *testing.T, want, have *model.Resource, changes, reverts []string) {
	t.Helper()
	var got []string
	for _, r := range guest.Reverts(guest.TargetOf(want), guest.StateOf(have)) {
		got = append(got, r.Path)
	}
	require.Equal(t, reverts, got)
	require.ElementsMatch(t, changes, differing(schemaOf(want), want, have))
}

// A guest needs something of the host only if it is not running, or a disk or card is to be elsewhere.
func TestNeedsMore(t *testing.T) {
	for name, c := range map[string]struct {
		files func(*guest.VM)
		more  bool
	}{
		"as the files say": {},
		"other cores":      {files: func(v *guest.VM) { v.Cores = 8 }},
		"another storage":  {files: func(v *guest.VM) { v.Disks[0].Storage = "fast" }, more: true},
		"a further disk":   {files: func(v *guest.VM) { v.Disks = append(v.Disks, guest.Disk{Name: "data", Storage: "local-lvm", Size: 1}) }, more: true},
		"another bridge":   {files: func(v *guest.VM) { v.NICs[0].Bridge = "vmbr9" }, more: true},
		"another MAC":      {files: func(v *guest.VM) { v.NICs[0].MAC = "BC:24:11:00:00:99" }, more: true},
		"an image in a CD": {files: func(v *guest.VM) { v.Options["ide0"] = "local:iso/x.iso,media=cdrom" }, more: true},
		"an empty CD":      {files: func(v *guest.VM) { v.Options["ide0"] = "none,media=cdrom" }},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.more, guest.NeedsMore(wantedVM(c.files), observed(false, nil, nil)))
		})
	}
}

// Devices keep their slots, and new ones get slots that nobody else has.
func TestSlots(t *testing.T) {
	want := guest.TargetOf(wantedVM(func(v *guest.VM) {
		v.Disks = append(v.Disks, guest.Disk{Name: "data"}, guest.Disk{Name: "logs", Bus: "sata"})
		v.Options["scsi1"] = "none,media=cdrom"
	}))
	byHand := change{"scsi2": "local-lvm:vm-100-disk-9,size=1G"}.of(vmConfig)
	require.Equal(t, map[string]string{"disk.root": "scsi0", "disk.data": "scsi3", "disk.logs": "sata0", "nic.lan": "net0"},
		want.Slots(api.GuestConfig{Now: byHand, Next: byHand}, vmTag.Slots))
	ct := guest.TargetOf(wantedCT(func(c *guest.CT) { c.Disks = append(c.Disks, guest.CTDisk{Name: "data", Path: "/data"}) }))
	require.Equal(t, map[string]string{"disk.root": "rootfs", "disk.data": "mp0", "nic.lan": "net0"}, ct.Slots(api.GuestConfig{}, nil))
	require.Equal(t, map[string]string{"disk.root": "virtio0", "nic.lan": "net0"}, guest.CloneSlots(want, "virtio0"))
}
