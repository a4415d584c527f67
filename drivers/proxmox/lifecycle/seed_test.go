package lifecycle

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
)

type testingT interface {
	require.TestingT
	Helper()
}

// read unpacks an image with a third-party program.
func read(t testingT, dir string, image []byte) (label string, files map[string]string) {
	t.Helper()
	f, err := os.CreateTemp(dir, "*.iso")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	_, err = f.Write(image)
	require.NoError(t, err)
	fsys, err := iso9660.Read(file.New(f, true), int64(len(image)), 0, 2048)
	require.NoError(t, err)
	files = map[string]string{}
	entries, err := fsys.ReadDir(".")
	require.NoError(t, err)
	for _, e := range entries {
		data, err := fs.ReadFile(fsys, e.Name())
		require.NoError(t, err, "%s", e.Name())
		files[e.Name()] = string(data)
	}
	return strings.TrimRight(fsys.Label(), " \x00"), files
}

func TestImageIsReadBack(t *testing.T) {
	want := map[string]string{
		"user-data": "#cloud-config\npackages: [nginx]\n", "meta-data": "{}", "network-config": strings.Repeat("x", 5000), "vendor-data": "",
	}
	var list []imageFile
	for _, name := range []string{"user-data", "meta-data", "network-config", "vendor-data"} {
		list = append(list, imageFile{Name: name, Data: []byte(want[name])})
	}
	image, err := newImage(label, list)
	require.NoError(t, err)
	label, files := read(t, t.TempDir(), image)
	require.Equal(t, "cidata", label)
	require.Equal(t, want, files)
}

