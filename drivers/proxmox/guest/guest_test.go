package guest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// machine has an attribute of each form.
type machine struct {
	Cores    int      `hcl:"cores,optional" pve:"cores,always" unset:"1" priv:"VM.Config.CPU" cost:"restart"`
	Sockets  int      `hcl:"sockets,optional" default:"1" pve:"sockets" unset:"1"`
	Agent    bool     `hcl:"agent,optional" default:"true" pve:"agent.enabled"`
	Tags     []string `hcl:"tags,optional" pve:"tags" as:"tags"`
	Features []string `hcl:"features,optional" pve:"features" as:"flags"`
	Shout    string   `hcl:"shout,optional" pve:"shout" as:"loud"`
	Image    string   `hcl:"image,optional" pve:"image" cost:"data-loss"`
	Disk     int      `hcl:"disk,optional"`
}

func table() AttributeTable {
	loud := formatOf(func(s string) string { return s }, func(s string) any { return s + "!" })
	return attributesOf[machine](map[string]format{"loud": loud})
}

func TestFieldsBecomeKeys(t *testing.T) {
	spec := WithDefaults(new(machine))
	require.Equal(t, &machine{Sockets: 1, Agent: true}, spec)

	spec.Cores, spec.Tags, spec.Features, spec.Image, spec.Shout = 1, []string{"web", "prod"}, []string{"nesting"}, "debian", "hey"
	require.Equal(t, api.Params{
		"cores": 1, "sockets": "", "agent": "1", "tags": "web;prod", "features": "nesting=1", "shout": "hey!",
	}, table().Settings(spec), "what is said anyway goes without its key, unless its tag says always")
	require.Equal(t, api.Params{"image": "debian"}, table().Creation(spec), "a change of it would lose data")
}

func TestKeysBecomeFields(t *testing.T) {
	got := &machine{}
	table().Observe(got, map[string]string{"sockets": "2", "agent": "enabled=1,type=isa", "features": "nesting=1,fuse=0"})
	require.Equal(t, &machine{Cores: 1, Sockets: 2, Agent: true, Features: []string{"nesting"}}, got)
}

func TestAMemberLeavesTheOthers(t *testing.T) {
	all := table()
	agent := all.ByKey("agent")
	require.Same(t, agent, all.ByName("agent"))
	require.Equal(t, "enabled=1,type=isa", agent.Value(&machine{Agent: true}, "enabled=0,type=isa"))
	require.Equal(t, "type=isa", agent.Value(&machine{}, "enabled=1,type=isa"))
	require.Equal(t, model.ClassRestart, table().ByName("cores").Cost)
	require.Nil(t, table().ByName("disk"), "it is no key")
}

func TestRefusedValuesAreNamed(t *testing.T) {
	spec := &machine{Cores: 4000, Shout: "hey"}
	got := table().Refused(spec, func(key, _ string) string { return map[string]string{"cores": " at most 128\n"}[key] })
	require.Equal(t, []Refusal{{Name: "cores", Text: "4000", Why: "at most 128"}}, got)
}

