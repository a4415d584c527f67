package spec_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
)

const (
	keyA = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA a@laptop"
	keyB = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB b@laptop"
)

func site(s *model.Spec) *model.Site {
	s.Name = "base"
	return &model.Site{
		Domain: "home.example", Timezone: "Europe/Berlin", Packages: []string{"vim", "curl"},
		Postures: map[string]*model.Posture{
			"dev": {Name: "dev", Packages: []string{"strace", "curl"}, SSH: &model.SSHD{Port: 22, PermitRootLogin: "yes", PasswordAuthentication: "yes"}, Sudo: &model.Sudo{NoPasswd: true}},
			"prod": {
				Name: "prod", SSH: &model.SSHD{Port: 2222, PermitRootLogin: "no", PasswordAuthentication: "no"},
				Sudo: &model.Sudo{}, Fail2ban: &model.Fail2ban{Enabled: true},
			},
		},
		Specs:   map[string]*model.Spec{"base": s},
		Secrets: &model.Secrets{Values: map[string]map[string]string{"ssh_keys": {"a": keyA, "b": keyB, "host": "-----BEGIN OPENSSH PRIVATE KEY-----\n"}}},
	}
}

// The specs of all nodes are not held at once: a check has to fit into the memory of the sandbox.
func TestCheckHoldsNoContents(t *testing.T) { //nolint:paralleltest // it measures memory
	s := site(&model.Spec{Config: &model.Config{Files: []model.File{{Path: "/a", Source: "a", Data: bytes.Repeat([]byte{0}, 1<<20)}}}})
	m := &model.Manifest{}
	for range 128 {
		m.Nodes = append(m.Nodes, node())
	}
	s.Manifests = map[string]*model.Manifest{"m": m}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.Empty(t, spec.Check(s))
	runtime.ReadMemStats(&after)
	require.Less(t, after.HeapSys-before.HeapSys, uint64(80<<20))
}

func node() *model.Node { return &model.Node{Name: "edge", Spec: "base"} }

func TestResolve(t *testing.T) {
	one, none := []string{"b"}, []string{}
	upgrades := true
	s, found := spec.Resolve(site(&model.Spec{
		Access: &model.Access{Users: []model.User{
			{Name: "all", Sudo: true}, {Name: "one", SSHKeys: &one, Groups: []string{"video", "audio", "video"}, Shell: "/bin/sh"}, {Name: "none", SSHKeys: &none}, {Name: "root", SSHKeys: &one, Sudo: true},
		}},
		Platform: &model.Platform{Packages: []string{"htop", "vim"}, Services: &model.Services{Enable: []string{"nginx.service", "x.timer"}, Disable: []string{"rpcbind"}}},
		Config: &model.Config{
			Sysctl:             map[string]string{"net.ipv4.tcp_rmem": " 4096\t87380 1 "},
			Files:              []model.File{{Path: "/etc/b", Content: "x", Mode: "600", Owner: "ann:video"}, {Path: "/etc/a", Owner: "ann", Restart: []string{"nginx", "nginx"}}},
			UnattendedUpgrades: &upgrades, Commands: []model.Command{{Name: "c", Run: "true"}},
			Repositories: []model.Repository{{Name: "r", URL: "https://example.org", Suites: []string{"./"}}},
		},
		Sensitive: []string{"config.file./etc/b.content"},
	}), node())
	require.Empty(t, found)
	require.Equal(t, []string{"curl", "htop", "strace", "sudo", "unattended-upgrades", "vim"}, s.Platform.Packages)
	require.Equal(t, map[string]string{"nginx": "enabled", "x.timer": "enabled", "rpcbind": "disabled"}, s.Platform.Services)
	require.Equal(t, "127.0.1.1 edge.home.example edge", s.Identity.Hosts)
	require.Equal(t, "Europe/Berlin", s.Config.Timezone)
	require.Equal(t, map[string]string{"net.ipv4.tcp_rmem": "4096 87380 1"}, s.Config.Sysctl)
	require.EqualValues(t, "nopasswd", s.User("all").Sudo)
	require.Equal(t, []string{keyA, keyB}, s.User("all").Keys, "without ssh_keys every key of the site, and no private one")
	require.Equal(t, []string{keyB}, s.User("one").Keys)
	require.Equal(t, []string{"audio", "video"}, s.User("one").Groups)
	require.EqualValues(t, "none", s.User("one").Sudo)
	require.Empty(t, s.User("none").Keys)
	require.Empty(t, s.User("root").Sudo, "root needs no rule")
	require.Equal(t, "0600 ann video", s.File("/etc/b").Mode+" "+s.File("/etc/b").Owner+" "+s.File("/etc/b").Group)
	require.Equal(t, "0644 ann ann", s.File("/etc/a").Mode+" "+s.File("/etc/a").Owner+" "+s.File("/etc/a").Group)
	require.Contains(t, s.File("/etc/apt/apt.conf.d/zz-homestak-gitops").Content, `Unattended-Upgrade "1"`)
	require.NotNil(t, s.Command("c"))
	require.NotNil(t, s.Repository("r"))
	require.True(t, s.IsSensitive("config.file./etc/b.content"))
	require.False(t, s.IsSensitive("config.file./etc/b.mode"))

	// A parent serves the spec that a push applies.
	document, err := json.Marshal(s)
	require.NoError(t, err)
	served, err := spec.Read(document)
	require.NoError(t, err)
	require.Equal(t, s, served)
}

