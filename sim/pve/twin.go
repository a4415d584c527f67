package pve

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/observation"
	"github.com/homestak/homestak-gitops/sim/pve/cluster"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/host"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Twin makes a host in the state of an observation. c says how it behaves (times, clock, faults, systems); what it is like
// comes from the observation. Its token is the one that made the observation, with the same privileges and another
// secret. Any other one that c names may do everything.
//
// Nothing runs inside of its guests, all disks of VMs count as systems that obey a shutdown, and the content of files is
// not known. Requests that failed when the host was observed fail in the same way.
func Twin(o *observation.Host, c Config) (*Host, error) {
	if c.Token == "" {
		c.Token = o.Token + "=" + perl.SumOf(fmt.Sprint("twin ", c.Seed, o.Token))[:32]
	}
	token := core.TokenForm.FindStringSubmatch(c.Token)
	if token == nil {
		return nil, fmt.Errorf("the token %q of the observation is not of the form user@realm!name", o.Token)
	}
	c.Node, c.Nodes, c.Offline, c.NoQuorum, c.Guests, c.Storages, c.Bridges = o.Node, nil, nil, !o.Quorate, 0, []Storage{}, []string{}
	c.Version = nearest(o.Version)
	for _, n := range o.Nodes {
		if n.Name == o.Node {
			c.CPUs, c.Memory, c.RootDisk = n.CPUs, n.Memory, n.Disk
		} else {
			c.Nodes = append(c.Nodes, n.Name)
		}
		if !n.Online {
			c.Offline = append(c.Offline, n.Name)
		}
	}
	c.Fault = failing(o, c.Fault)
	h := New(c)
	h.withWorld(func(w *core.World) {
		t := twin{w, o}
		id := core.Identity{User: token[1], Token: token[2]}
		if id.String() == o.Token {
			t.allow(id)
		}
		t.storages()
		t.networks(id)
		for _, p := range o.Pools {
			pool := &core.Pool{Name: p.Name, Vms: map[int]bool{}, Storages: map[string]bool{}}
			if p.Comment != "" {
				pool.Comment = &p.Comment
			}
			w.Access.Pools[p.Name] = pool
		}
		for _, g := range o.Guests {
			t.guest(g)
		}
		for _, set := range o.IPSets {
			members := map[string]perl.Config{}
			for _, e := range set.Entries {
				members[e.CIDR] = perl.Config{"comment": e.Comment, "nomatch": fmt.Sprint(perl.BoolInt(e.NoMatch))}
			}
			cluster.KeepIPSet(w, set.Name, set.Comment, members)
		}
		for _, e := range o.Edits {
			who, name, _ := strings.Cut(e.User, "!")
			w.Messages.Add(core.Message{At: time.Unix(e.At, 0), Node: e.Node, Who: core.Identity{User: who, Token: name}, Pid: e.PID, Text: e.Text})
		}
		for _, n := range o.Nodes {
			for _, task := range n.Tasks {
				core.Recall(w, task.UPID, task.Status, time.Unix(task.Ended, 0))
			}
		}
		w.Access.Changed()
		w.Begin()
	})
	return h, nil
}

// nearest is the version that stands for another one: the first that is not older, else the newest.
func nearest(version string) string {
	number := func(v string) int {
		major, minor, _ := strings.Cut(v, ".")
		return 1000*perl.Atoi(major) + perl.Atoi(minor)
	}
	all := Versions()
	if i := slices.IndexFunc(all, func(v string) bool { return number(v) >= number(version) }); i >= 0 {
		return all[i]
	}
	return all[len(all)-1]
}

// failing lets the requests fail that failed when a host was observed.
func failing(o *observation.Host, next func(*http.Request) (int, bool)) func(*http.Request) (int, bool) {
	var rules []Fault
	for _, u := range o.Unread {
		rules = append(rules, Fault{Method: http.MethodGet, Pattern: u.Path, Status: cmp.Or(u.Status, http.StatusInternalServerError)})
	}
	own := Faults(rules...)
	return func(r *http.Request) (int, bool) {
		if status, apply := own(r); status != 0 || next == nil {
			return status, apply
		}
		return next(r)
	}
}

// twin loads an observation.
type twin struct {
	w *core.World
	o *observation.Host
}

// allow gives the token the privileges that it had: on each path that PVE shows, by two roles of its own, since a role
// is passed down as a whole. None are on a path that PVE always shows and did not.
func (t twin) allow(id core.Identity) {
	access := t.w.Access
	access.Users[id.User].Tokens[id.Token].Privsep = true
	for _, path := range []string{"/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms"} {
		if len(t.o.Privileges[path]) == 0 {
			access.Grant(path, "NoAccess", true, ofTokens, id.String())
		}
	}
	for path, privs := range perl.Sorted(t.o.Privileges) {
		for priv, below := range privs {
			role := fmt.Sprintf("observed-%d-%s", below, url.PathEscape(path))
			if access.Roles[role] == nil {
				access.Roles[role] = &core.Role{Privs: map[string]bool{}}
			}
			access.Roles[role].Privs[priv] = true
			access.Grant(path, role, below != 0, ofTokens, id.String())
		}
	}
}

func ofTokens(e *core.ACLEntry) map[string]map[string]bool { return e.Tokens }

