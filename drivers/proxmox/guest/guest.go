// Package guest describes VMs and containers: what the files declare (VM, CT), what is wanted
// (Target) and what was observed (State). It compares the two, and says what a change costs and
// which changes are not possible. It sends no request: package inventory observes guests, package
// provision creates and changes them.
//
// VMs and containers share one implementation. Where they differ, Target and State have methods, in
// the files vm_*.go and ct_*.go.
package guest

import (
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// spec is the type of model.Resource.Spec of a guest: a *VM or a *CT.
type spec interface {
	target(*Resolution) Target
	state(*Observation) State
	Ports() []Port
}

// guest is a VM or a container, as it is wanted (Target) or as it was observed (State).
type guest interface {
	// Spec is the *VM or *CT with the attributes that the plan compares.
	Spec() any
	// Common has the attributes that VMs and containers share.
	Common() Common
	// Volumes are the disks of a VM, or the mount points of a container.
	Volumes() *Volumes
	// Ports are the network cards.
	Ports() []Port
	// Declared are the settings that the ownership tag lists as options, by their names there.
	Declared() map[string]string

	// SameValue reports whether PVE takes two values of a key for the same.
	SameValue(key, want, have string) bool
	// isOption reports whether the files declare a key with this value as an option.
	isOption(key, val string) bool
}

// Target is a guest as it is wanted: a VMTarget or a CTTarget.
type Target interface {
	guest
	// Resolved returns what the driver found out about it when it completed it beyond its attributes.
	Resolved() *Resolution
	// brief describes it in a few words: size and origin.
	brief() string

	// Slots assigns a slot to each device. Those that have one in old keep it; the others get
	// slots that cfg, the present configuration, does not use. cfg is empty for a new guest.
	Slots(cfg api.GuestConfig, old map[string]string) map[string]string
	// align copies from the target into have what the files leave open, so that it does not
	// show as a difference.
	align(have State)
	// RestartHelps reports whether a restart would bring have closer to the target: something
	// is pending that the files ask for.
	RestartHelps(have State) bool
	// class is the cost of changing the attribute at path, see model.Kind.Class.
	class(have *model.Resource, path string, cost model.Class) model.Class
	// ineffectiveChanges warns about changes in the files that cannot reach a guest that exists.
	ineffectiveChanges(want *model.Resource, have State) diag.List

	// needsMore reports whether it needs something of the host that have does not have: room
	// on a storage, a bridge, a file, or to be started.
	needsMore(have State) bool
	// basicNeeds adds the privileges that every guest of this kind needs.
	basicNeeds(n *kind.Needs)
	// optionNeeds adds the privileges for what this one declares.
	optionNeeds(n *kind.Needs)
}

// State is a guest as it was observed: a VMState or a CTState.
type State interface {
	guest
	// Observed returns what was read of it beyond its attributes.
	Observed() *Observation
	// WithPower is the state of the same guest if it had another power.
	WithPower(power string) State
	// setRestartDue notes for the comparison whether a restart is due.
	setRestartDue(due bool)
	// WithConfig is the state of the same guest if it had another configuration.
	WithConfig(cfg api.GuestConfig) State
	// pending lists the changes that PVE applies at the next full restart of the guest, which runs or not.
	pending(addr model.Address, runs bool) []model.Pending
	// firstBootChanges lists what the guest read at its first boot and the files have changed since.
	firstBootChanges(addr model.Address, want *model.Resource) []model.Pending
	// sameOption reports whether two values of an option mean the same on this guest; see
	// OptionKeys.Align.
	sameOption(key, want, have string) bool
	// Revertible reports whether PVE lets an API token revert the pending change of a key.
	Revertible(key string) bool

	// recreates reports whether the guest must be recreated to become the target.
	recreates(want Target) bool
	// refuse lists the changes that are not possible on a guest that stays, except those of
	// its volumes.
	refuse(want Target, have *model.Resource) []model.Problem
	// note says what the changes at paths mean for the guest beyond their class.
	note(want Target, have *model.Resource, paths []string) []string
}

// TargetOf is the target of a wanted resource; nil if that is not a VM or container.
func TargetOf(want *model.Resource) Target {
	if s, ok := want.Spec.(spec); ok {
		r, _ := want.Private.(*Resolution)
		return s.target(r)
	}
	return nil
}

// StateOf is the state of an observed resource; nil if that is not a VM or container.
func StateOf(have *model.Resource) State {
	if s, ok := have.Spec.(spec); ok {
		o, _ := have.Private.(*Observation)
		return s.state(o)
	}
	return nil
}

// Resolution has what the site decides about a wanted guest beyond its attributes. `Resolve` of the
// kinds in package proxmox fills it in; it is model.Resource.Private of a wanted guest.
type Resolution struct {
	OwnerTag     owner.Tag // the ownership tag, without identity and slots
	TemplateVMID int       // the template to clone; 0 for none
	TemplateMade bool      // that template is made here, from an image
	Source       string    // the volume that a root disk is imported from, or that a container is unpacked from
	Files        []File    // the site's images and downloads that the guest is created from or has in a drive
	DriveStorage string    // the storage of the cloud-init drive
	SeedStorage  string    // the storage of the seed image
	SeedVolume   string    // the seed image; set only while the guest is created
	Pulls        string    // the spec that the guest fetches and applies itself; "" for none
	Adopted      bool      // it is, or was, a guest that existed; see model.Node.Adopt
	RootKeys     []string  // SSH keys of root in a container; PVE writes them at creation only
}

// File is an image or a download of the site.
type File struct {
	Addr  model.Address
	Image *objects.Image
}

// Resolved is the resolution itself, see Target.
func (r *Resolution) Resolved() *Resolution { return r }

// Observation has what was read of a guest beyond its attributes. It is model.Resource.Private of an
// observed guest.
type Observation struct {
	Tag    owner.Tag       // the ownership tag as found
	Config api.GuestConfig // the configuration
	runs   bool            // PVE lists it as running
	uptime int             // seconds since PVE started the guest
	Facts
}

// Observed is the observation itself, see State.
func (o *Observation) Observed() *Observation { return o }

// deviceAt is the name in the ownership tag of the device that has a slot; "" for none.
func (o *Observation) deviceAt(slot string) string {
	for name, s := range o.Tag.Slots {
		if s == slot {
			return name
		}
	}
	return ""
}

// Common has the attributes that mean the same for VMs and for containers. Options is the guest's
// own map; all else is a copy.
type Common struct {
	LXC         bool   // it is a container
	Power       string // running or stopped; of a paused VM paused
	Restart     string // never or allowed
	Recreate    string // of an observed guest: what it was created with
	Description string
	Template    string // its name in the files; "" for none
	Tags        []string
	Options     map[string]string
	Startup     *Startup
	Keys        *OptionKeys // what the keys of its configuration mean
	attributes  AttributeTable
}

// schemaOf describes a kind of guests whose attributes are the fields of S, with the functions that
// the plan calls. absent says why an attribute of the node block does not exist for this kind.
func schemaOf[S any](name, doc string, absent map[string]string) model.Kind {
	return model.Kind{
		Name: name, Block: "node", Doc: doc, Guest: true, Absent: absent,
		New:    func() any { return WithDefaults(new(S)) },
		Size:   sizeOf,
		Claims: func(s any) []model.Claim { return claims(s.(spec).Ports()) },
		Align: func(want, have *model.Resource) {
			have.Spec = stateFor(want, have).Spec()
			align(TargetOf(want), StateOf(have))
		},
		Reverts: func(want, have *model.Resource) []model.Pending { return Reverts(TargetOf(want), StateOf(have)) },
		Class: func(want, have *model.Resource, path string, cost model.Class) model.Class {
			return TargetOf(want).class(have, path, cost)
		},
		Refuse: refuseGuest,
		Note:   noteGuest, Remarks: Remarks,
		Brief: func(want *model.Resource) string { return TargetOf(want).brief() },
	}
}

// sizeOf is what a guest takes of its node, see model.Kind.Size. A root disk counts by its declared size alone: how much its
// image has is not known.
func sizeOf(r *model.Resource) model.Size {
	out := model.Size{Disks: map[string]int{}}
	switch s := r.Spec.(type) {
	case *VM:
		out.Memory, out.Cores = s.Memory, max(s.Cores, 1)*max(s.Sockets, 1)
	case *CT:
		out.Memory, out.Cores = s.Memory, s.Cores // none: all of the node, like any program on it
	}
	for _, v := range r.Spec.(spec).target(nil).Volumes().List {
		out.Disks[v.Storage] += v.Size
	}
	return out
}

// refuseGuest lists the problems that keep a guest from becoming want, or from being removed where
// want is nil, see model.Kind.Refuse.
func refuseGuest(want, have *model.Resource) []model.Problem {
	h := stateFor(want, have)
	if want == nil {
		return h.Volumes().refuseRemoval(have.Guest)
	}
	w := TargetOf(want)
	if h.recreates(w) || want.Guest.VMID != have.Guest.VMID {
		return h.Volumes().refuseRemoval(have.Guest)
	}
	return slices.Concat(h.Volumes().refuse(w.Volumes(), api.RefOf(have)), h.Volumes().refuseUnproven(w.Volumes(), have.Guest.Unproven), h.refuse(w, have))
}

// noteGuest says what the changes at paths mean for the guest beyond their class, see
// model.Kind.Note.
func noteGuest(want, have *model.Resource, paths []string) string {
	w, h := TargetOf(want), StateOf(have)
	notes := append(h.note(w, have, paths), noteReverts(w, h, paths))
	return strings.Join(slices.DeleteFunc(notes, func(s string) bool { return s == "" }), "; ")
}

// pick is a if first is true, else b.
func pick[T any](first bool, a, b T) T {
	if first {
		return a
	}
	return b
}
