package importer

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

func (c *converter) siteBlock(name string) hcl.Block {
	d := c.site.v.Defaults
	t := &comments{c: c, file: c.site.yamlFile}
	s := &model.Site{
		Domain: d.Domain, Timezone: d.Timezone, DNS: d.DNS, Gateway: d.Gateway, Packages: d.Packages, Bridge: d.Bridge,
		VMUser: cmp.Or(d.VMUser, d.AutomationUser), ServerURL: cmp.Or(d.ServerURL, d.SpecServer),
	}
	if s.ServerURL != "" {
		t.review("defaults."+used(d.ServerURL, "server_url", "spec_server"), "the server is now part of the agent, or homestak-gitops serve: let the URL be that of its machine")
	}
	return block("site", name, t, s)
}

// used is the name of a key that was renamed, as a file has it.
func used(value, now, before string) string {
	if value != "" {
		return now
	}
	return before
}

// hostBlocks are the hosts: a machine with Proxmox VE, of a file in nodes and one in hosts, or a machine that has none
// yet. Proxmox VE on a node is not a host, but that node of a manifest.
func (c *converter) hostBlocks(manifests []machines) []hcl.Block {
	physical, seen, machines := map[string]parsed[hostYAML]{}, map[string]bool{}, map[string]bool{}
	for _, m := range manifests {
		for _, n := range m.nodes {
			machines[n.Name] = true
		}
	}
	for _, h := range c.hosts {
		physical[h.key] = h
	}
	var out []hcl.Block
	for _, n := range c.nodes {
		if n.v.ParentNode != "" {
			if !machines[n.key] {
				(&comments{c: c, file: n.yamlFile}).left("parent_node", "no manifest has a node of this name, and Proxmox VE on a node is declared as that node")
			}
			continue
		}
		h, ok := physical[cmp.Or(n.v.Host, n.key)]
		if n.v.Host != "" && !ok {
			(&comments{c: c, file: n.yamlFile}).left("host", "there is no hosts/%s.yaml", n.v.Host)
		}
		seen[h.keyOr()] = true
		out = append(out, c.hostBlock(n, h))
	}
	for _, h := range c.hosts {
		if !seen[h.key] {
			out = append(out, c.hostBlock(parsed[nodeYAML]{}, h))
		}
	}
	return out
}

// keyOr is the name of a file; "" if there is none.
func (p parsed[T]) keyOr() string {
	if p.yamlFile == nil {
		return ""
	}
	return p.key
}

func (c *converter) hostBlock(n parsed[nodeYAML], h parsed[hostYAML]) hcl.Block {
	d := c.site.v.Defaults
	name := cmp.Or(n.keyOr(), h.keyOr())
	file := cmp.Or(n.yamlFile, h.yamlFile)
	t := &comments{c: c, file: file}
	address := cmp.Or(n.v.IP, h.v.IP, addressOf(h.v, cmp.Or(d.Bridge, "vmbr0")))
	host := &model.Host{
		Name: name, API: strings.TrimRight(n.v.APIEndpoint, "/"), Storage: &model.Storage{Disks: cmp.Or(n.v.Datastore, d.Datastore)},
		SSH:      &model.HostSSH{Port: h.v.Access.SSHPort, User: cmp.Or(n.v.HostUser, n.v.SSHUser, h.v.Access.HostUser, h.v.Access.SSHUser, d.HostUser, d.SSHUser)},
		Hardware: &model.Hardware{CPUCores: h.v.Hardware.CPUCores, MemoryGB: h.v.Hardware.MemoryGB},
	}
	if n.v.Node != name {
		host.Node = n.v.Node
	}
	at, err := url.Parse(host.API)
	switch local := err == nil && slices.Contains([]string{"", "localhost", "127.0.0.1", "::1"}, at.Hostname()); {
	case err != nil || !local && address != "" && address != at.Hostname():
		host.SSH.Address = address
	case local && address == "":
		host.API = "https://" + strings.Trim(name+"."+cmp.Or(h.v.Domain, d.Domain), ".") + ":8006"
		t.review("api_endpoint", "the address of the host is not in the files, and api is a guess")
	case local:
		host.API = "https://" + net.JoinHostPort(address, "8006")
	}
	t.text = append(t.text, "The certificate is verified: put its fingerprint, which pvenode cert info prints on the host, into fingerprint.")
	token := cmp.Or(n.v.APIToken, name)
	b := hcl.Block{}
	switch {
	case strings.ContainsAny(token, "!=\"$%{}\\") || strings.ContainsFunc(token, func(r rune) bool { return !strconv.IsPrint(r) }):
		t.left("api_token", "it is not a name in api_tokens of the secrets")
	case token != name:
		host.APIToken, b.Expressions = token, map[string]string{"api_token": "secret.api_tokens[" + strconv.Quote(token) + "]"}
	}
	if h.yamlFile != nil {
		t.file = h.yamlFile
		t.machine(h.v)
	}
	if n.yamlFile == nil {
		t.review("", "the machine has no file in nodes. If it is not a Proxmox VE host yet, a spec for the host makes it one")
	}
	made := block("host", name, t, host)
	made.Expressions = b.Expressions
	return made
}

