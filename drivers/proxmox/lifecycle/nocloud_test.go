package lifecycle_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
)

func seed() lifecycle.Seed {
	return lifecycle.Seed{
		Instance: "homestak-1", Name: "web-1", Domain: "home.test", UserData: "#cloud-config\nruncmd: [echo ü]\n", User: "homestak",
		Keys: []string{`ssh-ed25519 AAAA "me" <x@y>`}, DNS: []string{"10.0.0.1"},
		NICs: []lifecycle.NIC{{Name: "lan", MAC: "BC:24:11:00:00:01", IP: "10.0.0.5/24", Gateway: "10.0.0.1"}, {Name: "dmz", MAC: "BC:24:11:00:00:02", IP: "dhcp"}, {Name: "bare", MAC: "BC:24:11:00:00:03"}},
	}
}

// TestWhatAMachineIsTold reads the documents as cloud-init does: as YAML.
func TestWhatAMachineIsTold(t *testing.T) {
	image, err := seed().Image()
	require.NoError(t, err)
	label, files := read(t, t.TempDir(), image)
	require.Equal(t, "cidata", label)
	require.Equal(t, "#cloud-config\nruncmd: [echo ü]\n", files["user-data"])
	for name, want := range map[string]string{
		"meta-data": `{instance-id: homestak-1, local-hostname: web-1}`,
		"vendor-data": `{fqdn: web-1.home.test, manage_etc_hosts: true, package_upgrade: false, user: {name: homestak}, users: [default],
			ssh_authorized_keys: ['ssh-ed25519 AAAA "me" <x@y>']}`,
		"network-config": `{version: 2, ethernets: {
			nic0: {match: {macaddress: "bc:24:11:00:00:01"}, addresses: [10.0.0.5/24], routes: [{to: 0.0.0.0/0, via: 10.0.0.1}], nameservers: {addresses: [10.0.0.1], search: [home.test]}},
			nic1: {match: {macaddress: "bc:24:11:00:00:02"}, dhcp4: true, nameservers: {addresses: [10.0.0.1], search: [home.test]}},
			nic2: {match: {macaddress: "bc:24:11:00:00:03"}}}}`,
	} {
		var got, expected any
		require.NoError(t, yaml.Unmarshal([]byte(files[name]), &got), name)
		require.NoError(t, yaml.Unmarshal([]byte(strings.ReplaceAll(want, "\t", "")), &expected), name)
		require.Equal(t, expected, got, name)
	}
	require.True(t, strings.HasPrefix(files["vendor-data"], "#cloud-config\n"))
	require.Len(t, files, 4)
}

func TestIPv6Gateway(t *testing.T) {
	s := seed()
	s.NICs = []lifecycle.NIC{{Name: "lan", MAC: "BC:24:11:00:00:01", IP: "2001:db8::5/64", Gateway: "2001:db8::1"}}
	image, err := s.Image()
	require.NoError(t, err)
	_, files := read(t, t.TempDir(), image)
	require.Contains(t, files["network-config"], `"to":"::/0"`)
}

func TestBothFamiliesAndMTU(t *testing.T) {
	s := seed()
	s.DNS, s.Domain = nil, ""
	s.NICs = []lifecycle.NIC{
		{Name: "lan", MAC: "BC:24:11:00:00:01", IP: "10.0.0.5/24", Gateway: "10.0.0.1", IP6: "fd00::5/64", Gateway6: "fd00::1", MTU: 1400},
		{Name: "dmz", MAC: "BC:24:11:00:00:02", IP: "dhcp", IP6: "dhcp"},
		{Name: "san", MAC: "BC:24:11:00:00:03", IP6: "auto"},
	}
	image, err := s.Image()
	require.NoError(t, err)
	_, files := read(t, t.TempDir(), image)
	require.JSONEq(t, `{"version": 2, "ethernets": {
		"nic0": {"match": {"macaddress": "bc:24:11:00:00:01"}, "addresses": ["10.0.0.5/24", "fd00::5/64"], "mtu": 1400,
			"routes": [{"to": "0.0.0.0/0", "via": "10.0.0.1"}, {"to": "::/0", "via": "fd00::1"}]},
		"nic1": {"match": {"macaddress": "bc:24:11:00:00:02"}, "dhcp4": true, "dhcp6": true},
		"nic2": {"match": {"macaddress": "bc:24:11:00:00:03"}, "accept-ra": true}}}`, files["network-config"])
}

func TestUserDataIsKnownByItsFirstLine(t *testing.T) {
	for text, ok := range map[string]bool{
		"#cloud-config\n{}": true, "#cloud-config  \r\n{}": true, "#!/bin/sh\ntrue": true, "#include\nhttps://a.test": true,
		"Content-Type: multipart/mixed; boundary=\"x\"\n": true, "## template: jinja\n#cloud-config\n": true,
		"packages: [nginx]": false, "": false, "#cloud-configuration": false, "\n#cloud-config": false, "#!sh": false,
		"#cloud-config\n" + strings.Repeat("x", lifecycle.MaxUserData): false,
	} {
		err := lifecycle.CheckUserData(text)
		require.Equal(t, ok, err == nil, "%.40q: %v", text, err)
	}
	require.NotContains(t, lifecycle.CheckUserData("hunter2: yes").Error(), "hunter2")
}

func TestAddressesOfCardsAreStable(t *testing.T) {
	require.Equal(t, "BC:24:11:DE:69:E4", lifecycle.MACFor("a", "lan"), "for ever the same")
	require.NotEqual(t, lifecycle.MACFor("a", "lan"), lifecycle.MACFor("b", "lan"))
	require.NotEqual(t, lifecycle.MACFor("a", "lan"), lifecycle.MACFor("a", "dmz"))
	require.Regexp(t, `^BC:24:11(:[0-9A-F]{2}){3}$`, lifecycle.MACFor("a", "lan"))
}
