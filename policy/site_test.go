package policy_test

import (
	"fmt"
	"io/fs"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/policy"
)

// VM is a guest with an attribute of every sort.
type VM struct {
	Preset     string            `hcl:"preset,optional" ref:"preset" plan:"-"`
	Image      string            `hcl:"image,optional" ref:"image" cost:"data-loss"`
	Cores      int               `hcl:"cores,optional"`
	Memory     int               `hcl:"memory,optional"`
	Tags       []string          `hcl:"tags,optional"`
	Protection bool              `hcl:"protection,optional"`
	Password   string            `hcl:"password,optional" secret:"true"`
	Options    map[string]string `hcl:"options,optional"`
	Startup    *Startup          `hcl:"startup,block"`
	NICs       []NIC             `hcl:"nic,block"`

	Keys []string `plan:"ssh_keys"` // resolved, no attribute of the language
}

// Startup is a block that there is once.
type Startup struct {
	Order *int          `hcl:"order,optional"`
	Up    time.Duration `hcl:"up,optional"`
}

// NIC is a block with a label.
type NIC struct {
	Name   string `hcl:"name,label"`
	Bridge string `hcl:"bridge,optional"`
	VLAN   int    `hcl:"vlan,optional"`
}

// CT is a guest of another kind, with an attribute that VM has not.
type CT struct {
	Template   string `hcl:"template,optional"`
	Memory     int    `hcl:"memory,optional"`
	Protection bool   `hcl:"protection,optional"`
}

// Pool is an object beside the guests.
type Pool struct {
	Comment string `hcl:"comment,optional"`
}

func kinds() model.Kinds {
	return model.Kinds{
		{
			Name: "vm", Block: "node", Guest: true, New: func() any { return &VM{} },
			Resolve: func(r *model.Resource, in model.Scope) []model.Problem {
				v := r.Spec.(*VM)
				if p := in.Site.Presets[v.Preset]; p != nil {
					v.Cores, v.Memory = p.Cores, p.Memory
				}
				v.Keys = []string{"ssh-ed25519 AAAA ops"}
				for i := range v.NICs {
					if v.NICs[i].Bridge == "" && in.Host != nil {
						v.NICs[i].Bridge = in.Host.Bridge
					}
				}
				return nil
			},
		},
		{Name: "ct", Block: "node", Guest: true, New: func() any { return &CT{} }},
		{Name: "pool", Block: "pool", New: func() any { return &Pool{} }},
	}
}

func at(file string, line int) diag.Range {
	return diag.Range{File: file, Start: diag.Pos{Line: line, Column: 3}, End: diag.Pos{Line: line, Column: 12}}
}

// site makes a site as the loader gives it: two deployed nodes and a recipe.
func site() *model.Site {
	keys := []string{"ops"}
	s := &model.Site{
		Name: "home", Domain: "home.example", Timezone: "Europe/Berlin", DNS: []string{"192.0.2.1"}, Gateway: "192.0.2.1",
		Packages: []string{"htop", "curl"}, Bridge: "vmbr0", VMUser: "homestak",
		VMIDRanges: []model.VMIDRange{{Name: "guests", From: 10000, To: 10999}, {Name: "test", From: 99000, To: 99999}}, VMIDDefault: "guests",
		Naming: &model.Naming{Pattern: "[a-z][a-z0-9-]*"}, At: at("site.hcl", 1),
		Hosts: map[string]*model.Host{"father": {
			Name: "father", API: "https://192.0.2.10:8006", APIToken: "root@pam!agent=hunter2", Bridge: "vmbr1",
			Hardware: &model.Hardware{CPUCores: 8, MemoryGB: 64}, At: at("hosts/father.hcl", 3),
		}},
		Presets: map[string]*model.Preset{"vm-small": {Name: "vm-small", Cores: 2, Memory: 2048, Disk: 10}},
		Postures: map[string]*model.Posture{
			"prod": {
				Name: "prod", Auth: &model.Auth{Method: "node_token"}, SSH: &model.SSHD{Port: 22, PermitRootLogin: "no", PasswordAuthentication: "no"},
				Sudo: &model.Sudo{}, Fail2ban: &model.Fail2ban{Enabled: true}, Packages: []string{"auditd", "curl"}, At: at("postures.hcl", 20),
			},
			"dev": {
				Name: "dev", Auth: &model.Auth{Method: "network", Networks: []string{"10.0.0.0/8"}},
				SSH: &model.SSHD{Port: 22, PermitRootLogin: "yes", PasswordAuthentication: "yes"}, At: at("postures.hcl", 1),
			},
		},
		Specs: map[string]*model.Spec{
			"base": {
				Name:   "base",
				Access: &model.Access{Posture: "prod", Users: []model.User{{Name: "homestak", Sudo: true, SSHKeys: &keys, Shell: "/bin/bash"}}},
				Config: &model.Config{Drift: "revert", Files: []model.File{
					{Path: "/etc/motd", Content: "welcome", Mode: "0644", Owner: "root:root"},
					{Path: "/etc/app.key", Content: "hunter2", Mode: "0600", Owner: "root:root"},
				}},
				Platform: &model.Platform{Packages: []string{"nginx", "htop"}, Services: &model.Services{Enable: []string{"nginx"}}},
				Network:  &model.Network{IP: "192.0.2.30/24"}, Sensitive: []string{"config.file./etc/app.key.content"}, At: at("specs.hcl", 1),
			},
			"plain": {Name: "plain", Identity: &model.Identity{Hostname: "special"}, At: at("specs.hcl", 40)},
		},
		Manifests: map[string]*model.Manifest{},
		Objects:   model.State{{Kind: "pool", Name: "lab"}: {Addr: model.Address{Kind: "pool", Name: "lab"}, Spec: &Pool{Comment: "ours"}, At: at("pools.hcl", 1)}},
		Kinds:     kinds(),
	}
	order := 2
	web := deploy(s, "web", "father")
	add(web, "web-1", "vm", 10001, &VM{
		Preset: "vm-small", Image: "debian-12", Tags: []string{"web"}, Password: "hunter2",
		Options: map[string]string{"cpu": "host", "args": "hunter2"}, Startup: &Startup{Order: &order, Up: time.Minute}, NICs: []NIC{{Name: "lan", VLAN: 12}},
	}, 5, "options.args").Spec = "base"
	cache := add(web, "cache", "ct", 0, &CT{Template: "debian", Memory: 512, Protection: true}, 25)
	cache.Spec, cache.Role, cache.VMIDRange, cache.DependsOn = "plain", "cache", "guests", []string{"web-1"}
	add(deploy(s, "recipe", ""), "edge", "vm", 99950, &VM{}, 1)
	return s
}