// kindOf is the kind of a guest.
func kindOf(r *model.Resource) model.Kind {
	if _, ct := r.Spec.(*CT); ct {
		return CTSchema()
	}
	return VMSchema()
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

func wantedVM(edit func(*VM)) *model.Resource {
	v := VMSchema().New().(*VM) // with defaults
	v.Name, v.Image, v.Cores, v.Memory, v.Tags = "web-1", "debian-12", 2, 2048, []string{"homestak"}
	v.Disks = []Disk{{Name: "root", Size: 10, Storage: "local-lvm"}}
	v.NICs = []NIC{{Name: "lan", Bridge: "vmbr0", Model: "virtio", IP: "dhcp"}}
	v.Options, v.Terms = map[string]string{"cpu": "host"}, vmTag.Terms()
	if edit != nil {
		edit(v)
	}
	return &model.Resource{Addr: vmTag.Addr(), Spec: v, Private: &Resolution{}, Guest: &model.Guest{VMID: 100, Node: "father"}}
}

func wantedCT(edit func(*CT)) *model.Resource {
	c := CTSchema().New().(*CT) // with defaults
	c.Hostname, c.Template, c.Cores, c.Memory, c.Tags = "ct-1", "debian-12", 1, 512, []string{"homestak"}
	c.Disks = []CTDisk{{Name: "root", Storage: "local-lvm"}}
	c.NICs = []CTNIC{{Name: "lan", Bridge: "vmbr0", IP: "dhcp"}}
	c.Terms = ctTag.Terms()
	if edit != nil {
		edit(c)
	}
	return &model.Resource{Addr: ctTag.Addr(), Spec: c, Private: &Resolution{}, Guest: &model.Guest{VMID: 100, Node: "father"}}
}

// running is a guest whose configuration was changed by hand, with pending changes.
func running(lxc bool, changed, pending change) *model.Resource {
	config, tag := vmConfig, vmTag
	if lxc {
		config, tag = ctConfig, ctTag
	}
	now := changed.of(config)
	cfg := api.GuestConfig{Now: now, Next: pending.of(now), Pending: len(pending) > 0, Digest: "d"}
	return FromConfig(api.ListedGuest{VMID: 100, Node: "father", LXC: lxc, Running: true}, cfg, "", tag)
}

// A guest differs from the files by what they decide, and by nothing that they leave open.
func TestChangesOfAVM(t *testing.T) {
	for name, c := range map[string]struct {
		files            func(*VM)
		changed, pending change
		want             []string
		reverts          []string
	}{
		"as the files say":                   {},
		"other spellings":                    {changed: change{"agent": "1", "tags": "HOMESTAK", "memory": "current=2048"}},
		"cores":                              {files: func(v *VM) { v.Cores = 4 }, want: []string{"cores: pending"}},
		"cores, with a restart":              {files: func(v *VM) { v.Cores, v.Restart = 4, "allowed" }, want: []string{"cores: restart"}},
		"weight of the CPU":                  {files: func(v *VM) { v.Options["cpuunits"] = "200" }, want: []string{"options.cpuunits: hot"}},
		"option that no file has named":      {changed: change{"vga": "std"}},
		"option that left the files":         {files: func(v *VM) { v.Options = nil }, want: []string{"options.cpu: pending"}},
		"MAC address that no file names":     {changed: change{"net0": "virtio=BC:24:11:00:00:99,bridge=vmbr0"}},
		"bridge":                             {changed: change{"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr9"}, want: []string{"nic.lan.bridge: hot"}},
		"disk that was attached by hand":     {changed: change{"scsi1": "local-lvm:vm-100-disk-1,size=1G"}},
		"disk grown by hand":                 {changed: change{"scsi0": "local-lvm:vm-100-disk-0,size=12G"}, want: []string{"disk.root.size: hot"}},
		"size that no file names":            {files: func(v *VM) { v.Disks[0].Size = 0 }, changed: change{"scsi0": "local-lvm:vm-100-disk-0,size=12G"}},
		"storage":                            {files: func(v *VM) { v.Disks[0].Storage = "fast" }, want: []string{"disk.root.storage: migrate"}},
		"image":                              {files: func(v *VM) { v.Image = "debian-13" }, want: []string{"image: data-loss"}},
		"pending, and declared":              {files: func(v *VM) { v.Cores = 4 }, pending: change{"cores": "4"}},
		"pending, and declared with restart": {files: func(v *VM) { v.Cores, v.Restart = 4, "allowed" }, pending: change{"cores": "4"}, want: []string{"pending: restart"}},
		"pending, and not declared":          {pending: change{"cores": "4"}, want: []string{"cores: none"}},
		"pending undeclared option":          {pending: change{"vga": "std"}, reverts: []string{"options.vga"}},
		"pending undeclared deletion":        {changed: change{"vga": "std"}, pending: change{"vga": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			compare(t, wantedVM(c.files), running(false, c.changed, c.pending), c.want, c.reverts)
		})
	}
}

func TestChangesOfAContainer(t *testing.T) {
	for name, c := range map[string]struct {
		files            func(*CT)
		changed, pending change
		want             []string
	}{
		"as the files say":                   {},
		"memory":                             {files: func(c *CT) { c.Memory = 1024 }, want: []string{"memory: hot"}},
		"name servers":                       {files: func(c *CT) { c.Nameserver = []string{"10.0.0.1"} }, want: []string{"nameserver: pending"}},
		"name servers, with a restart":       {files: func(c *CT) { c.Nameserver, c.Restart = []string{"10.0.0.1"}, "allowed" }, want: []string{"nameserver: restart"}},
		"limit of the CPU":                   {files: func(c *CT) { c.Options = map[string]string{"cpulimit": "2"} }, want: []string{"options.cpulimit: hot"}},
		"further undeclared member":          {changed: change{"net0": ctConfig["net0"] + ",host-managed=1"}},
		"privileges":                         {files: func(c *CT) { c.Unprivileged = false }, want: []string{"unprivileged: data-loss"}},
		"size that no file names":            {changed: change{"rootfs": "local-lvm:vm-100-disk-0,size=9G"}},
		"pending, and not declared":          {pending: change{"nameserver": "10.0.0.9"}, want: []string{"nameserver: none"}},
		"pending, and declared with restart": {files: func(c *CT) { c.Nameserver, c.Restart = []string{"10.0.0.9"}, "allowed" }, pending: change{"nameserver": "10.0.0.9"}, want: []string{"pending: restart"}},
	} {
		t.Run(name, func(t *testing.T) { compare(t, wantedCT(c.files), running(true, c.changed, c.pending), c.want, nil) })
	}
}

// compare checks what a plan would change, and what it would revert because no file asks for it.
func compare(t *testing.T, want, have *model.Resource, changes, reverts []string) {
	t.Helper()
	var got []string
	for _, r := range Reverts(TargetOf(want), StateOf(have)) {
		got = append(got, r.Path)
	}
	require.Equal(t, reverts, got)
	require.ElementsMatch(t, changes, differing(kindOf(want), want, have))
}

// A guest needs something of the host only if it is not running, or a disk or card is to be elsewhere.
func TestNeedsMore(t *testing.T) {
	for name, c := range map[string]struct {
		files func(*VM)
		more  bool
	}{
		"as the files say": {},
		"other cores":      {files: func(v *VM) { v.Cores = 8 }},
		"another storage":  {files: func(v *VM) { v.Disks[0].Storage = "fast" }, more: true},
		"a further disk":   {files: func(v *VM) { v.Disks = append(v.Disks, Disk{Name: "data", Storage: "local-lvm", Size: 1}) }, more: true},
		"another bridge":   {files: func(v *VM) { v.NICs[0].Bridge = "vmbr9" }, more: true},
		"another MAC":      {files: func(v *VM) { v.NICs[0].MAC = "BC:24:11:00:00:99" }, more: true},
		"an image in a CD": {files: func(v *VM) { v.Options["ide0"] = "local:iso/x.iso,media=cdrom" }, more: true},
		"an empty CD":      {files: func(v *VM) { v.Options["ide0"] = "none,media=cdrom" }},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.more, NeedsMore(wantedVM(c.files), running(false, nil, nil)))
		})
	}
}