// machine notes what a host block cannot have of a physical machine.
func (t *comments) machine(h hostYAML) {
	if h.Domain != "" {
		t.left("domain", "declare it in identity of a spec for the host")
	}
	for _, name := range slices.Sorted(maps.Keys(h.Network.Interfaces)) {
		t.left("network.interfaces."+name, "the network of a host is not declared: /etc/network/interfaces stays as it is")
	}
	if len(h.Storage.ZFSPools) > 0 {
		t.left("storage.zfs_pools", "pools of disks are not declared: they stay as they are")
	}
	if len(h.Access.AuthorizedKeys) > 0 {
		t.left("access.authorized_keys", "declare the users in a spec for the host")
	}
	if h.SSH.PermitRootLogin != "" || h.SSH.PasswordAuthentication != "" {
		t.left("ssh", "declare a posture in a spec for the host")
	}
}

// addressOf is the address of a bridge of a host, else of its first interface that has one.
func addressOf(h hostYAML, bridge string) string {
	names := append([]string{bridge}, slices.Sorted(maps.Keys(h.Network.Interfaces))...)
	for _, name := range names {
		if address, _, _ := strings.Cut(h.Network.Interfaces[name].Address, "/"); address != "" {
			return address
		}
	}
	return ""
}

func (c *converter) presetBlocks() (out []hcl.Block) {
	for _, p := range c.presets {
		out = append(out, block("preset", p.key, nil, &model.Preset{Cores: p.v.Cores, Memory: p.v.Memory, Disk: p.v.Disk}))
	}
	return out
}

func (c *converter) postureBlocks() (out []hcl.Block) {
	for _, p := range c.postures {
		t := &comments{c: c, file: p.yamlFile}
		if p.v.Auth.Method != "" {
			t.review("auth.method", "later versions of the predecessor ignored it, and required a token of every node")
		}
		out = append(out, block("posture", p.key, t, &model.Posture{
			Auth:     &model.Auth{Method: p.v.Auth.Method},
			SSH:      &model.SSHD{Port: p.v.SSH.Port, PermitRootLogin: p.v.SSH.PermitRootLogin, PasswordAuthentication: p.v.SSH.PasswordAuthentication},
			Sudo:     &model.Sudo{NoPasswd: p.v.Sudo.NoPasswd},
			Fail2ban: &model.Fail2ban{Enabled: p.v.Fail2ban.Enabled},
			Packages: p.v.Packages,
		}))
	}
	return out
}

func (c *converter) specBlocks(manifests []machines) (out []hcl.Block) {
	ofPVE, ofOthers := map[string]bool{}, map[string]bool{}
	for _, m := range manifests {
		for _, n := range m.nodes {
			if n.Type == "pve" {
				ofPVE[n.Spec] = true
			} else {
				ofOthers[n.Spec] = true
			}
		}
	}
	for _, s := range c.specs {
		t := &comments{c: c, file: s.yamlFile}
		if ofPVE[s.key] && ofOthers[s.key] { // the others would become Proxmox VE hosts, too
			t.review("", "nodes of type pve have this spec, and so have others. Make a copy with config { pve { no_subscription = true } }, and name it in the pve nodes, unless their image has Proxmox VE")
		}
		out = append(out, c.specBlock(t, s, ofPVE[s.key] && !ofOthers[s.key]))
	}
	return out
}

