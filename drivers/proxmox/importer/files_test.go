package importer_test

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/importer"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// machine is the configuration of a VM that was made by hand.
func machine(n int, more map[string]string) pve.Guest {
	c := map[string]string{
		"name": fmt.Sprintf("web-%d", n), "memory": "2048", "cores": "2", "scsi0": fmt.Sprintf("tank:vm-%d-disk-0,size=10G", n), "boot": "order=scsi0",
		"smbios1": fmt.Sprintf("uuid=00000000-0000-4000-8000-%012d", n), "net0": fmt.Sprintf("virtio=BC:24:11:00:%02X:%02X,bridge=vmbr1", n/256, n%256),
	}
	maps.Copy(c, more)
	maps.DeleteFunc(c, func(_, value string) bool { return value == "" })
	return pve.Guest{VMID: n, Node: "father", Config: c}
}

// of is a host with guests, in a new world.
func of(t *testing.T, guests ...pve.Guest) *world {
	t.Helper()
	w := newWorld(t, pve.New(pve.Config{Bridges: []string{"vmbr0", "vmbr1"}, Password: "secret99"}))
	w.host.Edit(func(e *pve.Edit) {
		for _, g := range guests {
			e.Add(g)
		}
	})
	return w
}

// Values that most guests have are written once: sizes in presets, storage and bridge in the host block. At most 50 nodes are in a file.
func TestManyGuestsAreShort(t *testing.T) {
	var guests []pve.Guest
	for n := 101; n <= 153; n++ {
		guests = append(guests, machine(n, nil))
	}
	w := of(t, guests...)
	_, report := w.importing(importer.Options{})
	w.load()
	require.Equal(t, []string{"hosts/father.hcl", "manifests/father-2.hcl", "manifests/father.hcl", "presets.hcl", "site.hcl"}, report.Files)
	require.Contains(t, w.text(), "storage {\n    disks = \"tank\"\n  }")
	require.Contains(t, w.text(), "preset \"c2-2g-10g\" {\n  cores  = 2\n  memory = 2048\n  disk   = 10\n}")
	require.Contains(t, string(w.files["manifests/father-2.hcl"].Data), `
  node "web-153" {
    type   = "vm"
    vmid   = 153
    adopt  = "00000000-0000-4000-8000-000000000153"
    drift  = "report"
    preset = preset.c2-2g-10g
    power  = "stopped"
    agent  = false
    options = {
      boot = "order=scsi0"
    }

    nic "net0" {
    }
  }
`)
	var text strings.Builder
	report.Text(&text)
	require.Equal(t, "host father: 53 guests written\n  hosts/father.hcl\n  manifests/father-2.hcl\n  manifests/father.hcl\n  presets.hcl\n  site.hcl\n", text.String())
}

// A name of Proxmox VE is not always one of a node.
func TestNamesOfNodes(t *testing.T) {
	w := of(t, machine(101, map[string]string{"name": "Web.Example.com"}), machine(102, map[string]string{"name": "web-example-com"}),
		machine(103, map[string]string{"name": ""}), machine(104, map[string]string{"name": "7up"}), machine(105, map[string]string{"name": strings.Repeat("a", 63) + ".b"}),
		machine(106, map[string]string{"name": strings.Repeat("a", 63)}))
	_, report := w.importing(importer.Options{})
	w.load()
	var names []string
	for _, i := range report.Imported {
		names = append(names, i.Node)
	}
	require.Equal(t, []string{"web-example-com", "web-example-com-102", "vm-103", "vm-104", strings.Repeat("a", 63), strings.Repeat("a", 57) + "-106"}, names)
	require.Contains(t, w.text(), "name   = \"Web.Example.com\"")
	require.Contains(t, w.text(), "name   = \"7up\"")
}

// A guest may have the name that another one would get.
func TestNamesOfNodesDiffer(t *testing.T) {
	w := of(t, machine(101, map[string]string{"name": "web"}))
	_, _ = w.importing(importer.Options{})
	w.load()
	for n, name := range map[int]string{105: "web-106", 106: "web", 108: "vm-109", 109: "no"} {
		w.host.Edit(func(e *pve.Edit) { e.Add(machine(n, map[string]string{"name": name})) })
	}
	w.site.Naming = &model.Naming{Pattern: "web.*|vm.*"}
	_, report := w.importing(importer.Options{})
	w.load()
	var names []string
	for _, i := range report.Imported {
		names = append(names, i.Node)
	}
	require.Equal(t, []string{"web-106", "web-106-2", "vm-109", "vm-109-2"}, names)
}

