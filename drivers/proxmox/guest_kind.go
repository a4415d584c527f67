package proxmox

import (
	"cmp"
	"context"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
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

// guest is a VM or a container, as it is wanted or as it was observed.
type guest interface {
	guestSpec
	common() guestCommon
	devices() []device // what has a slot
	volumes() *volumes
	ports() []port
	declared() map[string]string // all that the ownership tag lists as options

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
	finish(ctx context.Context, d worker, s plan.Step, at view.GuestRef, m owner.Tag, have guest) error
	// completed is called when a new guest is what is wanted.
	completed(ctx context.Context, d worker, at view.GuestRef, m owner.Tag)
	// change turns the changes of a step into keys of PVE.
	change(c *change, s plan.Step, have guest) changer

	// as is what would be observed of another configuration.
	as(cfg view.Config) guest
	// alignDevices writes into what was observed of disks, network cards and of what only this
	// kind has what the files have no opinion about.
	alignDevices(have guest)
	// sameOption tells of values of an option that mean the same on this guest; see keys.align.
	sameOption(key, want, have string) bool
	// sameValue compares what would be written with what is in force.
	sameValue(key, want, have string) bool
	// awaitsRestart reports whether a restart would bring have nearer to it.
	awaitsRestart(have guest) bool
	// settable reports whether PVE lets an API token revert a key.
	settable(key string) bool
	// isOption reports whether a key with this value is said by an option.
	isOption(key, val string) bool

	// class is what a change costs, see model.Kind.
	class(want, have *model.Resource, path string, cost model.Class) model.Class
	// recreates reports whether the guest would be made again to be what is wanted.
	recreates(want guest) bool
	// refuse says what cannot be done to a guest that stays, but to its volumes.
	refuse(want guest, have *model.Resource) []model.Problem
	// note says what changes mean for the guest beyond their class.
	note(want, have *model.Resource, paths []string) []string
	// stale says what of the files cannot reach a guest that exists.
	stale(want *model.Resource, have guest) diag.List

	// asksHost reports whether it asks the host for something that have has not got.
	asksHost(have guest) bool
	// basicNeeds and optionNeeds ask for the privileges that only this kind needs: those of
	// every guest, and those of what this one declares.
	basicNeeds(n *rights.Needs)
	optionNeeds(n *rights.Needs)
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
	mark    owner.Tag   // the ownership tag as found
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
	attributes      attributeTable
	keys            *keys
	startup         **Startup
	waits           *bool
	powered         *string // power, to be written
}

// guestKindOf makes a kind of guests of the struct of its attributes.
func guestKindOf[S any, G interface {
	*S
	guest
}](name, doc string, absent map[string]string,
) kind.Of[S] {
	return kind.Of[S]{
		Model: model.Kind{
			Name: name, Block: "node", Doc: doc, Guest: true, Absent: absent,
			New: func() any { return withDefaults(new(S)) },
			Resolve: func(r *model.Resource, in model.Scope) []model.Problem {
				g := &guestResolver{in: in, kind: name}
				r.Spec.(guest).resolve(g)
				return g.problems
			},
			Claims:  func(spec any) []model.Claim { return claims(spec.(guest)) },
			Align:   func(want, have *model.Resource) { align(want.Spec.(guest), have.Spec.(guest)) },
			Reverts: func(want, have *model.Resource) []model.Pending { return reverts(want.Spec.(guest), have.Spec.(guest)) },
			Class: func(want, have *model.Resource, path string, cost model.Class) model.Class {
				return want.Spec.(guest).class(want, have, path, cost)
			},
			Refuse: refuseGuest,
			Note:   noteGuest,
			Brief:  func(want *model.Resource) string { return want.Spec.(guest).brief() },
		},
		Create: func(ctx context.Context, h *kind.Host, s plan.Step, want *S) error {
			return createGuest(ctx, worker{h}, s, G(want))
		},
		Update: func(ctx context.Context, h *kind.Host, s plan.Step, want, have *S) error {
			return updateGuest(ctx, worker{h}, s, G(want), G(have))
		},
		Before: func(ctx context.Context, h *kind.Host, s plan.Step) (plan.Step, error) {
			return worker{h}.undisturbed(ctx, s)
		},
		Remove:     removal.Guest,
		Privileges: func(want *S, n *rights.Needs) { guestNeeds(G(want), n) },
		Requests:   func(want, have *S) bool { return G(want).asksHost(G(have)) },
	}
}

// align takes out of what was observed all that the files have no opinion about.
func align(want, have guest) {
	waits := restarts(want, have)
	alignValues(want, have)
	*have.common().waits = waits
}

// alignValues is align without what waits for a restart.
func alignValues(want, have guest) {
	w, h := want.common(), have.common()
	*h.waits = false
	want.alignDevices(have)
	w.keys.align(w.options, h.options, h.mark.Options, have.sameOption)
	*h.startup = (*w.startup).sameAs(*h.startup)
}

// restarts reports whether changes wait for a restart that the files allow.
func restarts(want, have guest) bool {
	w := want.common()
	return *have.common().waits && w.restart == "allowed" && w.power == "running" && want.awaitsRestart(have)
}

// attributePath translates a PVE key into the name that it has in the files.
func attributePath(g guest, key string) string {
	c := g.common()
	if name := c.device(key); name != "" {
		return name
	}
	if property.IsNet(key) {
		return "nic." + key
	}
	if name := c.attributes.nameOf(key); name != "" {
		return name
	}
	if !g.isOption(key, cmp.Or(c.observe.Next[key], c.observe.Now[key])) {
		return key
	}
	return "options." + key
}

// refuseGuest says what must not be done to a guest even if the files ask for it.
func refuseGuest(want, have *model.Resource) []model.Problem {
	h := have.Spec.(guest)
	if want == nil {
		return h.volumes().refuseEnd(have.Guest)
	}
	w := want.Spec.(guest)
	if h.recreates(w) || want.Guest.VMID != have.Guest.VMID {
		return h.volumes().refuseEnd(have.Guest)
	}
	return slices.Concat(h.volumes().refuse(w.volumes(), placeOf(have)), h.refuse(w, have))
}

// noteGuest says what changes mean for the guest beyond their class.
func noteGuest(want, have *model.Resource, paths []string) string {
	w, h := want.Spec.(guest), have.Spec.(guest)
	return joinNotes(append(h.note(want, have, paths), noteReverts(w, h, paths))...)
}
