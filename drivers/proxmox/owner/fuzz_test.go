package owner_test

import (
	"maps"
	"testing"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
)

// FuzzS1Tags: no description makes a guest ours that the site did not sign for, whatever somebody changes in a tag that it
// signed for another one.
func FuzzS1Tags(f *testing.F) {
	id := owner.Identity{Site: "home", Owner: "father", Host: "father", Keys: func(string) [][]byte { return [][]byte{[]byte("the key"), []byte("the one before")} }}
	const uuid, mac = "11111111-2222-3333-4444-555555555555", "BC:24:11:00:00:99"
	vm := map[string]string{"name": "web", "smbios1": "uuid=" + uuid, "meta": "creation-qemu=9.0.2,ctime=1000000000"}
	ct := map[string]string{"hostname": "db", "net0": "name=eth0,bridge=vmbr0,hwaddr=" + mac}
	hers := map[api.GuestRef]map[string]string{{Node: "father", VMID: 101}: vm, {Node: "father", VMID: 103, LXC: true}: ct}
	for _, m := range []owner.Tag{
		{Site: "home", Type: "vm", Node: "web", Owner: "father", UUID: uuid, CreationVMID: 101},
		{Site: "home", Type: "vm", Node: "web", Owner: "father", VMID: 101},
		{Site: "home", Type: "vm", Node: "web", Owner: "father", UUID: uuid, Begun: 1_000_000_000},
		{Site: "home", Type: "ct", Node: "db", Owner: "father", MAC: mac, CreationVMID: 103},
		{Site: "home", Type: "template", Node: "golden", Owner: "father", UUID: uuid},
	} {
		for vmid, cfg := range map[int]map[string]string{200: vm, 201: ct} {
			signed := id.Sign(m, api.GuestRef{Node: "father", VMID: vmid, LXC: m.Type == "ct"}, api.GuestConfig{Now: cfg, Next: cfg})
			f.Add("notes\n" + signed.Line())
			m.V = 1
			f.Add(m.Line())
		}
	}
	f.Fuzz(func(t *testing.T, description string) {
		for at, keys := range hers {
			cfg := maps.Clone(keys)
			cfg["description"] = description
			if is := id.Check(api.GuestConfig{Now: cfg, Next: cfg}, at); is.Owned || is.Tag.AllowsRemoval() {
				t.Fatalf("%s is ours by %q", at, description)
			}
		}
	})
}