// Devices keep their slots, and new ones get free slots.
func TestSlots(t *testing.T) {
	want := TargetOf(wantedVM(func(v *VM) {
		v.Disks = append(v.Disks, Disk{Name: "data"}, Disk{Name: "logs", Bus: "sata"})
		v.Options["scsi1"] = "none,media=cdrom"
	}))
	byHand := change{"scsi2": "local-lvm:vm-100-disk-9,size=1G"}.of(vmConfig)
	require.Equal(t, map[string]string{"disk.root": "scsi0", "disk.data": "scsi3", "disk.logs": "sata0", "nic.lan": "net0"},
		want.Slots(api.GuestConfig{Now: byHand, Next: byHand}, vmTag.Slots))
	ct := TargetOf(wantedCT(func(c *CT) { c.Disks = append(c.Disks, CTDisk{Name: "data", Path: "/data"}) }))
	require.Equal(t, map[string]string{"disk.root": "rootfs", "disk.data": "mp0", "nic.lan": "net0"}, ct.Slots(api.GuestConfig{}, nil))
	require.Equal(t, map[string]string{"disk.root": "virtio0", "nic.lan": "net0"}, CloneSlots(want, "virtio0"))
}

// The machine finds an empty disk by its serial number, which is its name.
func TestTheNameOfADiskIsItsSerialNumber(t *testing.T) {
	for _, c := range []struct{ name, slot, want string }{
		{"data", "scsi1", "local-lvm:8,discard=on,iothread=1,ssd=1,serial=data"},
		{"data", "virtio1", "local-lvm:8,discard=on,iothread=1,serial=data"},
		{"root", "scsi0", "local-lvm:8,discard=on,iothread=1,ssd=1"},
		{"a-name-of-21-letters-", "sata1", "local-lvm:8,discard=on,ssd=1"},
	} {
		d := Disk{Name: c.name, Storage: "local-lvm", Size: 8}
		require.Equal(t, c.want, d.NewValue(c.slot))
	}
	d := Disk{Name: "data"}
	require.Equal(t, "local-lvm:vm-100-disk-1,discard=on,iothread=1,ssd=1,serial=data", d.AttachValue("local-lvm:vm-100-disk-1", "scsi1"))
	require.Equal(t, "local-lvm:vm-100-disk-1,ssd=1", d.KeepValue("local-lvm:vm-100-disk-1,ssd=1"), "one that is attached keeps what it has")
}

