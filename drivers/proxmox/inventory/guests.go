// Package inventory finds the guests and templates of a host. It reads every guest that may be
// managed, separates managed from unmanaged ones by their ownership tags, and notes what keeps them
// from being changed.
package inventory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// finder finds guests and templates on a host.
type finder struct{ *kind.Host }

// Guests reads every guest that may be managed, and classifies it. All others are unmanaged, and
// their configuration is not read. Each reader gets what is known before it, and returns what it read.
func Guests(ctx context.Context, obs *kind.Observation) (model.Observed, error) {
	d := finder{obs.Host}
	wanted := wantedGuests(obs.Want)
	listed, err := list(ctx, obs, wanted)
	if err != nil {
		return listed, err
	}
	found, err := classify(ctx, obs, wanted)
	if err != nil {
		return found, err
	}
	scratch := model.State{} // guests that verifications of backups left: nothing that is done with the others is for them
	for addr, r := range found.State {
		if addr.Kind == model.RestoreKind {
			scratch[addr] = r
			delete(found.State, addr)
		}
	}
	found = model.Together(listed, found)
	if found.State, err = d.withClones(ctx, obs, found.State); err != nil {
		return found, err
	}
	seeds, err := d.readSeeds(ctx, obs, found)
	if err != nil {
		return found, err
	}
	if found.State, err = d.withFacts(ctx, obs, found.State); err != nil {
		return found, err
	}
	hidden, err := d.findHidden(ctx, obs, found)
	if err != nil {
		return found, err
	}
	unfinished, err := d.classifyUnfinished(ctx, obs, found)
	if err != nil {
		return found, err
	}
	found.Unmanaged = slices.DeleteFunc(found.Unmanaged, func(f model.Unmanaged) bool { return f.Unfinished })
	found = model.Together(found, hidden, unfinished)
	left, err := d.readLeftVolumes(ctx, obs, found)
	out := model.Together(found, seeds, left, model.Observed{State: scratch})
	slices.Sort(out.SweepHints)
	return out, err
}

// list lists all guests into the observation, with the configurations of those on the cluster's list that may be
// managed. It returns the VMIDs in use, and what could not be listed.
func list(ctx context.Context, obs *kind.Observation, wanted wanted) (model.Observed, error) {
	// The guests on the cluster's list are read first: PVE closes the connection after each of
	// the requests that follow, and these then close connections that are open already.
	first := make([]api.ListedGuest, 0, len(obs.View.Guests))
	for _, id := range slices.Sorted(maps.Keys(obs.View.Guests)) {
		if g := obs.View.Guests[id]; wanted.mayBeManaged(g) && obs.View.Nodes[g.Node] {
			first = append(first, g)
		}
	}
	out := model.Observed{Taken: make(map[int]string, len(obs.View.Guests))}
	if err := obs.ReadConfigs(ctx, first); err != nil {
		return out, err
	}
	var err error
	if obs.Guests, out.Unknown, err = Listed(ctx, obs); err != nil {
		return out, err
	}
	for id, g := range obs.Guests {
		out.Taken[id] = g.Kind() + " " + g.Name
	}
	return out, nil
}

// classify reads the configurations of guests that may be managed and were not read yet, and separates managed guests
// from all others.
func classify(ctx context.Context, obs *kind.Observation, wanted wanted) (model.Observed, error) {
	var offline []model.Unknown
	maybe := make([]api.ListedGuest, 0, len(obs.Guests))
	var later, unread, rest []api.ListedGuest
	for _, id := range slices.Sorted(maps.Keys(obs.Guests)) {
		g := obs.Guests[id]
		switch {
		case !wanted.mayBeManaged(g):
			rest = append(rest, g)
		case !obs.View.Nodes[g.Node]:
			unread = append(unread, g)
			offline = append(offline, model.Unknown{Scope: fmt.Sprintf("%s %d", g.Kind(), id), Why: "its node " + g.Node + " is offline", VMID: id, Guest: g.Kind(), Name: wanted.nameOf(g)})
		default:
			maybe = append(maybe, g)
			if _, done := obs.Configs[g.Ref()]; !done {
				later = append(later, g)
			}
		}
	}
	if err := obs.ReadConfigs(ctx, later); err != nil {
		return model.Observed{}, err
	}
	c := newClassifier(obs, wanted, unread)
	c.addAll(maybe, obs.Configs)
	// A guest with the same name as one with an ownership tag of this site may be its copy, and any may be one of a guest
	// that is to be adopted.
	var namesakes []api.ListedGuest
	for _, g := range rest {
		if !c.names[g.Name] && !c.adopting || !obs.View.Nodes[g.Node] {
			c.addUnread(g)
			continue
		}
		namesakes = append(namesakes, g)
	}
	if err := obs.ReadConfigs(ctx, namesakes); err != nil {
		return model.Observed{}, err
	}
	namesakes = slices.DeleteFunc(namesakes, func(g api.ListedGuest) bool {
		unread := !c.names[g.Name] && obs.Configs[g.Ref()].Err != nil
		if unread {
			c.addUnread(g)
		}
		return unread
	})
	c.addAll(namesakes, obs.Configs)
	out := c.result()
	out.Unknown = append(offline, out.Unknown...)
	return out, nil
}