// Notes are adopted in whichever Unicode form they were typed, and stay in it.
func TestNotesThatAreNotNormalised(t *testing.T) {
	const notes = "cafe\u0301"
	container := pve.Guest{VMID: 102, Kind: "lxc", Config: map[string]string{
		"hostname": "cache", "arch": "amd64", "ostype": "debian", "memory": "512", "rootfs": "tank:vm-102-disk-0,size=2G",
		"net0": "name=wan,bridge=vmbr0,hwaddr=BC:24:11:00:00:99,type=veth", "description": notes,
	}}
	w := of(t, machine(101, map[string]string{"description": notes}), container)
	_, report := w.importing(importer.Options{})
	require.Len(t, report.Imported, 2)
	w.load()
	p := w.plan()
	require.Empty(t, p.Findings)
	require.Equal(t, plan.Summary{Adopt: 2}, p.Summary)
	w.apply(p)
	for _, g := range w.host.Snapshot().Guests {
		require.True(t, strings.HasPrefix(g.Config["description"], notes), "%q", g.Config["description"])
	}
	require.Empty(t, w.plan().Steps)
}

// A guest that cannot be adopted is named with what to do. What only root@pam may set stays, and so do secrets.
func TestWhatIsNotWritten(t *testing.T) {
	w := of(t, machine(101, map[string]string{"smbios1": ""}), machine(102, nil), machine(103, map[string]string{"smbios1": "uuid=00000000-0000-4000-8000-000000000102"}),
		machine(104, map[string]string{"lock": "backup"}), machine(105, nil), machine(106, map[string]string{"description": strings.Repeat("x", 7000)}),
		machine(107, map[string]string{"ipconfig0": "ip=10.0.0.7/24"}), machine(108, map[string]string{"ipconfig0": "ip=10.0.0.7/24"}),
		machine(109, map[string]string{"args": "-secret x", "hostpci0": "0000:01:00.0", "ide0": "tank:vm-109-disk-1,size=1G", "cipassword": "do-not-write-me", "scsi1": "/dev/sdb"}))
	w.host.Edit(func(e *pve.Edit) { e.Start(105); e.Pend(105, "cores", "4") })
	_, report := w.importing(importer.Options{})
	w.load()
	why := map[int]string{}
	for _, s := range report.Skipped {
		why[s.VMID] = s.Why
		require.NotEmpty(t, s.Fix)
	}
	require.Equal(t, map[int]string{
		101: "it has no SMBIOS UUID", 102: "another guest has the same identity", 103: "another guest has the same identity", 104: "it is locked (backup)",
		105: "changes of it are pending (cores)", 106: "description too long", 108: "its static address is taken",
	}, why)
	require.Len(t, report.Imported, 2)
	var left []string
	for _, l := range report.Imported[1].Left {
		left = append(left, l.Key)
	}
	require.Equal(t, []string{"args", "hostpci0", "ide0", "scsi1"}, slices.Sorted(slices.Values(left)))
	require.Contains(t, w.text(), "# Left as it is: args (")
	require.NotContains(t, w.text(), "-secret x")
	require.NotContains(t, w.text(), "do-not-write-me")
	var text strings.Builder
	report.Text(&text)
	require.Contains(t, text.String(), "not written: vm 102 web-102, vm 103 web-103: another guest has the same identity\n")
}

// A password of cloud-init becomes a secret without a value. Without one the guest is adopted and managed, and its
// password stays. Secrets that are there already must have its name.
func TestPasswordIsASecretWithoutAValue(t *testing.T) {
	w := of(t, machine(101, map[string]string{"cipassword": "do-not-write-me"}))
	_, report := w.importing(importer.Options{})
	require.Equal(t, []string{"web-101"}, report.Secrets())
	require.Contains(t, w.text(), "    password = secret.passwords.web-101\n")
	require.NotContains(t, w.text(), "do-not-write-me")
	var text strings.Builder
	report.Text(&text)
	require.Contains(t, text.String(), "secret without a value: web-101: Proxmox VE does not show the password of a guest, and only a new guest needs it\n  fill it in under passwords before the guest is created again\n")
	w.load()
	before := w.configs("description", "tags")
	w.apply(w.plan())
	require.Equal(t, before, w.configs("description", "tags"))
	require.Empty(t, w.plan().Steps)
	for name, f := range w.files {
		w.files[name] = &fstest.MapFile{Data: []byte(strings.Replace(strings.Replace(string(f.Data), "    drift  = \"report\"\n", "", 1), "memory = 2048", "memory = 4096", 1))}
	}
	w.load()
	p := w.plan()
	require.Equal(t, plan.Summary{Update: 1}, p.Summary, "%v %s", p.Findings, w.text())
	w.apply(p)
	require.Equal(t, before[101]["cipassword"], w.configs()[101]["cipassword"])

	w.host.Edit(func(e *pve.Edit) { e.Add(machine(102, map[string]string{"cipassword": "do-not-write-me"})) })
	_, report = w.importing(importer.Options{})
	require.Equal(t, []importer.Left{{Key: "cipassword", Why: "no secret known here has its name: add web-102 to passwords in the secrets of the site and of its agents, and password = secret.passwords.web-102 here"}}, report.Imported[0].Left)
	w.load()

	w.host.Edit(func(e *pve.Edit) { e.Add(machine(103, map[string]string{"cipassword": "do-not-write-me"})) })
	w.site.Secrets = nil // as in a clone of a site whose agent has them
	_, report = w.importing(importer.Options{From: 103})
	require.Len(t, report.Imported[0].Left, 1)
}