// An observation is not changed by decisions.
func TestDecisionsChangeNoFacts(t *testing.T) {
	for name, c := range map[string]struct {
		running bool
		ha      string
		facts   Facts
		power   string // that counts
		says    string
	}{
		"as PVE lists it":             {running: true, power: "running"},
		"the HA manager starts it":    {ha: "started", power: "running", says: "that is left to the HA manager, which has it (state started)"},
		"the HA manager gave up":      {ha: "error", power: "running", says: "vm.web-1 does not run"},
		"the HA manager leaves it":    {ha: "stopped", power: "stopped"},
		"paused by hand":              {running: true, facts: Facts{QMP: "paused"}, power: "paused"},
		"a disk failed":               {running: true, facts: Facts{QMP: "io-error"}, power: "running", says: "io-error"},
		"a backup has its process":    {running: true, facts: Facts{QMP: "prelaunch", Lock: &Lock{Value: "backup", Tasks: []string{"UPID:x"}}}, power: "stopped"},
		"a task that died locked it":  {running: true, facts: Facts{Lock: &Lock{Value: "backup"}}, power: "running", says: "is locked (backup) and cannot be changed"},
		"its tasks cannot be listed":  {running: true, facts: Facts{Lock: &Lock{Value: "backup", NotListed: true}}, power: "running"},
		"its lock ended meanwhile":    {running: true, facts: Facts{Lock: &Lock{}}, power: "running"},
		"no restart is due, none bad": {running: true, facts: Facts{UselessRestart: "it failed"}, power: "running"},
	} {
		t.Run(name, func(t *testing.T) {
			r := running(false, nil, nil)
			if r.Guest.HA = c.ha; !c.running {
				r.Guest.Running, r.Spec.(*VM).Power = false, "stopped"
			}
			before := r.Spec.(*VM).Power
			have := c.facts.AddedTo(r)
			require.Equal(t, before, r.Spec.(*VM).Power)

			seen := model.Clone(have.Spec)
			remarks := Remarks(&model.Host{Name: "father"}, wantedVM(nil), have)
			aligned := *have
			aligned.Spec = model.Clone(have.Spec)
			VMSchema().Align(wantedVM(nil), &aligned)
			require.Equal(t, c.power, aligned.Spec.(*VM).Power)
			require.Equal(t, seen, have.Spec, "the observation is only read")

			var text string
			for _, f := range remarks.Findings {
				text += f.Summary + "\n"
			}
			if c.says == "" {
				require.Empty(t, text)
			}
			require.Contains(t, text, c.says)
		})
	}
}