// TestImagesOfAllSortsAreReadBack: whatever files are put on, a reader finds them
// and nothing else, and the bytes do not depend on when or in which order.
func TestImagesOfAllSortsAreReadBack(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z][a-z0-9]{0,10}(-[a-z0-9]{1,8})?`), 1, 6, func(s string) string { return strings.ReplaceAll(s, "-", "_") }).Draw(t, "names")
		want, list := map[string]string{}, []imageFile{}
		for _, n := range names {
			data := bytes.Repeat([]byte{byte(rapid.IntRange(1, 255).Draw(t, "byte"))}, rapid.IntRange(0, 5000).Draw(t, "size"))
			want[n], list = string(data), append(list, imageFile{Name: n, Data: data})
		}
		image, err := newImage("cidata", list)
		require.NoError(t, err)
		again, err := newImage("cidata", rapid.Permutation(list).Draw(t, "order"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(image, again))
		label, files := read(t, dir, image)
		require.Equal(t, "cidata", label)
		require.Equal(t, want, files)
	})
}

// TestOtherToolsReadIt asks the tools of Linux distributions, where they are.
func TestOtherToolsReadIt(t *testing.T) {
	image, err := seed().Image()
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "seed.iso")
	require.NoError(t, os.WriteFile(name, image, 0o600))
	for _, c := range []struct {
		tool  string
		args  []string
		holds []string
	}{
		{"isoinfo", []string{"-d", "-i", name}, []string{"Volume id: cidata", "Joliet with UCS level 3 found", "Rock Ridge signatures version 1 found"}},
		{"isoinfo", []string{"-f", "-R", "-i", name}, []string{"/meta-data\n", "/network-config\n", "/user-data\n", "/vendor-data\n"}},
		{"isoinfo", []string{"-f", "-J", "-i", name}, []string{"/meta-data", "/network-config", "/user-data", "/vendor-data"}},
		{"isoinfo", []string{"-R", "-i", name, "-x", "/user-data"}, []string{seed().UserData}},
		{"isoinfo", []string{"-J", "-i", name, "-x", "/user-data"}, []string{seed().UserData}},
		{"xorriso", []string{"-indev", name, "-find", "/"}, []string{"'/user-data'", "'/network-config'"}},
	} {
		t.Run(c.tool+" "+c.args[0]+c.args[1], func(t *testing.T) {
			if _, err := exec.LookPath(c.tool); err != nil {
				t.Skip(c.tool + " is not installed")
			}
			out, err := exec.CommandContext(t.Context(), c.tool, c.args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
			for _, s := range c.holds {
				require.Contains(t, string(out), s)
			}
			require.NotContains(t, strings.ToLower(string(out)), "corrupt")
		})
	}
}

func TestImpossibleImages(t *testing.T) {
	for name, c := range map[string]struct {
		label string
		files []imageFile
		says  string
	}{
		"no label":       {"", nil, "volume label"},
		"long label":     {strings.Repeat("a", 17), nil, "volume label"},
		"odd label":      {"ä", nil, "volume label"},
		"upper case":     {"cidata", []imageFile{{Name: "User"}}, "is not possible on a seed image"},
		"path":           {"cidata", []imageFile{{Name: "a/b"}}, "is not possible on a seed image"},
		"hidden":         {"cidata", []imageFile{{Name: ".."}}, "is not possible on a seed image"},
		"no name":        {"cidata", []imageFile{{}}, "is not possible on a seed image"},
		"twice":          {"cidata", []imageFile{{Name: "a"}, {Name: "a"}}, "are one in ISO 9660"},
		"one in capital": {"cidata", []imageFile{{Name: "a-b"}, {Name: "a.b"}}, "are one in ISO 9660"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newImage(c.label, c.files)
			require.ErrorContains(t, err, c.says)
		})
	}
	var many []imageFile
	for i := range 40 {
		many = append(many, imageFile{Name: fmt.Sprintf("file-%d", i)})
	}
	_, err := newImage("cidata", many)
	require.ErrorContains(t, err, "too many")
}

func TestAnEmptyImageIsSmallerThanAnySeed(t *testing.T) {
	image, err := Seed{}.Image()
	require.NoError(t, err)
	require.Less(t, len(EmptyImage()), len(image))
	label, files := read(t, t.TempDir(), EmptyImage())
	require.Equal(t, "empty", label)
	require.Empty(t, files)
}

// FuzzNames: a name is either refused or read back as it was.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"user-data", "USER-DATA", "a.b", "../x", "", "ü", strings.Repeat("n", 64), strings.Repeat("n", 65), "x;1", "-"} {
		f.Add(s, "text")
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, name, data string) {
		image, err := newImage("cidata", []imageFile{{Name: name, Data: []byte(data)}})
		if err != nil {
			return
		}
		require.True(t, utf8.ValidString(name))
		_, files := read(t, dir, image)
		require.Equal(t, map[string]string{name: data}, files)
	})
}

func seed() Seed {
	return Seed{
		Instance: "homestak-1", Name: "web-1", Domain: "home.test", UserData: "#cloud-config\nruncmd: [echo ü]\n", User: "homestak",
		Keys: []string{`ssh-ed25519 AAAA "me" <x@y>`}, DNS: []string{"10.0.0.1"},
		NICs: []NIC{{Name: "lan", MAC: "BC:24:11:00:00:01", IP: "10.0.0.5/24", Gateway: "10.0.0.1"}, {Name: "dmz", MAC: "BC:24:11:00:00:02", IP: "dhcp"}, {Name: "bare", MAC: "BC:24:11:00:00:03"}},
	}
}

// TestDocumentsOfTheSeed reads the documents as cloud-init does: as YAML.
func TestDocumentsOfTheSeed(t *testing.T) {
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
	s.NICs = []NIC{{Name: "lan", MAC: "BC:24:11:00:00:01", IP: "2001:db8::5/64", Gateway: "2001:db8::1"}}
	image, err := s.Image()
	require.NoError(t, err)
	_, files := read(t, t.TempDir(), image)
	require.Contains(t, files["network-config"], `"to":"::/0"`)
}

func TestBothFamiliesAndMTU(t *testing.T) {
	s := seed()
	s.DNS, s.Domain = nil, ""
	s.NICs = []NIC{
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
		"#cloud-config\n" + strings.Repeat("x", maxUserData): false,
	} {
		err := CheckUserData(text)
		require.Equal(t, ok, err == nil, "%.40q: %v", text, err)
	}
	require.NotContains(t, CheckUserData("hunter2: yes").Error(), "hunter2")
}

// FuzzSeedNames: a name that is taken for ours is written back as it was.
func FuzzSeedNames(f *testing.F) {
	for _, s := range []string{
		"local:iso/homestak-seed.home.web-1.0123456789ab.00000000-0000-0000-0000-000000000000.iso", "local:iso/homestak.home.web-1.0123456789ab.iso",
		"local:iso/homestak-seed.home.web-1.iso", "", "local:iso/../homestak-seed.a.b.0123456789ab.00000000-0000-0000-0000-000000000000.iso",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, volid string) {
		name, ok := parseName(volid)
		if !ok {
			return
		}
		again := name.Volume("x")
		require.Equal(t, volid[strings.LastIndex(volid, "/")+1:], strings.TrimPrefix(again, "x:iso/"))
		_, _, _, image := objects.ParseFileName(again)
		require.False(t, image, "an image that a site declares")
	})
}
