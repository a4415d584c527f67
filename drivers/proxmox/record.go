package proxmox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/observation"
)

// recentTasks is how long ago a task may have begun for an observation to have it: restarts count for an hour.
const recentTasks = time.Hour

// object is an object of a list in PVE's response.
type object = map[string]json.RawMessage

// recorder reads a host into an observation. What ends the observation cancels ctx, with the cause.
type recorder struct {
	ctx    context.Context //nolint:containedctx // of the one call of Record
	cancel context.CancelCauseFunc
	api    *api.Client
	host   *observation.Host
	mu     sync.Mutex // guards host.Unread
}

// Record reads all that a plan of any site for this host may depend on: of every guest and storage, not only of those
// of a site. An error means that the host could not be observed; requests that failed one by one are in Unread.
func (d *Driver) Record(ctx context.Context) (*observation.Host, error) {
	h := d.host.Model
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &recorder{ctx: ctx, cancel: cancel, api: d.host.API, host: &observation.Host{
		Format: observation.Format, Name: h.Name, ObservedAt: time.Now().UTC().Truncate(time.Second),
		Token: d.host.API.User(), Node: h.PVENode(), Quorate: true,
	}}
	if err := r.record(d.host.Width); err != nil {
		return nil, fmt.Errorf("observing host %s at %s: %w", h.Name, h.API, err)
	}
	sort.Slice(r.host.Unread, func(i, j int) bool { return r.host.Unread[i].Path < r.host.Unread[j].Path })
	return r.host, nil
}

func (r *recorder) record(width int) error {
	var rows []object
	var version struct {
		Release string `json:"release"`
	}
	if err := api.ReadList(r.ctx, r.api, "/cluster/resources", &rows); err != nil {
		return err
	}
	if err := r.api.Get(r.ctx, "/access/permissions", &r.host.Privileges); err != nil {
		return err
	}
	if err := r.api.Get(r.ctx, "/version", &version); err != nil {
		return err
	}
	r.host.Version = version.Release
	storages := r.list(rows)
	if !slices.ContainsFunc(r.host.Nodes, func(n observation.Node) bool { return n.Name == r.host.Node }) {
		return fmt.Errorf("it has no node %s, or does not show it: is api the URL of another host, or Sys.Audit missing?", r.host.Node)
	}
	r.cluster()
	r.nodes(storages)
	for _, name := range slices.Sorted(maps.Keys(storages)) {
		slices.Sort(storages[name].Nodes)
		r.host.Storages = append(r.host.Storages, *storages[name])
	}
	var g errgroup.Group
	g.SetLimit(width)
	for i := range r.host.Guests {
		if one := &r.host.Guests[i]; r.isOnline(one.Node) {
			g.Go(func() error { r.guest(one); return nil })
		}
	}
	for i := range r.host.Storages {
		g.Go(func() error { r.volumes(&r.host.Storages[i]); return nil })
	}
	return errors.Join(g.Wait(), context.Cause(r.ctx))
}