// A time that a clock wrote which was a year ahead asks for no restart: none would help for a year.
func TestS7ClockDocumentsFromTheFuture(t *testing.T) {
	now := time.Now()
	const year = 365 * 24 * time.Hour
	for seeded, want := range map[time.Time]bool{
		now: true, now.Add(-10 * time.Minute): true, now.Add(10 * time.Minute): true, now.Add(-2 * time.Hour): false, now.Add(year): false, now.Add(-year): false,
	} {
		require.Equal(t, want, CloudInitPending(seeded.Unix(), 3600), "%s", seeded.Sub(now))
	}
}

// A card keeps its MAC address, and what the files do not declare.
func TestTextOfANIC(t *testing.T) {
	n, other := NIC{Bridge: "vmbr1", VLAN: 12, Rate: 5}, NIC{Bridge: "vmbr1", MAC: "AA:BB:CC:00:00:02"}
	for _, c := range []struct {
		nic       NIC
		old, want string
	}{
		{n, "", "virtio,bridge=vmbr1,rate=5,tag=12"},
		{
			n, "virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,host-tunnel=1,queues=0,rate=5.0",
			"virtio=BC:24:11:00:00:01,bridge=vmbr1,host-tunnel=1,queues=0,rate=5.0,tag=12",
		},
		{other, "e1000=BC:24:11:00:00:01,bridge=vmbr0,tag=7", "e1000=AA:BB:CC:00:00:02,bridge=vmbr1"},
		{NIC{Bridge: "vmbr1"}, "model=rtl8139,macaddr=AA:BB:CC:00:00:03,bridge=vmbr0", "rtl8139=AA:BB:CC:00:00:03,bridge=vmbr1"},
	} {
		require.Equal(t, c.want, c.nic.Text(c.old))
	}
}

// TestOtherSpellingsAreNotChanges: the same thing said otherwise.
func TestOtherSpellingsAreNotChanges(t *testing.T) {
	for _, c := range [][3]string{
		{"acpi", "", "1"},
		{"kvm", "1", "yes"},
		{"cpulimit", "2", "2.0"},
		{"cpulimit", "0", ""},
		{"cpu", "", "kvm64"},
		{"cpu", "host,flags=+aes;-pcid", "flags=-pcid;+aes,cputype=host"},
		{"cpu", "host", "host,hidden=0"},
		{"hotplug", "1", "usb,disk;network"},
		{"hotplug", "", "1"},
		{"vga", "", "type=std"},
		{"vga", "virtio", "type=virtio"},
		{"cpuunits", "20000", "10000"},
		{"cpuunits", "", "100"},
		{"watchdog", "i6300esb,action=reset", "action=reset,model=i6300esb"},
		{"rng0", "/dev/urandom", "source=/dev/urandom,max_bytes=1024,period=1000"},
		{"numa0", "cpus=1;0", "cpus=0;1"},
		{"audio0", "device=AC97", "driver=spice,device=AC97"},
		{"shares", "1000", ""},
		{"startdate", "now", ""},
		{"migrate_downtime", "0.1", ""},
		{"usb0", "spice", "host=spice,usb3=0"},
		{"hostpci0", "mapping=gpu", "rombar=on,mapping=gpu"},
		{"virtiofs0", "share", "cache=auto,dirid=share"},
	} {
		require.True(t, VMKeys().Same(c[0], c[1], c[2]), "%v", c)
	}
	for _, c := range [][3]string{
		{"acpi", "", "0"},
		{"cpulimit", "2", "2.5"},
		{"cpu", "host", "max"},
		{"hotplug", "1", "0"},
		{"hotplug", "disk", ""},
		{"vga", "virtio", "virtio,memory=64"},
		{"boot", "order=scsi0;net0", "order=net0;scsi0"},
		{"watchdog", "i6300esb", ""},
		{"balloon", "0", ""},
		{"cpu", "host,flags=+aes", "host,flags=-aes"},
	} {
		require.False(t, VMKeys().Same(c[0], c[1], c[2]), "%v", c)
	}
}

