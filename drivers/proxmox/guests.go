package proxmox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// config is a guest's configuration. PVE holds two of them: what runs (now) and
// what the next full restart makes of it (next); they differ in what is pending.
type config struct {
	now, next map[string]string
	waits     bool // they may differ
	digest    string
}

// readConfig reads both configurations and the digest in one request.
func (d *Driver) readConfig(ctx context.Context, node string, vmid int) (config, error) {
	var list []struct {
		Key     string          `json:"key"`
		Value   json.RawMessage `json:"value"`
		Pending json.RawMessage `json:"pending"`
		Delete  json.RawMessage `json:"delete"`
	}
	if err := d.c.get(ctx, seg("nodes", node, "qemu", vmid, "pending"), &list); err != nil {
		return config{}, err
	}
	if len(list) == 0 {
		return config{}, &netError{"GET", seg("nodes", node, "qemu", vmid, "pending"), errors.New("the answer holds no configuration")}
	}
	c := config{now: make(map[string]string, len(list))}
	for _, e := range list {
		if e.Key == "digest" {
			c.digest = text(e.Value)
			continue
		}
		if e.Value != nil {
			c.now[e.Key] = text(e.Value)
		}
		c.waits = c.waits || e.Pending != nil || e.Delete != nil
	}
	c.next = c.now // nearly always; thousands of guests are held at once
	if !c.waits {
		return c, nil
	}
	c.next = maps.Clone(c.now)
	for _, e := range list {
		if e.Pending != nil {
			c.next[e.Key] = text(e.Pending)
		}
		if n := text(e.Delete); n != "" && n != "0" {
			delete(c.next, e.Key)
		}
	}
	return c, nil
}