// specBlock is a spec. One of pve nodes alone declares what the predecessor did to each of them.
func (c *converter) specBlock(t *comments, s parsed[specYAML], pve bool) hcl.Block {
	v, d := s.v, c.site.v.Defaults
	spec := &model.Spec{
		Identity: &model.Identity{Hostname: v.Identity.Hostname, Domain: unless(v.Identity.Domain, d.Domain)},
		Network:  c.network(t, v),
		Access:   &model.Access{Posture: v.Access.Posture},
		Platform: &model.Platform{Packages: v.Platform.Packages, Services: &model.Services{Enable: v.Platform.Services.Enable, Disable: v.Platform.Services.Disable}},
		Config:   &model.Config{Timezone: unless(v.Config.Timezone, d.Timezone), PVE: &model.PVEConfig{}},
	}
	for _, u := range v.Access.Users {
		if u.SSHKeys != nil {
			keys := []string{}
			for _, k := range *u.SSHKeys {
				keys = append(keys, strings.TrimPrefix(k, "ssh_keys."))
			}
			u.SSHKeys = &keys
		}
		spec.Access.Users = append(spec.Access.Users, model.User{Name: u.Name, Sudo: u.Sudo, SSHKeys: u.SSHKeys})
	}
	nag := v.Config.PVE.RemoveNag
	if pve {
		always := true
		nag = cmp.Or(nag, d.RemoveNag, &always)
		spec.Config.PVE.NoSubscription, spec.Config.PVE.Bridge = true, "vmbr0"
	}
	spec.Config.PVE.RemoveSubscriptionNag = nag != nil && *nag
	for _, key := range slices.Sorted(maps.Keys(v.Config.More)) {
		t.left("config."+key, "the predecessor ignored it, and there is no such setting")
	}
	for _, key := range slices.Sorted(maps.Keys(v.Config.PVE.More)) {
		t.left("config.pve."+key, "the predecessor ignored it, and there is no such setting")
	}
	spec.Run = runOf(t, v)
	return block("spec", s.key, t, spec)
}

// unless is a value, or nothing where it is that of the site.
func unless(value, site string) string {
	if value == site {
		return ""
	}
	return value
}

// network is the address of a spec. The predecessor had no prefix length: it is that of a network of a host that has
// the address and its gateway.
func (c *converter) network(t *comments, v specYAML) *model.Network {
	n := &model.Network{IP: v.Network.IP, Gateway: unless(v.Network.Gateway, c.site.v.Defaults.Gateway), DNS: v.Network.DNS}
	if slices.Equal(n.DNS, c.site.v.Defaults.DNS) {
		n.DNS = nil
	}
	if n.IP == "" || strings.Contains(n.IP, "/") {
		return n
	}
	ip, _ := netip.ParseAddr(n.IP)
	gateway, _ := netip.ParseAddr(v.Network.Gateway)
	for _, h := range c.hosts {
		for _, name := range slices.Sorted(maps.Keys(h.v.Network.Interfaces)) {
			p, err := netip.ParsePrefix(h.v.Network.Interfaces[name].Address)
			if err == nil && p.Contains(ip) && (v.Network.Gateway == "" || p.Contains(gateway)) {
				n.IP += "/" + strconv.Itoa(p.Bits())
				t.review("network.ip", "the prefix length is that of %s of host %s", name, h.key)
				return n
			}
		}
	}
	t.left("network", "the prefix length of %s is in no file: add network { ip = \"%s/LENGTH\" }", n.IP, n.IP)
	return &model.Network{}
}

// runOf is when a node applies its spec. The section had other names before.
func runOf(t *comments, v specYAML) *model.Run {
	section, r := "run", v.Run
	for _, old := range []struct {
		name string
		run  runYAML
	}{{"convergence", v.Convergence}, {"apply", v.Apply}} {
		if r == (runYAML{}) && old.run != r {
			section, r = old.name, old.run
		}
	}
	every, err := time.ParseDuration(r.Interval)
	if r.Interval != "" && (err != nil || r.Trigger == "" || r.Trigger == "manual") {
		every = 0
		t.left(section+".interval", "it has to be a duration such as 1h, with a trigger other than manual")
	}
	if every == time.Hour {
		every = 0 // unless set
	}
	for _, k := range []struct {
		key string
		set bool
		why string
	}{
		{"port", r.Port != 0, "the server of the agent receives webhooks, on its own port"},
		{"path", r.Path != "", "the server of the agent receives webhooks, on its own path"},
		{"repo", r.Repo != "", "the agent follows one repository: repository in agent.hcl"},
		{"branch", r.Branch != "", "the agent follows one branch: repository in agent.hcl"},
		{"poll_interval", r.PollInterval != "", "the agent polls for its nodes: poll of repository in agent.hcl"},
	} {
		if k.set {
			t.left(section+"."+k.key, "%s", k.why)
		}
	}
	return &model.Run{Trigger: r.Trigger, Interval: every}
}