func TestAPostureIsExpandedInFull(t *testing.T) {
	s, found := spec.Resolve(site(&model.Spec{
		Identity: &model.Identity{Hostname: "web", Domain: "example.org"},
		Access:   &model.Access{Posture: "prod", FormerUsers: "remove", Users: []model.User{{Name: "ann", Sudo: true}}},
	}), node())
	require.Empty(t, found)
	require.Equal(t, "web.example.org", s.Identity.FQDN())
	require.Equal(t, &spec.SSH{Port: "2222", PermitRootLogin: "no", PasswordAuthentication: "no"}, s.Posture.SSH)
	require.NotNil(t, s.Posture.Fail2ban)
	require.Equal(t, "enabled", s.Platform.Services["fail2ban"])
	require.Equal(t, []string{"curl", "fail2ban", "python3-systemd", "sudo", "vim"}, s.Platform.Packages)
	require.EqualValues(t, "password", s.User("ann").Sudo)
	require.Equal(t, "remove", s.Access.FormerUsers)
}

// card is a guest with one card.
type card struct{ ip, gateway string }

func (c card) FirstAddress() (ip, gateway string) { return c.ip, c.gateway }

// What is wanted inside is what the node gets from outside: the card comes before the spec, and the spec
// before the site. Without the block nothing is wanted, whatever the card says.
func TestTheNetworkIsThatOfTheFirstCard(t *testing.T) {
	for _, c := range []struct {
		name     string
		declared *model.Network
		card     card
		want     *spec.Network
	}{
		{"none", nil, card{ip: "10.0.0.9/24"}, nil},
		{"by DHCP", &model.Network{}, card{}, &spec.Network{IP: "dhcp", DNS: []string{"10.0.0.53"}}},
		{"by DHCP with name servers", &model.Network{DNS: []string{"1.1.1.1"}, Gateway: "10.0.0.1"}, card{}, &spec.Network{IP: "dhcp", DNS: []string{"1.1.1.1"}}},
		{"of the spec", &model.Network{IP: "10.0.0.5/24"}, card{}, &spec.Network{IP: "10.0.0.5/24", Gateway: "10.0.0.254", DNS: []string{"10.0.0.53"}}},
		{"of the card", &model.Network{IP: "10.0.0.5/24", Gateway: "10.0.0.1"}, card{"10.0.0.9/24", "10.0.0.2"}, &spec.Network{IP: "10.0.0.9/24", Gateway: "10.0.0.2", DNS: []string{"10.0.0.53"}}},
		{"a card with DHCP", &model.Network{IP: "10.0.0.5/24"}, card{ip: "dhcp"}, &spec.Network{IP: "dhcp", DNS: []string{"10.0.0.53"}}},
		{"a card by hand", &model.Network{IP: "10.0.0.5/24"}, card{ip: "manual"}, &spec.Network{DNS: []string{"10.0.0.53"}}},
	} {
		s := site(&model.Spec{Network: c.declared})
		s.Gateway, s.DNS = "10.0.0.254", []string{"10.0.0.53"}
		n := node()
		n.Resource = &model.Resource{Spec: c.card}
		got, found := spec.Resolve(s, n)
		require.Empty(t, found, c.name)
		require.Equal(t, c.want, got.Network, c.name)
	}
}

func TestANodeWithoutSpecAsksNothing(t *testing.T) {
	s, found := spec.Resolve(site(&model.Spec{}), &model.Node{Name: "edge"})
	require.Empty(t, found)
	require.Equal(t, spec.Empty("edge"), s)
	require.Empty(t, s.Config.Timezone)
}