// readGuests reads every VM that may be ours and judges it. All others are
// foreign, and their configuration is not even asked for.
func readGuests(ctx context.Context, d *Driver, l *look) (model.Observed, error) {
	out := model.Observed{State: model.State{}, Taken: map[int]string{}}
	fresh, unknown, err := d.readPower(ctx, l.view)
	if err != nil {
		return out, err
	}
	out.Unknown = unknown
	guests := unite(l.view.guests, fresh)
	wanted := wantedGuests(l.want)
	type answer struct {
		guest listed
		cfg   config
		err   error
	}
	var maybe []listed
	for _, id := range sortedIDs(guests) {
		g := guests[id]
		out.Taken[id] = g.kind() + " " + g.name
		switch {
		case g.lxc || !wanted.may(g):
			f := model.Foreign{VMID: id, Name: g.name, Kind: g.kind(), Why: "no owner mark", Node: g.node}
			if wanted.vmids[id] != (model.Address{}) {
				f.Claims = wanted.vmids[id]
				f.Fix = fmt.Sprintf("give %s another vmid, or remove this guest", f.Claims)
			}
			out.Foreign = append(out.Foreign, f)
		case !l.view.nodes[g.node]:
			out.Unknown = append(out.Unknown, model.Unknown{Scope: fmt.Sprintf("vm %d", id), Why: "its node " + g.node + " is offline", VMID: id, Name: g.name})
		default:
			maybe = append(maybe, g)
		}
	}
	answers := make([]answer, len(maybe))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(d.width)
	for i, guest := range maybe {
		g.Go(func() error {
			cfg, err := d.readConfig(gctx, guest.node, guest.vmid)
			answers[i] = answer{guest, cfg, err}
			if classOf(err) == classNoLogin {
				return err
			}
			return gctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return out, err
	}
	j := judge{id: d.id, want: l.want, wanted: wanted, out: &out, proven: map[model.Address][]*model.Resource{}}
	for _, a := range answers {
		if a.err != nil {
			out.Unknown = append(out.Unknown, model.Unknown{Scope: fmt.Sprintf("vm %d", a.guest.vmid), Why: a.err.Error(), VMID: a.guest.vmid, Name: a.guest.name})
			continue
		}
		j.guest(a.guest, a.cfg)
	}
	j.close()
	if err := d.findHidden(ctx, l, &out); err != nil {
		return out, err
	}
	return out, d.watchBirths(ctx, &out)
}

// watchBirths tells guests that are being made this moment from those whose making
// died: the first are unknown for now (they may be ours: the mark is written at the
// end), the second stay as they are, named, and keep their VMID.
func (d *Driver) watchBirths(ctx context.Context, out *model.Observed) error {
	running := map[string][]string{} // by node: "type:id" of running tasks
	for i := 0; i < len(out.Foreign); i++ {
		f := out.Foreign[i]
		if !f.Unfinished {
			continue
		}
		if running[f.Node] == nil {
			active, err := d.c.tasks.active(ctx, f.Node)
			if err != nil {
				return err
			}
			running[f.Node] = []string{""}
			for upid := range active {
				if p := strings.Split(upid, ":"); len(p) > 6 {
					running[f.Node] = append(running[f.Node], p[5]+":"+p[6])
				}
			}
		}
		born := slices.ContainsFunc(running[f.Node], func(t string) bool {
			return t == fmt.Sprintf("qmcreate:%d", f.VMID) || t == fmt.Sprintf("qmrestore:%d", f.VMID) || strings.HasPrefix(t, "qmclone:")
		})
		if born {
			out.Unknown = append(out.Unknown, model.Unknown{Scope: fmt.Sprintf("vm %d", f.VMID), Why: "is being created by a task that runs; look again when it is done", VMID: f.VMID})
			out.Foreign = slices.Delete(out.Foreign, i, i+1)
			i--
		}
	}
	return nil
}

// readPower lists the guests of each node that is online: fresh names and power,
// and a second opinion on which guests there are.
func (d *Driver) readPower(ctx context.Context, v *view) (map[int]listed, []model.Unknown, error) {
	var nodes []string
	for n, online := range v.nodes {
		if online {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	lists := make([][]map[string]json.RawMessage, len(nodes))
	dark := make([]error, len(nodes))
	g, gctx := errgroup.WithContext(ctx)
	for i, n := range nodes {
		g.Go(func() error {
			err := d.c.get(gctx, seg("nodes", n, "qemu"), &lists[i])
			if err == nil && lists[i] == nil {
				err = errors.New("the answer is null where a list was expected")
			}
			dark[i] = err
			if classOf(err) == classNoLogin {
				return err
			}
			return gctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	out := map[int]listed{}
	var unknown []model.Unknown
	for i, n := range nodes {
		if dark[i] != nil {
			unknown = append(unknown, model.Unknown{Scope: "node " + n, Why: dark[i].Error(), All: n == d.host.PVENode(), Node: n})
			continue
		}
		for _, e := range lists[i] {
			g := listed{vmid: number(e["vmid"]), node: n, name: text(e["name"]), tags: splitTags(text(e["tags"])), lock: text(e["lock"]), running: text(e["status"]) == "running"}
			if g.name == fmt.Sprintf("VM %d", g.vmid) {
				g.name = "" // what PVE shows for a guest without a name
			}
			out[g.vmid] = g
		}
	}
	return out, unknown, nil
}

// unite joins the cluster's list with the nodes' own: whatever either shows
// exists, and the nodes know name and power better.
func unite(cluster, nodes map[int]listed) map[int]listed {
	out := make(map[int]listed, len(cluster))
	maps.Copy(out, cluster)
	for id, g := range nodes {
		if old, ok := out[id]; ok {
			if g.lock == "" {
				g.lock = old.lock
			}
			if len(g.tags) == 0 {
				g.tags = old.tags
			}
			if old.node != g.node {
				g.node = old.node // moved just now; the cluster's list follows the configuration file at once
			}
		}
		out[id] = g
	}
	return out
}

func sortedIDs(m map[int]listed) []int {
	ids := make([]int, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// wanted is what makes a guest worth reading.
type wanted struct {
	names  map[string]model.Address
	vmids  map[int]model.Address
	ranges []model.VMIDRange
}

func wantedGuests(w *model.Want) wanted {
	out := wanted{names: map[string]model.Address{}, vmids: map[int]model.Address{}}
	for addr, r := range w.State {
		if r.Guest == nil {
			continue
		}
		out.names[r.Node] = addr
		if r.Guest.VMID != 0 {
			out.vmids[r.Guest.VMID] = addr
		}
		for _, rg := range r.Guest.Choose {
			if !slices.Contains(out.ranges, rg) {
				out.ranges = append(out.ranges, rg)
			}
		}
	}
	return out
}

// may reports whether a guest could be ours: by tag, by a name or VMID that is
// wanted, by a VMID where ours live, or because nothing is known of it yet.
func (w wanted) may(g listed) bool {
	if slices.Contains(g.tags, Tag) || g.name == "" {
		return true
	}
	_, byName := w.names[g.name]
	_, byID := w.vmids[g.vmid]
	inRange := slices.ContainsFunc(w.ranges, func(r model.VMIDRange) bool { return g.vmid >= r.From && g.vmid <= r.To })
	return byName || byID || inRange
}

// judge sorts the guests that were read into ours and foreign. Two guests that
// prove the same identity are both left alone.
type judge struct {
	id     identity
	want   *model.Want
	wanted wanted
	out    *model.Observed
	proven map[model.Address][]*model.Resource
}

func (j *judge) guest(g listed, cfg config) {
	name := cfg.next["name"]
	if name == "" {
		name = g.name
	}
	notes, m, found := splitDescription(cfg.next["description"])
	ok, why, claims := j.id.prove(m, found, g.vmid, uuidOf(cfg.next["smbios1"]))
	lock := cfg.now["lock"]
	if ok && lock != "create" && lock != "clone" {
		j.proven[m.addr()] = append(j.proven[m.addr()], observedVM(g, cfg, notes, m))
		return
	}
	f := model.Foreign{VMID: g.vmid, Name: name, Kind: "vm", Why: why, Node: g.node, Claims: claims}
	lock = or(lock, g.lock)
	switch {
	case lock == "create" || lock == "clone":
		f.Unfinished = true
		f.Why = "unfinished: its configuration is locked by a " + lock + " that runs or died"
		f.Claims = or(claims, j.wanted.vmids[g.vmid])
		f.Fix = fmt.Sprintf("if no task works on it any more: qm unlock %d && qm destroy %d on node %s", g.vmid, g.vmid, g.node)
	case claims != (model.Address{}):
		f.Fix = "remove the mark from the description of the copy, or the copy itself"
	case found && !m.readable() && (m.Site == "" || m.Site == j.id.site): // ours before somebody, or a newer version, wrote in it
		f.Claims = or(j.wanted.names[m.Node], or(j.wanted.names[name], j.wanted.vmids[g.vmid]))
		f.Fix = "put the last line of its description back from a backup or snapshot; if a newer version of this program wrote it, use that one"
	case j.wanted.vmids[g.vmid] != (model.Address{}):
		f.Claims = j.wanted.vmids[g.vmid]
		f.Fix = fmt.Sprintf("give %s another vmid, or remove this guest", f.Claims)
	case j.wanted.names[name] != (model.Address{}) && !found:
		f.Claims = j.wanted.names[name]
		f.Why = "no owner mark, but the name of " + f.Claims.String()
		f.Fix = "rename one of the two; if the mark was deleted by hand, put it back from the guest's last backup or snapshot"
	}
	j.out.Foreign = append(j.out.Foreign, f)
}

func (j *judge) close() {
	for addr, rs := range j.proven {
		if len(rs) == 1 {
			j.out.State[addr] = rs[0]
			j.out.Pending = append(j.out.Pending, rs[0].Spec.(*VM).pending(addr)...)
			continue
		}
		slices.SortFunc(rs, func(a, b *model.Resource) int { return a.Guest.VMID - b.Guest.VMID })
		for _, r := range rs {
			j.out.Foreign = append(j.out.Foreign, model.Foreign{
				VMID: r.Guest.VMID, Name: r.Spec.(*VM).Name, Kind: "vm", Node: r.Guest.Node, Claims: addr,
				Why: fmt.Sprintf("one of %d guests with the identity of %s", len(rs), addr),
				Fix: "remove the one that is not wanted, for instance a restored backup",
			})
		}
		f := diag.Errorf(diag.Range{}, fmt.Sprintf("%d guests prove to be %s: neither is touched", len(rs), addr), "%s", "usually one of them is a restored backup: remove it, or give it another uuid")
		f.Source, f.Address = diag.FromGuard, addr.String()
		j.out.Findings = append(j.out.Findings, f)
	}
	slices.SortFunc(j.out.Pending, func(a, b model.Pending) int { return a.Address.Compare(b.Address) })
}