// machines are a manifest, and those of its nodes that are converted.
type machines struct {
	parsed[manifestYAML]
	comments *comments
	nodes    []machineYAML
	notes    map[string]*comments // of the nodes
}

// machines are the nodes of a manifest of either version: a level lives on the one before, and names no spec.
func (c *converter) machinesOf(m manifestYAML) []machineYAML {
	if m.SchemaVersion != 1 {
		return m.Nodes
	}
	hasSpec := slices.ContainsFunc(c.specs, func(s parsed[specYAML]) bool { return s.key == "pve" })
	out := make([]machineYAML, 0, len(m.Levels))
	for i, l := range m.Levels {
		n := machineYAML{Name: l.Name, Type: "vm", Preset: l.VMPreset, Image: l.Image, VMID: l.VMID}
		if l.PostScenario == "pve-setup" || i+1 < len(m.Levels) {
			if n.Type = "pve"; hasSpec {
				n.Spec = "pve"
			}
		}
		if i > 0 {
			n.Parent = m.Levels[i-1].Name
		}
		out = append(out, n)
	}
	return out
}

// machines finds the nodes of all manifests that can be converted.
func (c *converter) machines() []machines {
	var out []machines
	for _, m := range c.manifests {
		made := machines{parsed: m, comments: &comments{c: c, file: m.yamlFile}, notes: map[string]*comments{}}
		all, children, lost := c.machinesOf(m.v), map[string][]string{}, map[string]string{}
		var lose func(name, why string)
		lose = func(name, why string) {
			if lost[name] == "" {
				lost[name] = why
				for _, below := range children[name] {
					lose(below, "its parent is not converted")
				}
			}
		}
		for _, n := range all {
			children[n.Parent] = append(children[n.Parent], n.Name)
		}
		for _, n := range all {
			switch n.Type {
			case "vm", "pve":
			case "ct":
				lose(n.Name, "the predecessor created no containers. Declare a template block, and the node with type = \"ct\"")
			default:
				lose(n.Name, "there is no type "+lang.Quote(n.Type))
			}
		}
		for _, n := range all {
			if why := lost[n.Name]; why != "" {
				made.comments.left("nodes."+n.Name, "%s", why)
				continue
			}
			made.nodes = append(made.nodes, n)
			made.notes[n.Name] = &comments{c: c, file: m.yamlFile}
		}
		out = append(out, made)
	}
	return out
}

// modeBlock is the block execution of a manifest or node.
type modeBlock struct {
	DefaultMode string `hcl:"default_mode,optional"`
	Mode        string `hcl:"mode,optional"`
}

func (c *converter) manifestBlock(m machines) hcl.Block {
	t, v := m.comments, m.v
	pattern := cmp.Or(v.Pattern, "flat")
	tiered := slices.ContainsFunc(m.nodes, func(n machineYAML) bool { return n.Parent != "" })
	switch {
	case v.SchemaVersion != 1 && v.SchemaVersion != 2:
		t.review("schema_version", "versions 1 and 2 are known, and it was read as version 2")
	case v.SchemaVersion == 1:
		pattern = "tiered"
		t.levels(v)
	case pattern == "flat" && tiered:
		t.review("pattern", "the nodes have parents, so it is tiered")
		pattern = "tiered"
	case pattern == "federated":
		t.review("pattern", "there is no pattern federated")
		pattern = "tiered"
	}
	if v.Settings.TimeoutBuffer != nil {
		t.left("settings.timeout_buffer", "the predecessor ignored it; timeout in settings limits a step")
	}
	decl := &model.Manifest{Description: v.Description, Pattern: pattern, OnError: v.Settings.OnError}
	out := block("manifest", v.Name, t, decl)
	if v.Execution.DefaultMode == model.ModePull {
		out.Inner = append(out.Inner, block("execution", "", nil, &modeBlock{DefaultMode: model.ModePull}))
	}
	settings := &model.Manifest{Settings: &model.Settings{VerifySSH: v.Settings.VerifySSH, CleanupOnFailure: v.Settings.CleanupOnFailure}}
	if shorten(reflect.ValueOf(settings).Elem(), "manifest"); settings.Settings != nil {
		out.Inner = append(out.Inner, hcl.Block{Type: "settings", Parts: []hcl.Part{{Value: settings.Settings}}})
	}
	for _, n := range m.nodes {
		out.Inner = append(out.Inner, c.nodeBlock(m.notes[n.Name], n))
	}
	out.Comment = t.text
	return out
}

