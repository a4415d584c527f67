package proxmox

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/attribute"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/removal"
	"github.com/homestak/homestak-gitops/drivers/proxmox/rights"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// VMs and containers share one implementation, in the files guest_*.go. It deals with a
// guest, which is a *VM or a *CT: what differs between the two are the methods of that
// interface, in vm_*.go and ct_*.go.

// spec is what is compared of a guest: a *VM or a *CT.
type spec interface {
	wanted(*resolution) target
	observed(*observation) state
	ports() []port
}

// guest is a VM or a container, as it is wanted or as it was observed.
type guest interface {
	spec() any
	guestName() string // as PVE shows it
	common() guestCommon
	devices() []device // what has a slot
	volumes() *volumes
	ports() []port
	declared() map[string]string // all that the ownership tag lists as options

	// sameValue compares what would be written with what is in force.
	sameValue(key, want, have string) bool
	// isOption reports whether a key with this value is said by an option.
	isOption(key, val string) bool
}

// target is a guest as it is wanted, resolved: a vmTarget or a ctTarget.
type target interface {
	guest
	// resolve completes what the files declare, and checks it.
	resolve(r *guestResolver)
	// brief says in a few words what it is made of.
	brief() string

	// slots assigns slots to all devices: those that have one by old keep it. cfg is the guest
	// that they are for, if there is one already.
	slots(cfg view.Config, old map[string]string) map[string]string
	// create makes a guest at a place that is free, or goes on with it where an earlier attempt
	// got only so far.
	create(ctx context.Context, d worker, s plan.Step, at view.GuestRef, m owner.Tag) error
	// finish makes a copy of a template what the files say.
	finish(ctx context.Context, d worker, s plan.Step, at view.GuestRef, m owner.Tag, have state) error
	// completed is called when a new guest is what is wanted.
	completed(ctx context.Context, d worker, at view.GuestRef, m owner.Tag)
	// change turns the changes of a step into keys of PVE.
	change(c *change, s plan.Step, have state) changer

	// alignDevices writes into what was observed of disks, network cards and of what only this
	// kind has what the files have no opinion about.
	alignDevices(have state)
	// awaitsRestart reports whether a restart would bring have nearer to it.
	awaitsRestart(have state) bool
	// class is what a change costs, see model.Kind.
	class(have *model.Resource, path string, cost model.Class) model.Class
	// stale says what of the files cannot reach a guest that exists.
	stale(want *model.Resource, have state) diag.List

	// asksHost reports whether it asks the host for something that have has not got.
	asksHost(have state) bool
	// basicNeeds and optionNeeds ask for the privileges that only this kind needs: those of
	// every guest, and those of what this one declares.
	basicNeeds(n *rights.Needs)
	optionNeeds(n *rights.Needs)
}

// state is a guest as it was observed: a vmState or a ctState.
type state interface {
	guest
	// as is what would be observed of another configuration.
	as(cfg view.Config) state
	// pending lists what PVE holds back until the next full restart.
	pending(addr model.Address) []model.Pending
	// sameOption tells of values of an option that mean the same on this guest; see options.Keys.Align.
	sameOption(key, want, have string) bool
	// settable reports whether PVE lets an API token revert a key.
	settable(key string) bool

	// recreates reports whether the guest would be made again to be what is wanted.
	recreates(want target) bool
	// refuse says what cannot be done to a guest that stays, but to its volumes.
	refuse(want target, have *model.Resource) []model.Problem
	// note says what changes mean for the guest beyond their class.
	note(want target, have *model.Resource, paths []string) []string
}

// targetOf gives a wanted guest; nil for what is none.
func targetOf(want *model.Resource) target {
	if s, ok := want.Spec.(spec); ok {
		r, _ := want.Private.(*resolution)
		return s.wanted(r)
	}
	return nil
}

// stateOf gives an observed guest; nil for what is none.
func stateOf(have *model.Resource) state {
	if s, ok := have.Spec.(spec); ok {
		o, _ := have.Private.(*observation)
		return s.observed(o)
	}
	return nil
}

// resolution is what stands around a wanted guest in the site decides of it, beside its
// attributes.
type resolution struct {
	ownerTag     owner.Tag // the ownership tag, without owner.Identity and slots
	templateVMID int       // the template to clone
	templateOurs bool      // which is made here, from an image
	source       string    // the volume that a root disk is imported from, or a container is unpacked from
	driveStorage string    // where the cloud-init drive goes
	seedStorage  string    // where a seed image goes
	seedVolume   string    // while the guest is made: its seed image
	rootKeys     []string  // of root in a container, set when it is made
}

