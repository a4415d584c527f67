package setup

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/systemd"
)

// Plan is what is missing on a host.
type Plan struct {
	Notes []string // that the owner should read before
	Local bool     // the repository is that of setup on the host, and git serves it

	host       *host
	disks      string
	images     storage
	bridge     device
	repository string // URL, or a folder of the host
	follows    bool   // the agent follows it already
	login      source.Auth
	folder     string // of the agent's files
	steps      []step
	refused    []error
}

// Steps is how many there are.
func (p *Plan) Steps() int { return len(p.steps) }

// Host is the name of the node.
func (p *Plan) Host() string { return p.host.Name }

const (
	user  = "homestak@pve"
	token = "gitops"
	unit  = "homestak-gitops"
)

// role is one of docs/permissions.md, and where it is granted.
type role struct {
	name, privs string
	paths       []string
	only        bool // not below the path
}

func (p *Plan) roles() []role {
	list := []role{
		{name: string(kind.RoleGuests), privs: "VM.Allocate,VM.Audit,VM.Config.CDROM,VM.Config.CPU,VM.Config.Cloudinit,VM.Config.Disk,VM.Config.HWType,VM.Config.Memory,VM.Config.Network,VM.Config.Options,VM.PowerMgmt", paths: []string{"/vms"}},
		{name: string(kind.RoleDisks), privs: "Datastore.AllocateSpace", paths: []string{"/storage/" + p.disks}},
		{name: string(kind.RoleImages), privs: "Datastore.Allocate,Datastore.AllocateTemplate,Datastore.Audit", paths: []string{"/storage/" + p.images.Storage}},
		{name: string(kind.RoleNetwork), privs: "SDN.Use", paths: []string{"/sdn/zones/localnetwork/" + p.bridge.Iface}},
		{name: string(kind.RoleNode), privs: "Sys.AccessNetwork,Sys.Audit"},
	}
	for _, node := range p.host.Nodes {
		list[4].paths = append(list[4].paths, "/nodes/"+node)
	}
	if len(p.host.Nodes) > 1 {
		list = append(list, role{name: string(kind.RoleCluster), privs: "Sys.Audit", paths: []string{"/"}, only: true})
	}
	return list
}

// Read reads the host, and plans the missing steps. It changes nothing. Its error has everything that must be decided
// by the owner first.
func (s *Setup) Read(ctx context.Context) (*Plan, error) {
	h, err := s.readHost(ctx)
	if err != nil {
		return nil, err
	}
	r, err := s.readRecord()
	if err != nil {
		return nil, err
	}
	p := &Plan{host: h, folder: s.path(folder)}
	if err := s.chooseRepository(p); err != nil {
		return nil, err
	}
	disks, err1 := h.choose(s.Disks, "--disks", "disks of VMs and containers", func(st storage) bool { return st.has("images") && st.has("rootdir") }, "local-lvm", "local-zfs")
	images, err2 := h.choose(s.Images, "--images", "images: one of files, such as a directory or NFS", func(st storage) bool {
		return slices.Contains([]string{"dir", "nfs", "cifs", "btrfs", "cephfs"}, st.Type)
	}, "local")
	net, err3 := h.bridge(s.Bridge)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	p.disks, p.images, p.bridge = disks.Storage, images, net
	if n := len(h.Guests); n > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%d guests are here. They stay as they are. To manage them, run in a clone of the site: homestak-gitops import --site . --host %s", n, h.Name))
	}
	w := &planner{Setup: s, Plan: p, ctx: ctx, record: r}
	w.program()
	w.access()
	w.secrets()
	w.site()
	w.service()
	return p, errors.Join(p.refused...)
}

// chooseRepository takes the one that the agent follows, else the one that the owner names, else one on the host.
func (s *Setup) chooseRepository(p *Plan) error {
	bare, name := s.path(bareFolder), s.path(agentFile)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		p.repository = cmp.Or(s.Repository, bare)
		p.Local = p.repository == bare
		return nil
	}
	agent, _ := hcl.ParseAgent(name, data)
	p.repository, p.follows = agent.Repository.URL, true
	p.Local = p.repository == bare
	switch {
	case err != nil:
		return err
	case p.repository == "":
		return fmt.Errorf("%s names no repository: add its url, or remove the file", name)
	case s.Repository != "" && s.Repository != p.repository:
		return fmt.Errorf("the agent follows %s, as %s says: change the url there, and restart the agent; or leave out --repo", p.repository, name)
	}
	return nil
}