// levels notes what the nodes of version 1 cannot have.
func (t *comments) levels(v manifestYAML) {
	for _, l := range v.Levels {
		key := "levels." + l.Name
		if l.Env != "" {
			t.left(key+".env", "environments became nodes: declare their settings in the node")
		}
		if l.PostScenario != "" && l.PostScenario != "pve-setup" {
			t.left(key+".post_scenario", "scenarios became specs: declare what it did in a spec")
		}
		if len(l.PostScenarioArgs) > 0 {
			t.left(key+".post_scenario_args", "scenarios became specs, which have no arguments")
		}
	}
}

func (c *converter) nodeBlock(t *comments, n machineYAML) hcl.Block {
	key := "nodes." + n.Name
	decl := &model.Node{Type: n.Type, Spec: n.Spec, Parent: n.Parent, VMID: n.VMID}
	i := slices.IndexFunc(c.nodes, func(f parsed[nodeYAML]) bool { return f.key == n.Name && f.v.ParentNode != "" })
	if n.Type == "pve" && i >= 0 {
		decl.Hyper = &model.HyperDecl{Storage: c.nodes[i].v.Datastore}
	}
	vm, base := guest.WithDefaults(new(guest.VM)), guest.WithDefaults(new(guest.VM))
	vm.Preset, vm.Image, vm.Disk, vm.OnBoot = c.presetOf(n.Preset), n.Image, n.Disk, true
	if n.Type == "pve" && decl.Spec == "" {
		t.review(key, "name a spec that makes it a Proxmox VE host, unless the image is one")
	}
	if n.Disk != 0 {
		t.review(key+".disk", "the predecessor created the disk of the preset: its disk is %d GiB now", n.Disk)
	}
	if n.Template != "" || n.Unprivileged != nil {
		t.left(key, "template and unprivileged are for containers")
	}
	if len(n.Hardware) > 0 {
		t.left(key+".hardware", "declare a preset, or cores, memory and disk of the node")
	}
	if len(n.Access) > 0 {
		t.left(key+".access", "the parent gives a pve node access to its API")
	}
	shorten(reflect.ValueOf(decl).Elem(), "node")
	out := hcl.Block{Type: "node", Label: n.Name, Parts: []hcl.Part{{Value: decl}, {Value: vm, Base: base}}}
	if lang.ValidName(n.Parent) {
		out.Expressions = map[string]string{"parent": "node." + n.Parent}
	}
	switch mode := n.Execution.Mode; {
	case mode == model.ModePull && n.Type == "pve":
		t.left(key+".execution.mode", "a pve node is created by push; afterwards its own agent pulls")
	case mode != "":
		out.Inner = append(out.Inner, block("execution", "", nil, &modeBlock{Mode: mode}))
	}
	out.Comment = t.text
	return out
}

// presetOf is the name of a preset. Version 1 of the manifests left vm- out.
func (c *converter) presetOf(name string) string {
	has := func(name string) bool {
		return slices.ContainsFunc(c.presets, func(p parsed[presetYAML]) bool { return p.key == name })
	}
	if name != "" && !has(name) && has("vm-"+name) {
		return "vm-" + name
	}
	return name
}

// imageBlocks are the images that nodes name. The predecessor built them, and published them with its releases.
func (c *converter) imageBlocks(manifests []machines) (out []hcl.Block) {
	names := map[string]bool{}
	for _, m := range manifests {
		for _, n := range m.nodes {
			names[n.Image] = n.Image != ""
		}
	}
	d := c.site.v.Defaults
	release := cmp.Or(d.ImageRelease, d.PackerRelease, "latest")
	where := "download/" + url.PathEscape(release)
	if release == "latest" {
		where = "latest/download"
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if name == "" {
			continue
		}
		t := &comments{c: c, file: c.site.yamlFile}
		t.review("defaults."+used(d.ImageRelease, "image_release", "packer_release"), "image %s may be at another URL, or in several parts. Pin the file by its checksum", name)
		out = append(out, block("image", name, t, &imageBlock{URL: "https://github.com/homestak-dev/packer/releases/" + where + "/" + url.PathEscape(name) + ".qcow2"}))
	}
	return out
}

// imageBlock is what an image block has of an image of the predecessor.
type imageBlock struct {
	URL string `hcl:"url,optional"`
}