// observation is what was read of a guest, beside its attributes.
type observation struct {
	tag     owner.Tag   // the ownership tag as found
	observe view.Config // the configuration
	uptime  int         // seconds since PVE started it
	// Where a volume is to leave its place: volumes that snapshots hold, with the name of
	// one of them.
	snapshots map[string]string
}

// guestCommon is what the shared implementation reads and writes of a guest.
type guestCommon struct {
	*resolution
	*observation
	lxc             bool
	power, restart  string
	notes, template string
	tags            []string
	options         map[string]string
	attributes      attribute.Table
	keys            *options.Keys
	startup         **Startup
	waits           *bool
	powered         *string // power, to be written
}

// guestKindOf makes a kind of guests of the struct of its attributes.
func guestKindOf[S any](name, doc string, absent map[string]string) kind.Of[S] {
	return kind.Of[S]{
		Model: model.Kind{
			Name: name, Block: "node", Doc: doc, Guest: true, Absent: absent,
			New: func() any { return attribute.Default(new(S)) },
			Resolve: func(r *model.Resource, in model.Scope) []model.Problem {
				g := &guestResolver{in: in, kind: name}
				r.Private = &resolution{}
				targetOf(r).resolve(g)
				return g.problems
			},
			Claims:  func(s any) []model.Claim { return claims(s.(spec).ports()) },
			Align:   func(want, have *model.Resource) { align(targetOf(want), stateOf(have)) },
			Reverts: func(want, have *model.Resource) []model.Pending { return reverts(targetOf(want), stateOf(have)) },
			Class: func(want, have *model.Resource, path string, cost model.Class) model.Class {
				return targetOf(want).class(have, path, cost)
			},
			Refuse: refuseGuest,
			Note:   noteGuest,
			Brief:  func(want *model.Resource) string { return targetOf(want).brief() },
		},
		Create: func(ctx context.Context, h *kind.Host, s plan.Step, _ *S) error {
			return createGuest(ctx, worker{h}, s, targetOf(s.Want))
		},
		Update: func(ctx context.Context, h *kind.Host, s plan.Step, _, _ *S) error {
			return updateGuest(ctx, worker{h}, s, targetOf(s.Want), stateOf(s.Have))
		},
		Before: func(ctx context.Context, h *kind.Host, s plan.Step) (plan.Step, error) {
			return worker{h}.undisturbed(ctx, s)
		},
		Remove:     removal.Guest,
		Privileges: func(_ *S, n *rights.Needs) { guestNeeds(targetOf(n.From), n) },
		Requests:   func(want, have *model.Resource) bool { return targetOf(want).asksHost(stateOf(have)) },
	}
}

// align takes out of what was observed all that the files have no opinion about.
func align(want target, have state) {
	waits := restarts(want, have)
	alignValues(want, have)
	*have.common().waits = waits
}

// alignValues is align without what waits for a restart.
func alignValues(want target, have state) {
	w, h := want.common(), have.common()
	*h.waits = false
	want.alignDevices(have)
	w.keys.Align(w.options, h.options, h.tag.Options, have.sameOption)
	*h.startup = (*w.startup).sameAs(*h.startup)
}

// restarts reports whether changes wait for a restart that the files allow.
func restarts(want target, have state) bool {
	w := want.common()
	return *have.common().waits && w.restart == "allowed" && w.power == "running" && want.awaitsRestart(have)
}

// attributePath translates a PVE key into the name that it has in the files.
func attributePath(g state, key string) string {
	c := g.common()
	if name := c.device(key); name != "" {
		return name
	}
	if property.IsNet(key) {
		return "nic." + key
	}
	if a := c.attributes.ByKey(key); a != nil {
		return a.Name
	}
	if !g.isOption(key, cmp.Or(c.observe.Next[key], c.observe.Now[key])) {
		return key
	}
	return "options." + key
}

// refuseGuest says what must not be done to a guest even if the files ask for it.
func refuseGuest(want, have *model.Resource) []model.Problem {
	h := stateOf(have)
	if want == nil {
		return h.volumes().refuseEnd(have.Guest)
	}
	w := targetOf(want)
	if h.recreates(w) || want.Guest.VMID != have.Guest.VMID {
		return h.volumes().refuseEnd(have.Guest)
	}
	return slices.Concat(h.volumes().refuse(w.volumes(), refOf(have)), h.refuse(w, have))
}

// noteGuest says what changes mean for the guest beyond their class.
func noteGuest(want, have *model.Resource, paths []string) string {
	w, h := targetOf(want), stateOf(have)
	notes := append(h.note(w, have, paths), noteReverts(w, h, paths))
	return strings.Join(slices.DeleteFunc(notes, func(s string) bool { return s == "" }), "; ")
}