func deploy(s *model.Site, name, host string) *model.Manifest {
	m := &model.Manifest{Name: name, Pattern: "flat", Host: host, At: at("manifests/"+name+".hcl", 1)}
	s.Manifests[name] = m
	return m
}

// add declares a node at a line of its manifest's file.
func add(m *model.Manifest, name, kind string, vmid int, spec any, line int, sensitive ...string) *model.Node {
	where := at("manifests/"+m.Name+".hcl", line)
	addr := model.Address{Kind: kind, Name: name}
	n := &model.Node{
		Name: name, Block: name, Type: kind, VMID: vmid, Mode: "push", Orphan: "refuse", Drift: "revert", Manifest: m, At: where,
		Resource: &model.Resource{
			Addr: addr, Spec: spec, Manifest: m.Name, Node: name, Guest: &model.Guest{VMID: vmid, Choose: []model.VMIDRange{{Name: "guests", From: 10000, To: 10999}}}, At: where, Sensitive: sensitive,
		},
	}
	m.Nodes = append(m.Nodes, n)
	return n
}

// guest is one as a host shows it.
func guest(name string, vmid int, protection bool) *model.Resource {
	return &model.Resource{
		Addr: model.Address{Kind: "vm", Name: name}, Spec: &VM{Protection: protection}, Manifest: "web", Node: name, Guest: &model.Guest{VMID: vmid, Running: true},
	}
}

// planned makes the real plan from a site and what its host holds.
func planned(t testing.TB, s *model.Site, have ...*model.Resource) *plan.Plan {
	t.Helper()
	want, found := s.Want("father")
	require.Empty(t, found)
	o := model.Observed{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), State: model.State{}, Taken: map[int]string{}}
	for _, r := range have {
		o.State[r.Addr] = r
		o.Taken[r.Guest.VMID] = r.Node
	}
	return plan.Make(plan.Input{Site: s.Name, Commit: "3f2c1a9", Host: "father", Kinds: s.Kinds, Want: want, Have: o})
}

func request() policy.Request {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return policy.Request{
		Commit: model.Commit{
			ID: "3f2c1a9", Parents: []string{"77aa001"}, Author: model.Person{Name: "Ana", Email: "ana@home.example"},
			Trailers: map[string]string{"Ticket": "HOME-7"}, At: now.Add(-5 * time.Second),
		},
		Signer: new("ana"), Now: now, Unattended: true, OwnedCount: 12,
	}
}

// tree makes the files of a site out of names and texts in turn.
func tree(files ...string) fs.FS {
	t := fstest.MapFS{}
	for i := 0; i+1 < len(files); i += 2 {
		t[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	return t
}

// set compiles policies that must be in order.
func set(t testing.TB, files ...string) *policy.Set {
	t.Helper()
	s, found := policy.Compile(t.Context(), policy.Options{Site: tree(files...), Kinds: kinds()})
	require.Empty(t, lines(found))
	return s
}

// lines writes findings one a line, as the tests compare them.
func lines(found diag.List, _ ...plan.Rules) []string {
	var out []string
	for _, f := range found {
		out = append(out, fmt.Sprintf("%s [%s]", f, f.Source))
	}
	return out
}

func judgeSite(t testing.TB, s *policy.Set, of *model.Site) []string {
	t.Helper()
	return lines(s.Site(t.Context(), of, request()))
}