// read reads a path, and reports whether it could. A request that fails is noted.
func (r *recorder) read(path string, into any) bool {
	err := r.api.Get(r.ctx, path, into)
	if err == nil {
		return true
	}
	if api.EndsPass(r.ctx, err) {
		r.cancel(err)
		return false
	}
	note := observation.Unread{Why: err.Error()}
	note.Path, _, _ = strings.Cut(path, "?")
	if answered, ok := errors.AsType[*api.Error](err); ok {
		note.Status = answered.Status
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.host.Unread = append(r.host.Unread, note)
	return false
}

// list takes over the cluster's list, and returns its storages.
func (r *recorder) list(rows []object) map[string]*observation.Storage {
	storages := map[string]*observation.Storage{}
	for _, e := range rows {
		node := api.Text(e["node"])
		switch kind := api.Text(e["type"]); kind {
		case "node":
			r.host.Nodes = append(r.host.Nodes, observation.Node{
				Name: node, Online: api.IsOnline(api.Text(e["status"])), CPUs: api.Number(e["maxcpu"]), Memory: wide(e["maxmem"]), Disk: wide(e["maxdisk"]),
			})
		case "storage":
			keepStorage(storages, node, api.Text(e["plugintype"]), wide(e["maxdisk"]), wide(e["disk"]), e)
		case "qemu", "lxc":
			g := observation.Guest{
				VMID: api.Number(e["vmid"]), Kind: kind, Node: node, HA: api.Text(e["hastate"]), Pool: api.Text(e["pool"]), Config: map[string]string{},
			}
			status := api.Text(e["status"])
			if g.Running = !slices.Contains([]string{"", "stopped", "unknown"}, status); g.Running && status != "running" {
				g.QMP = status
			}
			name := map[string]string{"qemu": "name", "lxc": "hostname"}[kind]
			for key, member := range map[string]string{name: "name", "tags": "tags", "lock": "lock", "template": "template"} { // until its configuration is read
				if value := api.Text(e[member]); value != "" && value != "0" {
					g.Config[key] = value
				}
			}
			r.host.Guests = append(r.host.Guests, g)
		}
	}
	sort.Slice(r.host.Nodes, func(i, j int) bool { return r.host.Nodes[i].Name < r.host.Nodes[j].Name })
	sort.Slice(r.host.Guests, func(i, j int) bool { return r.host.Guests[i].VMID < r.host.Guests[j].VMID })
	return storages
}

// keepStorage takes over a storage that a node has.
func keepStorage(all map[string]*observation.Storage, node, kind string, total, used int64, e object) {
	name := api.Text(e["storage"])
	if all[name] == nil {
		content := api.ContentTypes(api.Text(e["content"]))
		all[name] = &observation.Storage{Name: name, Type: kind, Content: strings.Join(content, ","), Shared: api.Text(e["shared"]) == "1", Size: total, Used: used}
	}
	if !slices.Contains(all[name].Nodes, node) {
		all[name].Nodes = append(all[name].Nodes, node)
	}
}

// cluster reads what the nodes have in common.
func (r *recorder) cluster() {
	var status, pools, sets, log []object
	for path, into := range map[string]*[]object{"/cluster/status": &status, "/pools": &pools, "/cluster/firewall/ipset": &sets, "/cluster/log?max=1000": &log} {
		r.read(path, into)
	}
	for _, e := range status {
		r.host.Quorate = r.host.Quorate && (api.Text(e["type"]) != "cluster" || api.Text(e["quorate"]) != "0")
	}
	for _, e := range slices.Backward(log) { // the newest is first
		if text := editWithoutValues(api.Text(e["msg"])); text != "" {
			r.host.Edits = append(r.host.Edits, observation.Edit{At: wide(e["time"]), Node: api.Text(e["node"]), User: api.Text(e["user"]), PID: api.Number(e["pid"]), Text: text})
		}
	}
	for _, e := range sorted(pools, "poolid") {
		r.host.Pools = append(r.host.Pools, observation.Pool{Name: api.Text(e["poolid"]), Comment: api.Text(e["comment"])})
	}
	for _, e := range sorted(sets, "name") {
		set := observation.IPSet{Name: api.Text(e["name"]), Comment: api.Text(e["comment"])}
		var entries []object
		r.read("/cluster/firewall/ipset/"+url.PathEscape(set.Name), &entries)
		for _, e := range sorted(entries, "cidr") {
			set.Entries = append(set.Entries, observation.Entry{CIDR: api.Text(e["cidr"]), NoMatch: api.Text(e["nomatch"]) == "1", Comment: api.Text(e["comment"])})
		}
		r.host.IPSets = append(r.host.IPSets, set)
	}
}

// editWithoutValues is an entry of the cluster log about a change of a VM (qemu-server, API2/Qemu.pm, update_vm_api)
// with the names of its parameters, and the values of those that list keys; "" for any other entry. It ends at a parameter
// whose value may look like others.
func editWithoutValues(text string) string {
	head, params, ok := strings.Cut(text, ":")
	if !ok || !strings.HasPrefix(head, "update VM ") {
		return ""
	}
	head += ":"
	words := strings.Fields(params)
	for i, word := range words {
		switch {
		case !paramName().MatchString(word):
		case word == "-description" || word == "-args":
			return head + " " + word + " *"
		case (word == "-delete" || word == "-revert") && i+1 < len(words) && paramName().MatchString("-"+words[i+1]):
			head += " " + word + " " + words[i+1]
		default:
			head += " " + word + " *"
		}
	}
	return head
}

var paramName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^-[a-z][a-z0-9_,-]*$`) })

// nodes reads what each node that is online has: the present state of its guests, storages, bridges and tasks.
func (r *recorder) nodes(storages map[string]*observation.Storage) {
	for i := range r.host.Nodes {
		n := &r.host.Nodes[i]
		if !n.Online {
			continue
		}
		var disks, bridges, running, over []object
		since := fmt.Sprintf("?limit=500&source=archive&since=%d", time.Now().Add(-recentTasks).Unix())
		for path, into := range map[string]*[]object{
			"storage": &disks, "network?type=any_bridge": &bridges, "tasks?limit=500&source=active": &running, "tasks" + since: &over,
		} {
			r.read(api.Path("nodes", n.Name)+"/"+path, into)
		}
		for _, e := range disks {
			if api.Text(e["enabled"]) != "0" {
				keepStorage(storages, n.Name, api.Text(e["type"]), wide(e["total"]), wide(e["used"]), e)
			}
		}
		for _, e := range sorted(bridges, "iface") {
			n.Bridges = append(n.Bridges, api.Text(e["iface"]))
		}
		for _, e := range sorted(append(over, running...), "starttime", "upid") {
			t := observation.Task{UPID: api.Text(e["upid"])}
			if t.Ended = wide(e["endtime"]); t.Ended != 0 {
				t.Status = api.Text(e["status"])
			}
			n.Tasks = append(n.Tasks, t)
		}
		for _, kind := range []string{"qemu", "lxc"} {
			var list []object
			r.read(api.Path("nodes", n.Name, kind), &list)
			r.present(list)
		}
	}
}

// present takes over the power of guests from the list of their node. The cluster's list is up to ten seconds old.
func (r *recorder) present(list []object) {
	for _, e := range list {
		i, found := slices.BinarySearchFunc(r.host.Guests, api.Number(e["vmid"]), func(g observation.Guest, id int) int { return g.VMID - id })
		if !found {
			continue // it was created since the host was listed
		}
		g := &r.host.Guests[i]
		if g.Running, g.Uptime = api.Text(e["status"]) == "running", wide(e["uptime"]); !g.Running {
			g.QMP = ""
		}
	}
}

// guest reads the configuration of a guest, and its snapshots.
func (r *recorder) guest(g *observation.Guest) {
	at := api.GuestRef{Node: g.Node, VMID: g.VMID, LXC: g.Kind == "lxc"}
	var keys, snapshots []object
	if !r.read(at.Path("pending"), &keys) {
		return
	}
	g.Config, g.Pending = map[string]string{}, map[string]string{}
	for _, e := range sorted(keys, "key") {
		key := api.Text(e["key"])
		if key == "digest" {
			g.Digest = api.Text(e["value"])
			continue
		}
		if e["value"] != nil {
			g.Config[key] = masked(key, api.Text(e["value"]))
		}
		if e["pending"] != nil {
			g.Pending[key] = masked(key, api.Text(e["pending"]))
		}
		switch api.Text(e["delete"]) {
		case "1":
			g.Delete = append(g.Delete, key)
		case "2":
			g.Delete = append(g.Delete, "!"+key)
		}
	}
	r.read(at.Path("snapshot"), &snapshots)
	for _, e := range sorted(snapshots, "snaptime", "name") {
		name, conf := api.Text(e["name"]), object{}
		if name == "current" { // the present state
			continue
		}
		r.read(at.Path("snapshot", name, "config"), &conf)
		s := observation.Snapshot{Name: name, Config: map[string]string{}}
		for key, value := range conf {
			if key != "digest" {
				s.Config[key] = masked(key, api.Text(value))
			}
		}
		g.Snapshots = append(g.Snapshots, s)
	}
}

// volumes reads what is on a storage: of a shared one by one node, else by each that is online.
func (r *recorder) volumes(s *observation.Storage) {
	for _, node := range s.Nodes {
		if !r.isOnline(node) {
			continue
		}
		var list []object
		there := r.read(api.Path("nodes", node, "storage", s.Name, "content"), &list)
		for _, e := range sorted(list, "volid") {
			v := observation.Volume{
				ID: api.Text(e["volid"]), Node: node, Content: api.Text(e["content"]), Format: api.Text(e["format"]), VMID: api.Number(e["vmid"]),
				Size: wide(e["size"]), Used: wide(e["used"]), Created: wide(e["ctime"]), Notes: api.Text(e["notes"]), Protected: api.Text(e["protected"]) == "1",
				Verified: api.Verified(e["verification"]),
			}
			if s.Shared {
				v.Node = ""
			}
			s.Volumes = append(s.Volumes, v)
		}
		if s.Shared && there {
			return
		}
	}
}

func (r *recorder) isOnline(node string) bool {
	return slices.ContainsFunc(r.host.Nodes, func(n observation.Node) bool { return n.Name == node && n.Online })
}

// wide reads a number that may be larger than an int of 32 bits, such as bytes.
func wide(raw json.RawMessage) int64 { return int64(api.Number(raw)) }

// sorted sorts a list by members. PVE's have no order.
func sorted(list []object, by ...string) []object {
	return slices.SortedFunc(slices.Values(list), func(a, b object) int {
		for _, member := range by {
			if c := cmp.Or(cmp.Compare(api.Number(a[member]), api.Number(b[member])), strings.Compare(api.Text(a[member]), api.Text(b[member]))); c != 0 {
				return c
			}
		}
		return 0
	})
}

// mask stands for a secret, as in Proxmox VE.
const mask = "**********"

// secretKeys are the keys of guests that may hold secrets. Proxmox VE masks a password, and hides the environment of a
// container from who may not change it (PVE/LXC.pm, delete_read_restricted_options). The arguments of QEMU can have
// the passwords and the first configuration of a machine.
var secretKeys = []string{"cipassword", "env", "args"}

// masked is a value of a guest's configuration without secrets.
func masked(key, value string) string {
	if value != "" && slices.Contains(secretKeys, key) {
		return mask
	}
	return value
}