// planner adds steps to a plan.
type planner struct {
	*Setup
	*Plan
	ctx    context.Context // of one call of Read
	record *record
}

// ours reports whether setup made the thing that has this state, or began to.
func (w *planner) ours(name, now string) bool {
	e := w.record.entry(name)
	return e != nil && now != e.Before && (e.After == nil || *e.After == now)
}

// begun reports whether a step was begun and is not done.
func (w *planner) begun(name string) bool {
	e := w.record.entry(name)
	return e != nil && e.After == nil
}

func (w *planner) refuse(format string, args ...any) {
	w.refused = append(w.refused, fmt.Errorf(format, args...))
}

func (w *planner) add(st step) { w.steps = append(w.steps, st) }

// file is a file that setup keeps as it is in this version.
type file struct {
	name    string
	content []byte
}

// program installs this program, the units, and their user.
func (w *planner) program() {
	var restart []action // an agent that runs goes on with the old program and unit
	if _, err := os.Lstat(w.path(serviceLink)); err == nil {
		restart = []action{{argv: []string{"systemctl", "try-restart", systemd.Service}}}
	}
	target := w.path("/usr/local/bin/homestak-gitops")
	packaged := w.Program == w.path("/usr/bin/homestak-gitops") // with its units, which those of here would hide
	if w.Program != target && !packaged {
		content, err := os.ReadFile(w.Program)
		if err != nil {
			w.refuse("read this program: %w", err)
		}
		w.files("the program", []file{{target, content}}, append([]action{{argv: []string{"install", "-D", "-m", "755", w.Program, target}}}, restart...))
	}
	var units []file
	var do []action
	for _, f := range systemd.Files() {
		units = append(units, file{w.path(f.Path), []byte(f.Content)})
		do = append(do, action{file: w.path(f.Path), content: f.Content, mode: 0o644})
	}
	sysusers := strings.Replace(systemd.Sysusers, "/usr/local/", "/usr/", 1)
	if reload := []string{"systemctl", "daemon-reload"}; !packaged {
		sysusers = systemd.Sysusers
		w.files("the units", units, slices.Concat(do, []action{{argv: reload}}, restart), reload)
	}

	account := look{Run: []string{"getent", "passwd", unit}}
	switch now, err := w.state(w.ctx, account); {
	case err != nil:
		w.refuse("%w", err)
	case now == "" || w.begun("the system user"):
		w.add(step{
			name: "the system user", look: account, before: now, undo: [][]string{{"userdel", unit}},
			do: []action{{argv: []string{"systemd-sysusers", w.path(sysusers)}}, {argv: []string{"usermod", "-aG", "www-data", unit}}}, // it may read what changed in /etc/pve
		})
	}
}

// files adds a step that writes files, unless all are there as they should be. Others at their place are not replaced.
func (w *planner) files(name string, files []file, do []action, after ...[]string) {
	missing := look{}
	for _, f := range files {
		have, err := os.ReadFile(f.name)
		if err == nil && bytes.Equal(have, f.content) {
			continue
		}
		missing.Files = append(missing.Files, f.name)
	}
	now, err := stateOfFiles(missing.Files)
	whole := now
	if e := w.record.entry(name); e != nil && err == nil {
		whole, err = stateOfFiles(e.Look.Files)
	}
	switch {
	case err != nil:
		w.refuse("%w", err)
	case len(missing.Files) == 0 && !w.begun(name):
	case now != "" && !w.ours(name, whole):
		w.refuse("%s differs from that of this program: upgrade first (docs/howto/upgrade.md), or remove it", strings.Join(missing.Files, " "))
	default:
		w.add(step{name: name, look: missing, before: now, do: do, undo: append([][]string{append([]string{"rm", "-f"}, missing.Files...)}, after...)})
	}
}