// shown is a configuration as a real PVE answered it, one map of strings for either
// of its two forms, and what had been ordered before that.
type shown struct {
	from    string
	pending json.RawMessage // as GET pending answers
	lxc     bool
	ordered map[string]string // keys of the create request and all changes since
}

// recorded are all configurations in the recordings: those of the folder that is
// set, else of the one beside this repository, else of the copies kept for the simulator.
func recorded(t *testing.T) []shown {
	t.Helper()
	folder := os.Getenv("HOMESTAK_RECORDINGS")
	if folder == "" {
		folder = filepath.Join("..", "..", "..", "..", "shared", "pve-recordings")
	}
	var files []string
	for _, pattern := range []string{
		filepath.Join(folder, "*.json"),
		filepath.Join(folder, "stories", "*.json"),
		filepath.Join("..", "..", "..", "test", "sim", "testdata", "stories", "*.json.gz"),
	} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, found...)
	}
	require.NotEmpty(t, files)
	var out []shown
	for _, file := range files {
		out = append(out, recordedIn(t, file)...)
	}
	return out
}

var (
	configPath = regexp.MustCompile(`/(qemu|lxc)/(\d+)/(config|pending)(\?current=0)?$`)
	createPath = regexp.MustCompile(`/(qemu|lxc)$`)
)

func recordedIn(t *testing.T, file string) []shown {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	if strings.HasSuffix(file, ".gz") {
		z, err := gzip.NewReader(bytes.NewReader(raw))
		require.NoError(t, err)
		raw, err = io.ReadAll(z)
		require.NoError(t, err)
	}
	var doc struct {
		Exchanges []struct {
			Request struct {
				Method, Path string
				Form         [][2]any
			}
			Response struct {
				Status int
				Body   struct{ Data json.RawMessage }
			}
		}
	}
	require.NoError(t, json.Unmarshal(raw, &doc), file)
	var out []shown
	ordered := map[string]map[string]string{} // by VMID
	for i, e := range doc.Exchanges {
		if e.Response.Status != http.StatusOK {
			continue
		}
		m := configPath.FindStringSubmatch(e.Request.Path)
		switch {
		case m == nil && e.Request.Method == http.MethodPost && createPath.MatchString(e.Request.Path):
			keys := map[string]string{}
			for _, f := range e.Request.Form {
				keys[fmt.Sprint(f[0])] = plain(f[1])
			}
			ordered[keys["vmid"]] = keys
		case m == nil:
		case e.Request.Method != http.MethodGet:
			for _, f := range e.Request.Form {
				if key := fmt.Sprint(f[0]); ordered[m[2]] != nil && key != "delete" && key != "revert" {
					ordered[m[2]][key] = plain(f[1])
				} else { // what is deleted or taken back is followed no further
					for gone := range strings.SplitSeq(plain(f[1]), ",") {
						delete(ordered[m[2]], gone)
					}
				}
			}
		default:
			data := e.Response.Body.Data
			if m[3] == "config" {
				data = asPending(t, data)
			}
			out = append(out, shown{fmt.Sprintf("%s %d %s", filepath.Base(file), i, e.Request.Path), data, m[1] == "lxc", maps.Clone(ordered[m[2]])})
		}
	}
	return out
}

func plain(v any) string {
	if f, ok := v.(float64); ok {
		return fmt.Sprintf("%g", f)
	}
	return fmt.Sprint(v)
}