func (t twin) storages() {
	clear(t.w.Stores)
	for _, s := range t.o.Storages {
		st := core.NewStore(core.Storage{Name: s.Name, Type: s.Type, Shared: s.Shared, Size: s.Size, Content: strings.FieldsFunc(s.Content, func(c rune) bool { return c == ',' })})
		if st.Files() {
			st.Path = "/mnt/pve/" + s.Name
			if s.Name == "local" {
				st.Path = "/var/lib/vz"
			}
		}
		if len(s.Nodes) < len(t.o.Nodes) {
			st.Extra = perl.Config{"nodes": strings.Join(s.Nodes, ",")}
		}
		t.w.Stores[s.Name] = st
		for _, v := range s.Volumes {
			_, file, _ := core.VolumeID(v.ID)
			volume := &core.Volume{
				Name: file, Content: v.Content, Format: v.Format, Vmid: v.VMID, Size: v.Size, Length: v.Size, Used: v.Used, Ctime: v.Created,
				Notes: v.Notes, Protected: v.Protected, Verified: v.Verified,
			}
			if v.Content == "images" || v.Content == "rootdir" {
				t.disk(st, v.Node, volume)
				continue
			}
			st.Put(v.Node, volume)
		}
		st.Filled = max(0, s.Used-st.Used(s.Nodes[0]))
	}
}

// disk keeps a disk. A linked clone names its base before itself.
func (twin) disk(s *core.Store, node string, v *core.Volume) {
	v.Content, v.System = "images", true
	parts := strings.Split(v.Name, "/")
	if s.Files() && len(parts) == 4 || !s.Files() && len(parts) == 2 {
		v.Parent = strings.Join(parts[:len(parts)/2], "/")
	}
	s.Put(node, v)
}

// networks keeps bridges. The simulator has the same ones on every node; one that a node lacks waits for its removal
// there. A virtual network is a bridge too, which the token sees as it saw the network.
func (t twin) networks(id core.Identity) {
	for _, n := range t.o.Nodes {
		for _, bridge := range n.Bridges {
			if path := "/sdn/zones/localnetwork/" + bridge; !t.w.Access.Allowed(id, path, "SDN.Audit") && !t.w.Access.Allowed(id, path, "SDN.Use") {
				t.w.Access.Grant(path, "PVESDNUser", true, ofTokens, id.String())
			}
			if !slices.Contains(t.w.Bridges, bridge) {
				t.w.Bridges = append(t.w.Bridges, bridge)
			}
		}
	}
	for _, n := range t.o.Nodes {
		planned := map[string]perl.Config{}
		for _, bridge := range t.w.Bridges {
			if !slices.Contains(n.Bridges, bridge) {
				planned[bridge] = nil
			}
		}
		if n.Online && len(planned) > 0 {
			t.w.Nodes[n.Name].Planned = planned
		}
	}
}

func (t twin) guest(from observation.Guest) {
	g := core.NewGuest(from.Node, from.Kind, from.VMID)
	maps.Copy(g.Conf, from.Config)
	maps.Copy(g.Pend, from.Pending)
	going := map[string]bool{}
	for _, word := range from.Delete {
		key, force := strings.CutPrefix(word, "!")
		going[key] = force
	}
	g.SetDeletions(going)
	for _, s := range from.Snapshots {
		g.Snapshots = append(g.Snapshots, &core.Snapshot{Name: s.Name, Conf: maps.Clone(s.Config), Sizes: map[string]int64{}})
	}
	t.w.Add(g)
	for _, section := range g.Sections() {
		for key, value := range section {
			t.unlisted(g, key, value)
		}
	}
	if from.Running {
		lock := g.Conf["lock"]
		guests.PowerOn(t.w, g)
		g.Run.Since = t.w.Now.Add(-time.Duration(from.Uptime) * time.Second)
		g.Run.Booted, g.Run.System, g.Run.Qmp = g.Run.Since.Add(t.w.Cfg.BootTime), true, from.QMP
		if lock != "" {
			g.Conf["lock"] = lock
		}
	}
	g.Believe(from.Digest)
	if from.Pool != "" {
		host.JoinPool(t.w, from.Pool, from.VMID)
	}
	if from.HA != "" {
		cluster.KeepHA(t.w, g, from.HA)
	}
}

// unlisted keeps a disk that a configuration names and no list has, since the token may not list it.
func (t twin) unlisted(g *core.Guest, key, value string) {
	volid, size := perl.ParseDrive(key, value).File, perl.OptionOf(value, "size")
	if g.Kind == "lxc" {
		volid = perl.ParseMount(key, value).Volume
	}
	if !perl.IsDrive(key) && !perl.IsMount(key) || t.w.Volume(g.Node, volid) != nil {
		return
	}
	storage, name, ok := core.VolumeID(volid)
	s := t.w.Stores[storage]
	if !ok || s == nil {
		return
	}
	if parsed, err := s.ParseName(name); err == nil && parsed.Content == "images" {
		bytes, _ := perl.ParseSize(size)
		t.disk(s, g.Node, &core.Volume{Name: name, Format: parsed.Format, Vmid: parsed.Vmid, Size: bytes, Ctime: t.w.Now.Unix()})
	}
}
