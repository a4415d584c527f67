package owner_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

func TestTagSurvivesADescription(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		notes := rapid.StringMatching(`[a-zäöü%&=;#"{}\\ \n\t]{0,60}`).Draw(t, "notes")
		m := owner.Tag{
			V: 1, Site: rapid.String().Draw(t, "site"), Node: "web-1", Type: "vm", Owner: "father", UUID: "u",
			Needs: []model.Address{{Kind: "image", Name: "debian-12"}},
		}
		full := m.Line()
		if n := strings.TrimRight(notes, " \t\n"); n != "" {
			full = n + "\n" + full
		}
		gotNotes, got, found := owner.ParseDescription(full + "\n ") // PVE may or may not cut what trails
		require.True(t, found)
		require.Equal(t, m, got)
		require.Equal(t, strings.TrimRight(notes, " \t\n"), gotNotes)
		require.NotContains(t, m.Line(), "\n")
	})
}

func TestDescriptionWithoutTag(t *testing.T) {
	for _, s := range []string{"", "just notes", "homestak-gitops is nice", "see homestak-gitops: {}"} {
		_, _, found := owner.ParseDescription(s)
		require.False(t, found, s)
	}
	notes, m, found := owner.ParseDescription("above\n" + owner.Tag{V: 1, Node: "web-1"}.Line() + "\nsomething below\n")
	require.True(t, found)
	require.Equal(t, "web-1", m.Node)
	require.Equal(t, "above\nsomething below", notes)
	notes, m, found = owner.ParseDescription("notes\nhomestak-gitops: {broken")
	require.True(t, found)
	require.Equal(t, owner.Tag{}, m)
	require.Equal(t, "notes", notes)
}

// TestN14TagsOfEarlierVersions: a tag that was signed before guests had Content and Recreate is proven.
func TestN14TagsOfEarlierVersions(t *testing.T) {
	const uuid = "11111111-2222-3333-4444-555555555555"
	id := owner.Identity{Site: "home", Owner: "father", Host: "father", Keys: func(string) [][]byte { return [][]byte{[]byte("the key")} }}
	cfg := map[string]string{"smbios1": "uuid=" + uuid, "meta": "creation-qemu=9.0.2,ctime=1000000000", "description": earlier}
	is := id.Check(api.GuestConfig{Now: cfg, Next: cfg}, api.GuestRef{Node: "father", VMID: 101})
	require.Equal(t, owner.Proven, is.Tag.Trust, is.Against)
	require.Empty(t, is.Tag.Content+is.Tag.Recreate)
	for _, field := range []string{`"content":"x"`, `"recreate":"x"`} {
		cfg["description"] = strings.Replace(earlier, `"needs"`, field+`,"needs"`, 1)
		is = id.Check(api.GuestConfig{Now: cfg, Next: cfg}, api.GuestRef{Node: "father", VMID: 101})
		require.Equal(t, []any{owner.Unsigned, false}, []any{is.Tag.Trust, is.Owned}, "a field cannot be added")
	}
}

const earlier = `homestak-gitops: {"v":2,"site":"home","type":"vm","node":"web","owner":"father","uuid":"11111111-2222-3333-4444-555555555555","born":101,"from":"image.debian-12","needs":["image.debian-12"],"sig":"1.VLt-5J_ClTDq5s88H1vlYA"}`

// FuzzS1Tags: a guest is managed only if the site signed its tag; no edit of a tag that was signed for another guest changes that.
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