// asPending is an answer of GET config in the form of GET pending.
func asPending(t *testing.T, data json.RawMessage) json.RawMessage {
	t.Helper()
	var keys map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &keys))
	var list []map[string]any
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		list = append(list, map[string]any{"key": k, "value": keys[k]})
	}
	out, err := json.Marshal(list)
	require.NoError(t, err)
	return out
}

// roundTrip is a transport made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// readRecorded reads an answer of GET pending as that of a managed guest.
func readRecorded(t *testing.T, s shown) (*model.Resource, api.GuestConfig) {
	t.Helper()
	c, err := api.Open(api.Config{
		Host: &model.Host{Name: "father", API: "https://pve.test:8006"}, Token: "root@pam!x=y",
		Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			body := io.NopCloser(strings.NewReader(`{"data":` + string(s.pending) + `}`))
			return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r}, nil
		}),
	})
	require.NoError(t, err)
	at := api.GuestRef{Node: "father", VMID: 100, LXC: s.lxc}
	cfg, err := c.ReadConfig(t.Context(), at)
	require.NoError(t, err)
	tag := owner.Tag{V: 1, Site: "home", Node: "db", Type: at.Kind(), UUID: owner.UUID(cfg.Next["smbios1"]), Slots: map[string]string{}}
	for key, val := range cfg.Next {
		if api.IsDrive(key) && api.HoldsData(val) && !api.HoldsState(key) && !strings.HasPrefix(key, "unused") || s.lxc && api.IsMount(key) {
			tag.Slots["disk."+key] = key
		}
	}
	return FromConfig(api.ListedGuest{VMID: 100, Node: "father", LXC: s.lxc}, cfg, "", tag), cfg
}

// A configuration that a real PVE answered is read as a guest, and has what was ordered: none of it
// would be planned again.
func TestRecordedConfigurationsAreRead(t *testing.T) {
	compared := 0
	all := recorded(t)
	for _, s := range all {
		t.Run(s.from, func(t *testing.T) {
			seen, cfg := readRecorded(t, s)
			next := cfg.Next
			if next["lock"] == "create" {
				return
			}
			name, first := "name", "net0"
			if s.lxc {
				name = "hostname"
			}
			attrs := map[string]any{}
			for _, a := range model.Attrs(seen.Spec) {
				attrs[a.Path] = a.Value
			}
			if next[name] != "" {
				require.Equal(t, next[name], attrs[name])
			}
			if next[first] != "" {
				require.Equal(t, "vmbr0", attrs["nic."+first+".bridge"])
			}
			for key, val := range s.ordered {
				if _, spoken := attrs["options."+key]; !spoken || key == "boot" { // PVE changes boot as drives come and go
					continue
				}
				compared++
				same := (&VM{}).SameValue(key, val, next[key])
				if s.lxc {
					same = CTKeys().Same(key, val, next[key])
				}
				require.True(t, same, "%s: ordered %q, shown %q", key, val, next[key])
			}
			want, have := &model.Resource{Spec: model.Clone(seen.Spec)}, &model.Resource{Spec: model.Clone(seen.Spec), Private: seen.Private}
			require.Empty(t, differing(kindOf(seen), want, have), "a guest that is wanted exactly so")
		})
	}
	require.Greater(t, len(all), 40)
	require.Greater(t, compared, 20)
}

func TestFlags(t *testing.T) {
	require.Equal(t, []string{"mount=nfs", "nesting"}, propertyFlags("nesting=1,fuse=0,mount=nfs"))
	require.Equal(t, "fuse=1,nesting=1", encodeFlags([]string{"fuse", "nesting"}))
}

func TestTrunksHaveOneForm(t *testing.T) {
	require.Equal(t, []string{"10", "20-31"}, parseTrunks("30-31;10;20-25;24-29;10"), "ranges that touch are one")
	require.Equal(t, []string{"2", "3"}, parseTrunks("3;2;3"), "a container has no ranges")
	require.Equal(t, []string{"2", "all"}, parseTrunks("2;all"), "what cannot be read stays")
	require.Empty(t, parseTrunks(""))
}