func TestResolveReportsEverything(t *testing.T) {
	unknown := []string{"c"}
	s := site(&model.Spec{
		Missing: []string{"ssh_keys.d"},
		Access:  &model.Access{Users: []model.User{{Name: "ann", SSHKeys: &unknown}}},
		Platform: &model.Platform{
			Packages: []string{"nginx=1.2", "-y"}, Services: &model.Services{Enable: []string{"nginx", "../x"}, Disable: []string{"nginx.service"}},
		},
		Config: &model.Config{Sysctl: map[string]string{"../../etc/passwd": "x", "net.ipv4.ip_forward": "1\n2"}, Repositories: []model.Repository{{Name: "r", Key: "binary"}}},
	})
	_, found := spec.Resolve(s, node())
	var got []string
	for _, f := range found {
		got = append(got, f.Summary)
		require.NotEmpty(t, f.Detail)
	}
	require.Equal(t, []string{
		`"../../etc/passwd" is not a kernel parameter`, `"net.ipv4.ip_forward" is not a kernel parameter`,
		`the key of repository "r" is not a public key`, `"../x" is not the name of a systemd unit`,
		`service "nginx" is both enabled and disabled`, `"nginx=1.2" is not the name of a package`, `"-y" is not the name of a package`,
		"secret ssh_keys.d is not known here", `ssh key "ssh_keys of user ann" is not a public key`,
	}, got)
}

// A site is checked as a whole: the specs of all nodes, in mode pull too, and those that no node has. What is wrong with a
// spec is reported once, and the values of secrets need not be known.
func TestS7CheckResolvesEverySpec(t *testing.T) {
	reference, literal := []string{"ops"}, []string{"ssh-ed25519 nonsense x"}
	s := site(&model.Spec{Platform: &model.Platform{Packages: []string{"bash:$(id>/pwned)"}}})
	s.Secrets = nil
	s.Specs["fine"] = &model.Spec{Name: "fine", Missing: []string{"secret.auth.x"}, Access: &model.Access{Users: []model.User{{Name: "ann", SSHKeys: &reference}, {Name: "bob"}}}, Platform: &model.Platform{
		Packages: []string{""}, Services: &model.Services{Enable: []string{""}},
	}}
	s.Specs["literal"] = &model.Spec{Name: "literal", Access: &model.Access{Users: []model.User{{Name: "ann", SSHKeys: &literal}}}}
	s.Specs["unused"] = &model.Spec{Name: "unused", Config: &model.Config{Sysctl: map[string]string{"$(id)": "1"}, Mounts: []model.Mount{{Path: "/srv", Disk: "data"}}}}
	s.Specs["disks"] = &model.Spec{Name: "disks", Config: &model.Config{Mounts: []model.Mount{{Path: "/srv", Disk: "data"}}}}
	s.Manifests = map[string]*model.Manifest{"m": {Name: "m", Nodes: []*model.Node{
		{Name: "push", Spec: "base"},
		{Name: "pull", Spec: "base", Mode: model.ModePull},
		{Name: "none"},
		{Name: "a", Spec: "fine"},
		{Name: "b", Spec: "literal", Mode: model.ModePull},
		{Name: "c", Spec: "disks", Mode: model.ModePull, Type: "vm", Resource: &model.Resource{Spec: &disked{[]disk{{"root", 10}}}}},
	}}}
	var got []string
	for _, f := range spec.Check(s) {
		require.Equal(t, diag.Error, f.Severity)
		got = append(got, f.Summary)
	}
	require.ElementsMatch(t, []string{
		`"bash:$(id>/pwned)" is not the name of a package`, `ssh key "ssh_keys of user ann" is not a public key`, `"$(id)" is not a kernel parameter`,
		`node c has no disk "data"`,
	}, got)
}

func TestADocumentOfAnotherVersionIsRefused(t *testing.T) {
	_, err := spec.Read([]byte(`{"version": 2}`))
	require.ErrorContains(t, err, "version 2")
	_, err = spec.Read([]byte(`{`))
	require.Error(t, err)
}

func TestKeys(t *testing.T) {
	require.Equal(t, "a@laptop SHA256:kmYcvdi2GkPe", spec.ShowKey(keyA))
}

