package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/model"
)

// guests is the host as a plan sees it: the guests that the site manages, and all others.
type guests struct {
	*subject
	token    *token
	nodes    *nodes
	have     model.Observed
	complete bool // have is complete
}

// logins warns of machines from images that get neither a key nor a password.
func (g *guests) logins() {
	if s := g.site.Secrets; s == nil || len(s.KeysOf(nil)) > 0 {
		return
	}
	var closed []string
	for _, addr := range g.want.State.Addresses() {
		v, is := guest.TargetOf(g.want.State[addr]).(guest.VMTarget)
		if is && v.Image != "" && !v.Seeded() && len(v.Keys) == 0 && v.Password == "" {
			closed = append(closed, addr.Name)
		}
	}
	if len(closed) > 0 {
		g.warn("logins", "no key of ssh_keys and no password", "users cannot log in to "+strings.Join(closed, ", "), "put the line of a .pub file into ssh_keys of the secrets, before they are created")
	}
}

// check observes the host as a plan does, and reports what would block one.
func (g *guests) check(ctx context.Context) {
	have, err := g.driver.Observe(ctx, g.want)
	if err != nil {
		g.unread("guests", err)
		return
	}
	g.have, g.complete = have, true
	before := len(g.checks)
	for _, u := range have.Unknown {
		g.complete = g.complete && !u.All
		switch {
		case u.All && !g.sees():
			g.skip("guests", "the token may see none of them: see the privileges")
		case u.All && g.failed("nodes"):
			g.skip("guests", "the view of the host is incomplete: see the nodes")
		case u.Kind != "" && g.failed("privileges"):
			g.skip("guests", "%s cannot be read: see the privileges", u.Scope)
		case u.All:
			g.add(Check{
				Name: "guests", Result: Failed, Seen: u.Scope + ": " + u.Why, Why: "nothing is changed here while the view is incomplete",
				Fix: []string{"fix that, and run this again"},
			})
		case u.Node == "" || g.nodes.online[u.Node]: // nodes that are down are reported already
			g.warn("guests", u.Scope+": "+u.Why, "what cannot be read is not changed")
		}
	}
	for _, f := range have.Unmanaged {
		switch {
		case f.Unfinished && f.Fix == "": // it is being created
		case f.Unfinished:
			g.warn("guests", fmt.Sprintf("%s %d is incomplete: %s", f.Kind, f.VMID, f.Why), "it keeps its VMID and its disks, and no token can remove it", f.Fix)
		case f.Claims != (model.Address{}):
			g.warn("guests", fmt.Sprintf("%s %d %q blocks %s: %s", f.Kind, f.VMID, f.Name, f.Claims, f.Why), "until then "+f.Claims.String()+" is not created", f.Fix)
		}
	}
	g.locks(ctx)
	g.managed(ctx)
	ours := 0
	for _, r := range have.State {
		if r.Guest != nil {
			ours++
		}
	}
	if len(g.checks) == before {
		g.ok("guests", "%d managed, %d unmanaged", ours, len(have.Unmanaged))
	}
	g.logins()
	g.ranges()
}

// sees reports whether the token may see any guest at all, as far as was asked.
func (g *guests) sees() bool {
	return g.token.has(kind.Grant{Path: "/vms", Priv: "VM.Audit"}) || g.host.Pool != "" && g.token.has(kind.Grant{Path: "/pool/" + g.host.Pool, Priv: "VM.Audit"})
}

// locks finds managed guests that a task left locked: with a lock PVE refuses
// nearly everything.
func (g *guests) locks(ctx context.Context) {
	for _, addr := range g.have.State.Addresses() {
		guest := g.have.State[addr].Guest
		if guest == nil || guest.Lock == "" {
			continue
		}
		active, err := g.client().Tasks.Active(ctx, guest.Node)
		busy := slices.ContainsFunc(slices.Collect(maps.Keys(active)), func(upid string) bool {
			return api.ParseUPID(upid).Object == fmt.Sprint(guest.VMID)
		})
		if err != nil || busy {
			continue
		}
		g.warn("guests", fmt.Sprintf("%s (%d) is locked (%s), and no visible task works on it", addr, guest.VMID, guest.Lock),
			"PVE refuses to change a locked guest", fmt.Sprintf("on node %s, when nothing works on it: %s unlock %d", guest.Node, api.GuestRef{LXC: addr.Kind == "ct"}.Tool(), guest.VMID))
	}
}

// managed warns of managed guests that the HA manager has, if the token could not take
// one out of a manager which fails to stop it.
func (g *guests) managed(ctx context.Context) {
	var guests []string
	for _, addr := range g.have.State.Addresses() {
		if guest := g.have.State[addr].Guest; guest != nil && guest.HA != "" {
			guests = append(guests, fmt.Sprintf("%s (%d)", addr, guest.VMID))
		}
	}
	if len(guests) == 0 {
		return
	}
	need := kind.Need{Grant: kind.Grant{Path: "/", Priv: "Sys.Console"}, Role: kind.RoleHA}
	if may, err := g.token.may(ctx, need.Grant); err != nil || may {
		return
	}
	g.warn("guests", "the HA manager has "+strings.Join(guests, ", ")+", and the token lacks "+need.String(),
		"only to remove one that the manager cannot stop", g.token.grantCommands([]kind.Need{need}, g.token.roles(ctx))...)
}

// ranges reports which VMIDs of the site's ranges unmanaged guests use.
func (g *guests) ranges() {
	for _, r := range g.site.VMIDRanges {
		var taken []string
		for _, f := range g.have.Unmanaged {
			if f.VMID >= r.From && f.VMID <= r.To {
				taken = append(taken, fmt.Sprintf("%d (%s)", f.VMID, cmp.Or(f.Name, f.Kind)))
			}
		}
		if len(taken) > 0 {
			g.ok("vmids", "range %s: %s unmanaged; they are ignored and their VMIDs are not used", r.Name, strings.Join(taken, ", "))
		}
	}
}