// Notes are written as they are, and those that may hold a password are named.
func TestNotesWithPasswords(t *testing.T) {
	for notes, want := range map[string]bool{
		"root password: x": true, "DB_PASSWD=x": true, "api token = x": true, "Secret:\nx": true, "ask Ann for the password": false, "": false,
	} {
		w := of(t, machine(101, map[string]string{"description": notes}))
		_, report := w.importing(importer.Options{})
		require.Equal(t, want, report.Imported[0].Password, notes)
		var text strings.Builder
		report.Text(&text)
		require.Equal(t, want, strings.Contains(text.String(), "notes: web-101: they may hold a password, and are in the files\n  remove it from description before the files go to git\n"), text.String())
	}
}

// The options choose guests.
func TestChoice(t *testing.T) {
	for vmids, o := range map[string]importer.Options{
		"101 102 103": {}, "102 103": {From: 102}, "101": {To: 101}, "103": {Tag: "db"}, "102": {Name: "b*"}, "": {Only: []string{"ct"}}, " ": {Pool: "none"},
	} {
		w := of(t, machine(101, nil), machine(102, map[string]string{"name": "b"}), machine(103, map[string]string{"tags": "x;db"}))
		_, report := w.importing(o)
		var got []string
		for _, i := range report.Imported {
			got = append(got, fmt.Sprint(i.VMID))
		}
		require.Equal(t, strings.TrimSpace(vmids), strings.Join(got, " "), "%+v", o)
	}
}

// Pools and IP sets are watched: a difference is reported and nothing is written, and without their blocks they stay.
// A file of an image is named, since its URL is not known.
func TestPoolsIPSetsAndImages(t *testing.T) {
	synctest.Test(t, testPoolsIPSetsAndImages)
}

func testPoolsIPSetsAndImages(t *testing.T) {
	w := of(t, machine(101, nil))
	r := &hosts{t: t, host: w.host, set: map[string]int{}}
	r.login("secret99")
	r.ask("POST", "/pools", url.Values{"poolid": {"team"}, "comment": {"by hand"}})
	r.ask("POST", "/pools", url.Values{"poolid": {"Team_A"}})
	r.ask("POST", "/cluster/firewall/ipset", url.Values{"name": {"admins"}, "comment": {"by hand"}})
	r.ask("POST", "/cluster/firewall/ipset/admins", url.Values{"cidr": {"192.0.2.7"}})
	_, doc := r.ask("POST", "/nodes/father/storage/local/download-url", url.Values{"url": {"https://x.test/debian.iso"}, "filename": {"debian.iso"}, "content": {"iso"}})
	require.True(t, r.await(fmt.Sprint(doc["data"])))
	_, report := w.importing(importer.Options{})
	w.load()
	require.Equal(t, []string{"hosts/father.hcl", "images.hcl", "ipsets.hcl", "manifests/father.hcl", "pools.hcl", "site.hcl"}, report.Files)
	require.Equal(t, "# Imported from host father by homestak-gitops v1.\n#\n# Not written, since Proxmox VE does not keep the URL that it came from:\n#   local:iso/debian.iso\n", string(w.files["images.hcl"].Data))
	require.Contains(t, w.text(), "pool \"team\" {\n  host    = host.father\n  comment = \"by hand\"\n  drift   = \"report\"\n}\n")
	require.Contains(t, w.text(), "ipset \"admins\" {\n  host    = host.father\n  entries = [\"192.0.2.7\"]\n  drift   = \"report\"\n}\n")
	var text strings.Builder
	report.Text(&text)
	require.Contains(t, text.String(), "host father: 1 guest written, 2 pools and IP sets written, 2 not written\n")
	require.Contains(t, text.String(), "not written: pool Team_A: its name is not one of a block\n")
	require.Contains(t, text.String(), "not written: image local:iso/debian.iso: Proxmox VE does not keep the URL that it came from\n")
	w.roundTrip(report)

	_, report = w.importing(importer.Options{Only: []string{"pool"}})
	w.load()
	require.Equal(t, []string{"pools.hcl"}, report.Files)
	r.ask("PUT", "/pools/team", url.Values{"comment": {"changed"}})
	p := w.plan()
	require.Empty(t, p.Steps)
	require.Len(t, p.Findings, 1)
	require.Equal(t, `drift: pool.team: comment changed → "by hand" is left as it is (drift = report)`, p.Findings[0].Summary)
}
