package inventory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A guest whose configuration is locked by a create or clone is being created, or its creation
// died. The guest itself does not show whose it is: PVE writes the lock first, and name, tags and
// description last (qemu-server, PVE/API2/Qemu.pm, create_vm and clone_vm; pve-container,
// PVE/API2/LXC.pm). The running tasks show it, as far as the token may see them: its own always,
// those of others with Sys.Audit on the node.

// creation is a running task that may be creating a guest.
type creation struct {
	api.TaskID
	mine bool // this token started it
}

// String names the task as PVE's web interface does.
func (c creation) String() string { return fmt.Sprintf("task %s of %s", c.Type, c.User) }

// kind is the kind of guest that the task creates, vm or ct.
func (c creation) kind() string { return api.GuestRef{LXC: strings.HasPrefix(c.Type, "vz")}.Kind() }

// clones reports whether the task clones a guest. Its ID has the VMID of the source, not that of
// the clone.
func (c creation) clones() bool { return c.Type == "qmclone" || c.Type == "vzclone" }

// mayCreate reports whether the task may be creating a wanted guest: a clone task one that is
// cloned from the same template, a create task one that is not cloned, and a restore or a migration
// from another cluster any.
func (c creation) mayCreate(want *model.Resource) bool {
	from := 0
	if g := guest.TargetOf(want); g != nil {
		from = g.Resolved().TemplateVMID
	}
	switch c.Type {
	case "qmclone", "vzclone":
		return from != 0 && c.Object == strconv.Itoa(from)
	case "qmcreate", "vzcreate":
		return from == 0
	default:
		return true
	}
}

// creations are the running tasks of a node that create guests.
func (d finder) creations(ctx context.Context, node string) ([]creation, error) {
	active, err := d.API.Tasks.Active(ctx, node)
	var out []creation
	for upid := range active {
		switch t := api.ParseUPID(upid); t.Type {
		case "qmcreate", "qmrestore", "qmclone", "qmtunnel", "vzcreate", "vzrestore", "vzclone", "vzmtunnel":
			out = append(out, creation{t, d.API.StartedByUs(upid)})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].String() < out[j].String() })
	return out, err
}

// creatorsOf are the tasks that may be creating a guest: the one with its VMID, else all that
// clone.
func creatorsOf(f model.Unmanaged, running []creation) []creation {
	var clones []creation
	for _, c := range running {
		switch {
		case c.kind() != f.Kind:
		case c.clones():
			clones = append(clones, c)
		case c.Object == strconv.Itoa(f.VMID):
			return []creation{c}
		}
	}
	return clones
}

// possibleTargets are the wanted guests that were not found and that f may become: of its kind,
// with a VMID that they have or may draw, and with its name if it has one.
func possibleTargets(f model.Unmanaged, want *model.Want, have model.State, by []creation) []model.Address {
	out := []model.Address{}
	for _, addr := range want.State.Addresses() {
		w := want.State[addr]
		if w.Guest == nil || have[addr] != nil || api.GuestKind(addr) != f.Kind {
			continue
		}
		switch {
		case addr == f.Claims:
		case w.Guest.VMID != 0:
			if w.Guest.VMID != f.VMID {
				continue
			}
		case !w.Guest.MayDraw(f.VMID),
			f.Name != "" && f.Name != addr.Name && f.Name != nameOf(w),
			len(by) > 0 && !slices.ContainsFunc(by, func(c creation) bool { return c.mayCreate(w) }):
			continue
		}
		out = append(out, addr)
	}
	return out
}

// classifyUnfinished distinguishes guests that this token is creating, guests that others are
// creating, and guests whose creation died. The first are unknown until their task ends. The second
// are unknown only if they may become a wanted guest, else unmanaged. The third are reported, and
// their VMIDs stay in use.
func (d finder) classifyUnfinished(ctx context.Context, obs *kind.Observation, found model.Observed) (model.Observed, error) {
	type answer struct {
		tasks []creation
		err   error
	}
	asked := map[string]answer{} // by node
	var out model.Observed
	for _, f := range found.Unmanaged {
		if !f.Unfinished {
			continue
		}
		a, done := asked[f.Node]
		if !done {
			a.tasks, a.err = d.creations(ctx, f.Node)
			asked[f.Node] = a
		}
		if api.EndsPass(ctx, a.err) {
			return out, a.err
		}
		one, err := d.classifyOne(ctx, obs, found.State, f, a.tasks, a.err)
		if err != nil {
			return out, err
		}
		out = model.Together(out, one)
	}
	return out, nil
}

