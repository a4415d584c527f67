package proxmox_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/model"
)

func TestMarkSurvivesADescription(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		notes := rapid.StringMatching(`[a-zäöü%&=;#"{}\\ \n\t]{0,60}`).Draw(t, "notes")
		m := proxmox.Mark{
			V: 1, Site: rapid.String().Draw(t, "site"), Node: "web-1", Type: "vm", Owner: "father", UUID: "u",
			Needs: []model.Address{{Kind: "image", Name: "debian-12"}},
		}
		full := m.Line()
		if n := strings.TrimRight(notes, " \t\n"); n != "" {
			full = n + "\n" + full
		}
		gotNotes, got, found := proxmox.SplitDescription(full + "\n ") // PVE may or may not cut what trails
		require.True(t, found)
		require.Equal(t, m, got)
		require.Equal(t, strings.TrimRight(notes, " \t\n"), gotNotes)
		require.NotContains(t, m.Line(), "\n")
	})
}

func TestDescriptionWithoutMark(t *testing.T) {
	for _, s := range []string{"", "just notes", "homestak-gitops is nice", "see homestak-gitops: {}"} {
		_, _, found := proxmox.SplitDescription(s)
		require.False(t, found, s)
	}
	notes, m, found := proxmox.SplitDescription("above\n" + proxmox.Mark{V: 1, Node: "web-1"}.Line() + "\nsomething below\n")
	require.True(t, found)
	require.Equal(t, "web-1", m.Node)
	require.Equal(t, "above\nsomething below", notes)
	notes, m, found = proxmox.SplitDescription("notes\nhomestak-gitops: {broken")
	require.True(t, found)
	require.Equal(t, proxmox.Mark{}, m)
	require.Equal(t, "notes", notes)
}

func TestCardKeepsWhatIsNotOurs(t *testing.T) {
	n := proxmox.NIC{Bridge: "vmbr1", VLAN: 12, Rate: 5}
	require.Equal(t, "virtio,bridge=vmbr1,rate=5,tag=12", proxmox.Card("", n))
	require.Equal(t, "virtio=BC:24:11:00:00:01,bridge=vmbr1,host-tunnel=1,queues=0,rate=5.0,tag=12", proxmox.Card("virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,host-tunnel=1,queues=0,rate=5.0", n))
	require.Equal(t, "e1000=AA:BB:CC:00:00:02,bridge=vmbr1", proxmox.Card("e1000=BC:24:11:00:00:01,bridge=vmbr0,tag=7", proxmox.NIC{Bridge: "vmbr1", MAC: "AA:BB:CC:00:00:02"}))
	require.Equal(t, "rtl8139=AA:BB:CC:00:00:03,bridge=vmbr1", proxmox.Card("model=rtl8139,macaddr=AA:BB:CC:00:00:03,bridge=vmbr0", proxmox.NIC{Bridge: "vmbr1"}))
}