// Only a node in mode pull has units that fetch its spec.
func TestResolveRun(t *testing.T) {
	for _, c := range []struct {
		mode  string
		run   *model.Run
		timer string
		every time.Duration
	}{
		{model.ModePush, &model.Run{Trigger: "schedule"}, "", 0},
		{model.ModePull, nil, "at boot", 0},
		{model.ModePull, &model.Run{Interval: time.Minute}, "at boot", 0},
		{model.ModePull, &model.Run{Trigger: "schedule"}, "at boot, and every 1h", time.Hour},
		{model.ModePull, &model.Run{Trigger: "git", Interval: 90 * time.Minute}, "at boot, when its parent has news, and every 1h30m", 90 * time.Minute},
		{model.ModePull, &model.Run{Trigger: "webhook", Interval: 150 * time.Second}, "at boot, when its parent has news, and every 2m30s", 150 * time.Second},
	} {
		n := node()
		n.Mode = c.mode
		s, found := spec.Resolve(site(&model.Spec{Run: c.run}), n)
		require.Empty(t, found)
		if c.timer == "" {
			require.Nil(t, s.Run)
			continue
		}
		require.Equal(t, c.timer, s.Run.Timer)
		require.Equal(t, c.every, s.Run.Every())
		document, err := json.Marshal(s)
		require.NoError(t, err)
		served, err := spec.Read(document)
		require.NoError(t, err)
		require.Equal(t, s.Run, served.Run)
	}
	n := node()
	n.Mode, n.Commands = model.ModePush, model.ModePull
	s, _ := spec.Resolve(site(&model.Spec{}), n)
	require.Equal(t, &spec.Run{Trigger: "webhook", Pushed: true, Timer: "for commands alone"}, s.Run)
	n.Mode, n.Commands = model.ModePull, model.ModePush
	s, _ = spec.Resolve(site(&model.Spec{}), n)
	require.Equal(t, &spec.Run{Trigger: "manual", Timer: "at boot"}, s.Run)
}

// Binary or long content travels as base64, and is compared by its checksum.
func TestAnyContentSurvivesTheDocument(t *testing.T) {
	var all []byte
	for b := range 256 {
		all = append(all, byte(b))
	}
	long := bytes.Repeat([]byte("line\n"), 10_000)
	s, found := spec.Resolve(site(&model.Spec{Config: &model.Config{Files: []model.File{
		{Path: "/binary", Source: "logo.png", Data: all},
		{Path: "/long", Content: string(long)},
		{Path: "/text", Source: "a.conf", Data: []byte("a = ä\n")},
		{Path: "/empty", Source: "empty"},
	}}}), node())
	require.Empty(t, found)
	document, err := json.Marshal(s)
	require.NoError(t, err)
	served, err := spec.Read(document)
	require.NoError(t, err)
	require.Equal(t, s.Config.Files, served.Config.Files)
	require.Equal(t, string(all), served.File("/binary").Bytes())
	require.Equal(t, fmt.Sprintf("sha256:%x", sha256.Sum256(all)), served.File("/binary").Content)
	require.Equal(t, string(long), served.File("/long").Bytes())
	require.Contains(t, served.File("/long").Content, "sha256:")
	require.Equal(t, "a = ä\n", served.File("/text").Content)
	require.Equal(t, "a = ä\n", served.File("/text").Bytes())
	require.Empty(t, served.File("/empty").Bytes())

	_, err = spec.Read([]byte(`{"version": 1, "config": {"files": [{"path": "/x", "content_base64": "%"}]}}`))
	require.ErrorContains(t, err, "content_base64 of file /x")
}

func TestAHostOfProxmoxVE(t *testing.T) {
	declared := func() *model.Spec {
		return &model.Spec{Config: &model.Config{PVE: &model.PVEConfig{NoSubscription: true, RemoveSubscriptionNag: true, Bridge: "vmbr0"}}, At: at(1), Ranges: []model.AttrRange{{Path: "config.pve", At: at(4)}}}
	}
	s, found := spec.Resolve(site(declared()), &model.Node{Name: "inner", Spec: "base", Type: "pve"})
	require.Empty(t, found)
	require.Equal(t, &spec.PVE{NoSubscription: true, RemoveSubscriptionNag: true, Bridge: "vmbr0"}, s.Config.PVE)
	require.Equal(t, "(its address) inner.home.example inner", s.Identity.Hosts)
	require.Contains(t, s.Platform.Packages, "ifupdown2")

	_, found = spec.Resolve(site(declared()), &model.Node{Name: "box", Spec: "base", Type: "ct"})
	require.Len(t, found, 1)
	require.Equal(t, "node box is a container, and cannot be a host of Proxmox VE", found[0].Summary)
	require.Equal(t, 4, found[0].At.Start.Line)
}

// disked is the part of a kind that the resolver reads.
type disked struct {
	Disks []disk `hcl:"disk,block"`
}

type disk struct {
	Name string `hcl:"name,label"`
	Size int    `hcl:"size"`
}