// classifyOne classifies one unfinished guest: it is unknown, or f stays unmanaged, with its reason filled in.
func (d finder) classifyOne(ctx context.Context, obs *kind.Observation, have model.State, f model.Unmanaged, running []creation, tasksErr error) (model.Observed, error) {
	at := api.GuestRef{Node: f.Node, VMID: f.VMID, LXC: f.Kind == "ct"}
	unknown := func(u model.Unknown) model.Observed {
		u.Scope, u.VMID, u.Guest = fmt.Sprintf("%s %d", f.Kind, f.VMID), f.VMID, f.Kind
		return model.Observed{Unknown: []model.Unknown{u}}
	}
	others := func(why string, by []creation, denied bool) model.Observed {
		if only := possibleTargets(f, obs.Want, have, by); len(only) > 0 {
			return unknown(model.Unknown{Why: why, Only: only, Creating: true, Denied: denied})
		}
		f.Why, f.Claims, f.Fix = why, model.Address{}, ""
		return model.Observed{Unmanaged: []model.Unmanaged{f}}
	}
	if tasksErr != nil {
		return others("may be in creation, but the tasks of node "+f.Node+" cannot be read: "+tasksErr.Error(), nil, api.IsDenied(tasksErr)), nil
	}
	by := creatorsOf(f, running)
	mine := slices.DeleteFunc(slices.Clone(by), func(c creation) bool { return !c.mine })
	switch {
	case len(mine) > 0 && (len(mine) == len(by) || obs.Want.MayUse(f.VMID)):
		// An earlier run ordered it, maybe with other VMID ranges than this one.
		return unknown(model.Unknown{Why: "is being created by a task that runs; plan again when it has ended"}), nil
	case len(by) > 0:
		return others("is being created by "+by[0].String(), by, false), nil
	}
	cfg, err := d.API.ReadConfig(ctx, at)
	switch lock := cfg.Now["lock"]; {
	case api.EndsPass(ctx, err):
		return model.Observed{}, err
	case err != nil:
		return others("was being created, and cannot be read any more: "+err.Error(), nil, api.IsDenied(err)), nil
	case lock == "create" || lock == "clone":
		return abandoned(obs, have, f, at), nil
	}
	// Its task ended between the two requests.
	const why = "was being created until a moment ago; plan again"
	f.Name = cmp.Or(cfg.Next["name"], cfg.Next["hostname"])
	if _, m, found := owner.ParseDescription(cfg.Description()); found && (m.Site == "" || m.Site == d.ID.Site) {
		return unknown(model.Unknown{Why: why}), nil
	}
	return others(why, nil, false), nil
}

// abandoned is an unfinished guest on which no task works. In the VMID ranges of the site
// it is most likely left by a creation of this program, and is reported with how to clear it, which
// no token may do.
func abandoned(obs *kind.Observation, have model.State, f model.Unmanaged, at api.GuestRef) model.Observed {
	f.Why = "unfinished: PVE began to create it, and no task works on it"
	if !obs.View.SeesTasks[f.Node] {
		f.Why = fmt.Sprintf("unfinished: PVE began to create it, and no task of this token works on it (Sys.Audit on /nodes/%s would show those of others)", f.Node)
	}
	out := model.Observed{Unmanaged: []model.Unmanaged{f}}
	claimed := f.Claims != (model.Address{}) && have[f.Claims] == nil // then the creation is refused with the same message
	if claimed || !obs.Want.MayUse(f.VMID) {
		return out
	}
	fix := "if it is not being created: " + at.Rescue() + "; then check for volumes that it left behind: `pvesm list STORAGE --vmid " + strconv.Itoa(f.VMID) + "`"
	out.Findings = diag.List{{
		Severity: diag.Warning, Source: diag.FromSite, Address: "host." + obs.Want.Host.Name, At: obs.Want.Host.At,
		Summary: fmt.Sprintf("%s on node %s is %s; its VMID is not used meanwhile", at, at.Node, f.Why), Detail: fix,
	}}
	return out
}