// access makes user, roles, entries of the access list, and lets the storage keep images.
func (w *planner) access() {
	is := func(list []string, have []map[string]any, field string, match ...string) (look, string) {
		l := look{Run: list, Field: field, Match: map[string]string{}}
		for i := 0; i < len(match); i += 2 {
			l.Match[match[i]] = match[i+1]
		}
		return l, l.in(have)
	}
	if l, now := is(users(), w.host.Users, "", "userid", user); now == "" {
		l.Uses = &look{Run: accessList(), Match: map[string]string{"ugid": user}}
		w.add(step{
			name: "user " + user, look: l, after: there, undo: [][]string{{"pveum", "user", "delete", user}},
			do: []action{{argv: []string{"pveum", "user", "add", user, "--comment", unit}}},
		})
	}
	for _, r := range w.roles() {
		name := "role " + r.name
		l, now := is(roles(), w.host.Roles, "privs", "roleid", r.name)
		var lacks []string
		for priv := range strings.SplitSeq(r.privs, ",") {
			if !slices.Contains(strings.Split(now, ","), priv) {
				lacks = append(lacks, priv)
			}
		}
		do := []string{"pveum", "role", "add", r.name, "--privs", r.privs}
		if now != "" {
			do = []string{"pveum", "role", "modify", r.name, "--append", "1", "--privs", strings.Join(lacks, ",")}
		}
		switch {
		case len(lacks) == 0:
		case now == "", w.ours(name, now): // one of an earlier version may lack some
			w.add(step{name: name, look: l, after: sorted(now + "," + strings.Join(lacks, ",")), do: []action{{argv: do}}, undo: [][]string{{"pveum", "role", "delete", r.name}}})
		default:
			w.refuse("role %s is there, and lacks %s: setup changes no role that it did not make\nadd them: %s\nthen run setup again", r.name, strings.Join(lacks, ", "), quoted(do))
		}
	}
	for _, r := range w.roles() {
		for _, path := range r.paths {
			entry := []string{path, "--users", user, "--roles", r.name}
			l, now := is(accessList(), w.host.Entries, "", "path", path, "ugid", user, "roleid", r.name)
			if now != "" {
				continue
			}
			do := append([]string{"pveum", "acl", "modify"}, entry...)
			if r.only {
				do = append(do, "--propagate", "0")
			}
			w.add(step{name: r.name + " on " + path, look: l, after: there, do: []action{{argv: do}}, undo: [][]string{append([]string{"pveum", "acl", "delete"}, entry...)}})
		}
	}
	kinds := slices.DeleteFunc([]string{"import", "vztmpl", "iso"}, w.images.has)
	if len(kinds) > 0 {
		content := strings.Join(append([]string{w.images.Content}, kinds...), ",")
		l, now := is(storages(w.host.Name), []map[string]any{{"storage": w.images.Storage, "content": w.images.Content}}, "content", "storage", w.images.Storage)
		set := func(content string) []string { return []string{"pvesm", "set", w.images.Storage, "--content", content} }
		w.add(step{
			name: "content of storage " + w.images.Storage, look: l, before: now, after: sorted(content),
			do: []action{{argv: set(content)}}, undo: [][]string{set(w.images.Content)},
		})
	}
}

// secrets makes the API token, which goes into the file of secrets with new keys. PVE shows a token once: one that got
// lost between the two steps is made again.
func (w *planner) secrets() {
	const keys = "secrets, with the ownership key and an SSH key for guests"
	name, file, key := "API token "+user+"!"+token, w.path(secretsFile), w.path(folder+"/guests-key")
	clean := []string{"rm", "-f", key, key + ".pub"}
	l := look{Run: users(), Match: map[string]string{"userid": user, "tokenid": token}}
	now := l.in(w.host.Users)
	have, err := os.ReadFile(file)
	read, _ := hcl.ParseSecrets(file, have, nil)
	line, named := read.Values["api_tokens"][w.host.Name]
	named = named && (line == "" || strings.HasPrefix(line, user+"!"+token+"=")) // "" if SOPS encrypted it
	create := []string{"pveum", "user", "token", "add", user, token, "--privsep", "0", "--output-format", "json"}
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		w.refuse("%w", err)
		return
	case named && now != "":
		if w.begun(keys) {
			w.add(step{name: keys, do: []action{{argv: clean}}})
		}
		return
	case err == nil && now == "":
		advice := quoted(create[:8])
		if (look{Match: map[string]string{"userid": user}}).in(w.host.Users) == "" {
			advice = "pveum user add " + user + " && " + advice
		}
		w.refuse("%s is there, without a token of this host that is valid\nput a new one into its section api_tokens: %s: \"%s!%s=SECRET\"; on the host: %s", file, w.host.Name, user, token, advice)
		return
	case err != nil && w.record.entry(keys) != nil && !w.begun(keys):
		w.refuse("%s is gone, and guests carry tags of its ownership key: put your copy back, then run setup again\nwithout a copy: setup --undo, then setup; it makes a new key", file)
		return
	case now != "" && (err == nil || !w.ours(name, now)):
		advice := fmt.Sprintf("or remove it: pveum user token remove %s %s", user, token)
		if len(w.host.Nodes) > 1 {
			advice = "unless another node of this cluster has an agent, which uses it: one agent is for all nodes"
		}
		w.refuse("token %s!%s is there, and PVE shows its secret only once\nput it into %s, %s\nthen run setup again", user, token, file, advice)
		return
	}
	st := step{name: name, look: l, after: there, undo: [][]string{{"pveum", "user", "token", "remove", user, token}}}
	if now != "" {
		st.do = append(st.do, action{argv: st.undo[0]})
	}
	st.do = append(st.do, action{argv: create, keep: "token", field: "value"})
	w.add(st)

	w.add(step{
		name: keys, look: look{Files: []string{file}},
		do: []action{
			{argv: clean},
			{argv: []string{"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", unit, "-f", key}},
			{argv: []string{"cat", key + ".pub"}, keep: "public_key"},
			{argv: []string{"awk", `{printf "%s\\n", $0}`, key}, keep: "private_key"},
			{argv: []string{"openssl", "rand", "-hex", "32"}, keep: "ownership_key"},
			{file: file, mode: 0o600, content: w.secretsText()},
			{argv: clean},
		},
		undo: [][]string{append(slices.Clone(clean), file)},
	})
}