func TestDisks(t *testing.T) {
	config := func() *model.Spec {
		return &model.Spec{
			Config: &model.Config{Swap: 512, Mounts: []model.Mount{
				{Path: "/srv/b", Disk: "data", FSType: "xfs", Options: []string{"noatime", "nofail", "noatime"}}, {Path: "/srv/a", Disk: "log", FSType: "ext4"},
			}},
			Ranges: []model.AttrRange{{Path: "config.mount./srv/a.disk", At: at(7)}, {Path: "config.mount./srv/b", At: at(3)}, {Path: "config.swap", At: at(2)}},
		}
	}
	vm := &model.Node{Name: "edge", Spec: "base", Type: "vm", Resource: &model.Resource{Spec: &disked{[]disk{{"root", 10}, {"data", 1}, {"log", 1}}}}}
	s, found := spec.Resolve(site(config()), vm)
	require.Empty(t, found)
	require.Equal(t, []spec.Mount{
		{Path: "/srv/a", Disk: "log", FSType: "ext4", Size: spec.WholeDisk},
		{Path: "/srv/b", Disk: "data", FSType: "xfs", Options: []string{"noatime"}, Size: spec.WholeDisk},
	}, s.Config.Mounts)
	require.Equal(t, "512", s.Config.SwapFile)
	require.Contains(t, s.Platform.Packages, "xfsprogs")
	require.Equal(t, []string{"LABEL=data", "/srv/b", "xfs", "nofail,noatime", "0", "0"}, s.Mount("/srv/b").Line())

	none := &model.Node{Name: "edge", Spec: "base", Type: "vm", Resource: &model.Resource{Spec: &disked{}}}
	container := &model.Node{Name: "box", Spec: "base", Type: "ct", Resource: vm.Resource}
	twice := config()
	twice.Config.Mounts = append(twice.Config.Mounts, model.Mount{Path: "/srv/c", Disk: "data", FSType: "ext4"}, model.Mount{Path: "/srv/d", Disk: "root"}, model.Mount{Path: "/srv/e", Disk: "a-disk-too-long", FSType: "xfs"})
	for _, c := range []struct {
		spec *model.Spec
		node *model.Node
		want string
	}{
		{config(), none, `site.hcl:3: error: node edge has no disk "data"
site.hcl:7: error: node edge has no disk "log"
`},
		{config(), container, `site.hcl:2: error: node box is a container, and has no swap of its own
site.hcl:3: error: node box is a container, and mounts no disks
site.hcl:1: error: node box is a container, and mounts no disks
`},
		{twice, vm, `site.hcl:1: error: disk "data" is mounted twice
site.hcl:1: error: the root disk is mounted already
site.hcl:1: error: the name of disk "a-disk-too-long" is too long for a label
`},
	} {
		c.spec.At = at(1)
		_, found := spec.Resolve(site(c.spec), c.node)
		var got strings.Builder
		for _, f := range found {
			fmt.Fprintf(&got, "%s:%d: %s: %s\n", f.At.File, f.At.Start.Line, f.Severity, f.Summary)
			require.NotEmpty(t, f.Detail)
		}
		require.Equal(t, c.want, got.String())
	}
}

func at(line int) diag.Range {
	return diag.Range{File: "site.hcl", Start: diag.Pos{Line: line, Column: 1}, End: diag.Pos{Line: line, Column: 9}}
}

// Values made from secrets are not shown, and the spec itself keeps them.
func TestMasked(t *testing.T) {
	const document = `{"version":1,"node":"edge","config":{"sysctl":{"a.b":"CANARY","c.d":"1"},"files":[{"path":"/a","content":"CANARY"},{"path":"/b","content":"b"},
		{"path":"/c","content":"sha256:CANARY","content_base64":"Q0FOQVJZ"}],"commands":[{"name":"c","run":"CANARY","unless":"CANARY","creates":"/x"}],"repositories":[{"name":"r","url":"https://CANARY@x","key":"k"}]},
		"sensitive":["config.sysctl.a.b","config.file./a.content","config.file./c.content","config.command.c","config.repository.r.url"]}`
	s, err := spec.Read([]byte(document))
	require.NoError(t, err)
	b, err := json.Marshal(s.Masked())
	require.NoError(t, err)
	require.NotContains(t, string(b), "CANARY")
	require.NotContains(t, string(b), "Q0FOQVJZ")
	require.Contains(t, string(b), `"content":"b"`)
	require.Contains(t, string(b), `"key":"k"`)
	again, err := spec.Read([]byte(document))
	require.NoError(t, err)
	require.Equal(t, again, s)
}