// readPower lists the guests of each node that is online: their present name and power, and a
// second source for which guests exist. It asks for containers only on nodes that show one, or
// where the site wants one: each such request costs a connection, since PVE closes it after the
// answer.
func (d finder) readPower(ctx context.Context, obs *kind.Observation) (map[int]api.ListedGuest, []model.Unknown, error) {
	type question struct {
		node string
		lxc  bool
		list []api.ListedGuest
		err  error
	}
	var asked []*question
	for _, n := range slices.Sorted(maps.Keys(obs.View.Nodes)) {
		if !obs.View.Nodes[n] {
			continue
		}
		asked = append(asked, &question{node: n})
		if mayHaveContainers(obs, n) {
			asked = append(asked, &question{node: n, lxc: true})
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, q := range asked {
		g.Go(func() error {
			q.list, q.err = d.readNode(gctx, q.node, q.lxc)
			if api.ClassOf(q.err) == api.NoLogin {
				return q.err
			}
			return gctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	out := map[int]api.ListedGuest{}
	var unknown []model.Unknown
	for _, q := range asked {
		if q.err != nil {
			if !slices.ContainsFunc(unknown, func(u model.Unknown) bool { return u.Node == q.node }) {
				unknown = append(unknown, model.Unknown{Scope: "node " + q.node, Why: q.err.Error(), Node: q.node, Only: mayLiveOn(obs.Want, q.node), Denied: api.IsDenied(q.err)})
			}
			continue
		}
		for _, g := range q.list {
			out[g.VMID] = g
		}
	}
	return out, unknown, nil
}

// mayLiveOn lists the wanted guests that may be on a PVE node of several. While it cannot be listed, they may be there
// already, and the list of the cluster alone does not prove that they are not. Nil: there is none.
func mayLiveOn(want *model.Want, node string) []model.Address {
	var out []model.Address
	for _, addr := range want.State.Addresses() {
		if r := want.State[addr]; r.Guest != nil && slices.Contains(r.Guest.Nodes, node) {
			out = append(out, addr)
		}
	}
	return out
}

// readNode lists the VMs of a node, or its containers.
func (d finder) readNode(ctx context.Context, node string, lxc bool) ([]api.ListedGuest, error) {
	var out []api.ListedGuest
	path := api.Path("nodes", node, "qemu")
	if lxc {
		path = api.Path("nodes", node, "lxc")
	}
	there, err := d.API.Rows(ctx, path, func(e api.Row) {
		g := e.Listed(node, lxc)
		g.Uptime = e.Number("uptime")
		out = append(out, g)
	})
	if err == nil && !there {
		err = api.ErrNoList
	}
	return out, err
}

// Listed lists all guests of the nodes that are online, and what could not be listed.
func Listed(ctx context.Context, obs *kind.Observation) (map[int]api.ListedGuest, []model.Unknown, error) {
	fresh, unknown, err := finder{obs.Host}.readPower(ctx, obs)
	return mergeLists(obs.View.Guests, fresh), unknown, err
}

// mayHaveContainers reports whether a node has containers, or is to get one.
func mayHaveContainers(obs *kind.Observation, node string) bool {
	for _, g := range obs.View.Guests {
		if g.LXC && g.Node == node {
			return true
		}
	}
	for addr, r := range obs.Want.State {
		if addr.Kind == "ct" && r.Guest != nil && (r.Guest.Node == node || slices.Contains(r.Guest.Nodes, node)) {
			return true
		}
	}
	return false
}

// mergeLists joins the cluster's list with those of the nodes. A guest that either shows exists;
// the nodes know name and power better.
func mergeLists(cluster, nodes map[int]api.ListedGuest) map[int]api.ListedGuest {
	out := make(map[int]api.ListedGuest, len(cluster))
	maps.Copy(out, cluster)
	for id, g := range nodes {
		if old, ok := out[id]; ok {
			g.Lock = cmp.Or(g.Lock, old.Lock)
			if len(g.Tags) == 0 {
				g.Tags = old.Tags
			}
			g.HA, g.QMP = old.HA, old.QMP // only the cluster's list has them
			if old.Node != g.Node {
				g.Node = old.Node // it has just moved; the cluster's list follows the configuration file at once
			}
		}
		out[id] = g
	}
	return out
}

// wanted selects the guests to read: the names, VMIDs and ranges of VMIDs that the site
// wants.
type wanted struct {
	names  map[string]model.Address
	adopts map[int]*model.Node // nodes with adopt, by VMID
	vmids  map[int]model.Address
	ranges []model.VMIDRange
}

func wantedGuests(w *model.Want) wanted {
	out := wanted{names: make(map[string]model.Address, len(w.State)), vmids: make(map[int]model.Address, len(w.State)), adopts: map[int]*model.Node{}}
	for addr, r := range w.State {
		if r.Guest == nil {
			continue
		}
		if n := w.Nodes[addr]; n != nil && n.Adopt != "" {
			out.adopts[n.VMID] = n
		}
		out.names[cmp.Or(r.Node, addr.Name)] = addr
		out.names[nameOf(r)] = addr // a container's host name may be another
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

// mayBeManaged reports whether a guest may be managed: by its tag, by a wanted name or VMID, by a
// VMID in a range of the site, or because its name is not known.
func (w wanted) mayBeManaged(g api.ListedGuest) bool {
	if slices.Contains(g.Tags, owner.PVETag) || g.Name == "" {
		return true
	}
	_, byName := w.names[g.Name]
	_, byID := w.vmids[g.VMID]
	inRange := slices.ContainsFunc(w.ranges, func(r model.VMIDRange) bool { return g.VMID >= r.From && g.VMID <= r.To })
	return byName || byID || inRange
}

// nameOf is the name of a guest that could not be read, if a wanted guest has it; else "", since any managed guest
// may have been renamed by hand.
func (w wanted) nameOf(g api.ListedGuest) string {
	if _, known := w.names[g.Name]; known {
		return g.Name
	}
	return ""
}