// site makes the repository with the first site, and the agent's configuration.
func (w *planner) site() {
	bare := w.path(bareFolder)
	name := "repository " + w.repository
	if w.follows && !w.Local && !w.begun(name) {
		return
	}
	l := look{Files: []string{bare}}
	now, err := w.state(w.ctx, l)
	if err != nil {
		w.refuse("%w", err)
	}
	undo := [][]string{{"rm", "-rf", bare}}
	if !w.Local {
		w.remote()
		l, undo, now = look{Run: []string{"true"}}, nil, "" // it is elsewhere, and stays
		if e := w.record.entry(name); e != nil && e.After != nil {
			now = there
		}
	}
	if now == "" || w.begun(name) {
		files, err := w.firstSite()
		if err != nil {
			w.refuse("%w", err)
		}
		w.add(step{name: name, look: l, do: []action{{push: files}}, undo: undo})
	}
	if agent := w.path(agentFile); !w.follows {
		w.add(step{
			name: "configuration of the agent", look: look{Files: []string{agent}}, undo: [][]string{{"rm", "-f", agent}},
			do: []action{{file: agent, content: w.agentText(), mode: 0o644}},
		})
	}
}

// remote gives the agent access to a repository elsewhere: by a deploy key, or by the token that the owner put on the host.
func (w *planner) remote() {
	server, port, ssh, err := source.SSHHost(w.repository)
	switch {
	case err != nil:
		w.refuse("%w", err)
		return
	case !ssh:
		if _, err := os.Stat(w.path(tokenFile)); err == nil {
			w.login.TokenFile = w.path(tokenFile)
		}
		return
	}
	key, known := w.path(deployKey), w.path(knownHosts)
	w.login.KeyFile, w.login.KnownHostsFile = key, known
	missing := func(name, file string, do ...action) {
		if _, err := os.Stat(file); err == nil && !w.begun(name) {
			return
		}
		w.add(step{name: name, look: look{Files: []string{file}}, do: do, undo: [][]string{{"rm", "-f", file, file + ".pub"}}})
	}
	missing(
		"deploy key", key, action{argv: []string{"rm", "-f", key, key + ".pub"}},
		action{argv: []string{"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", unit + "@" + w.host.Name, "-f", key}},
		action{argv: []string{"chmod", "400", key}}, action{argv: []string{"chown", unit, key}},
	)
	missing(
		"host keys of "+server, known, action{argv: []string{"ssh-keyscan", "-p", port, server}, keep: "host_keys"},
		action{file: known, content: "${host_keys}\n", mode: 0o644},
	)
}

// service starts the agent, now and at boot. Undo also removes its data, if there was none before.
func (w *planner) service() {
	const name = "the service"
	l := look{Files: []string{w.path(serviceLink)}}
	now, err := w.state(w.ctx, l)
	if err != nil {
		w.refuse("%w", err)
	}
	if now != "" && !w.begun(name) {
		return
	}
	undo := [][]string{{"systemctl", "disable", "--now", systemd.Service}}
	if _, err := os.Stat(w.path(dataFolder)); errors.Is(err, fs.ErrNotExist) {
		undo = append(undo, []string{"systemctl", "clean", "--what=state", systemd.Service})
	}
	w.add(step{name: name, look: l, before: now, do: []action{{argv: []string{"systemctl", "enable", "--now", systemd.Service}}}, undo: undo})
}
