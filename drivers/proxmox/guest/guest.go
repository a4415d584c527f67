// Package guest is what VMs and containers are: what the files declare of them (VM, CT), what is
// wanted of one (Target) and what was observed of one (State). It compares the two, says what a change
// costs and what cannot be changed. It sends no request: package inventory observes guests, package
// provision creates and changes them.
//
// VMs and containers share one implementation. What differs between the two is in the files
// vm_*.go and ct_*.go, as the methods of Target and State.
package guest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/attribute"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/rights"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// spec is what is compared of a guest: a *VM or a *CT.
type spec interface {
	target(*Resolution) Target
	state(*Observation) State
	Ports() []Port
}

// Guest is a VM or a container, as it is wanted or as it was observed.
type Guest interface {
	Spec() any
	GuestName() string // as PVE shows it
	Common() Common
	Devices() []Device // what has a slot
	Volumes() *Volumes
	Ports() []Port
	Declared() map[string]string // all that the ownership tag lists as options

	// SameValue compares what would be written with what is in force.
	SameValue(key, want, have string) bool
	// isOption reports whether a key with this value is said by an option.
	isOption(key, val string) bool
}

// Target is a guest as it is wanted, resolved: a VMTarget or a CTTarget.
type Target interface {
	Guest
	// brief says in a few words what it is made of.
	brief() string

	// Slots assigns slots to all devices: those that have one by old keep it. cfg is the guest
	// that they are for, if there is one already.
	Slots(cfg view.Config, old map[string]string) map[string]string
	// alignDevices writes into what was observed of disks, network cards and of what only this
	// kind has what the files have no opinion about.
	alignDevices(have State)
	// RestartHelps reports whether a restart would bring have nearer to it.
	RestartHelps(have State) bool
	// class is what a change costs, see model.Kind.
	class(have *model.Resource, path string, cost model.Class) model.Class
	// IneffectiveChanges says what of the files cannot reach a guest that exists.
	IneffectiveChanges(want *model.Resource, have State) diag.List

	// NeedsMore reports whether it asks the host for something that have has not got.
	NeedsMore(have State) bool
	// basicNeeds and optionNeeds ask for the privileges that only this kind needs: those of
	// every guest, and those of what this one declares.
	basicNeeds(n *rights.Needs)
	optionNeeds(n *rights.Needs)
}

// State is a guest as it was observed: a VMState or a CTState.
type State interface {
	Guest
	// WithConfig is what would be observed of another configuration.
	WithConfig(cfg view.Config) State
	// Pending lists what PVE holds back until the next full restart.
	Pending(addr model.Address) []model.Pending
	// sameOption tells of values of an option that mean the same on this guest; see options.Keys.Align.
	sameOption(key, want, have string) bool
	// Revertible reports whether PVE lets an API token revert a key.
	Revertible(key string) bool

	// recreates reports whether the guest would be made again to be what is wanted.
	recreates(want Target) bool
	// refuse says what cannot be done to a guest that stays, but to its volumes.
	refuse(want Target, have *model.Resource) []model.Problem
	// note says what changes mean for the guest beyond their class.
	note(want Target, have *model.Resource, paths []string) []string
}

// TargetOf gives a wanted guest; nil for what is none.
func TargetOf(want *model.Resource) Target {
	if s, ok := want.Spec.(spec); ok {
		r, _ := want.Private.(*Resolution)
		return s.target(r)
	}
	return nil
}

// StateOf gives an observed guest; nil for what is none.
func StateOf(have *model.Resource) State {
	if s, ok := have.Spec.(spec); ok {
		o, _ := have.Private.(*Observation)
		return s.state(o)
	}
	return nil
}

// Resolution is what stands around a wanted guest in the site decides of it, beside its
// attributes.
type Resolution struct {
	OwnerTag     owner.Tag // the ownership tag, without owner.Identity and slots
	TemplateVMID int       // the template to clone
	TemplateMade bool      // which is made here, from an image
	Source       string    // the volume that a root disk is imported from, or a container is unpacked from
	DriveStorage string    // where the cloud-init drive goes
	SeedStorage  string    // where a seed image goes
	SeedVolume   string    // while the guest is made: its seed image
	RootKeys     []string  // of root in a container, set when it is made
}

// Observation is what was read of a guest, beside its attributes.
type Observation struct {
	Tag    owner.Tag   // the ownership tag as found
	Config view.Config // the configuration
	uptime int         // seconds since PVE started it
	// Where a volume is to leave its place: volumes that snapshots hold, with the name of
	// one of them.
	Snapshots map[string]string
}

// Common is what the shared implementation reads and writes of a guest.
type Common struct {
	*Resolution
	*Observation
	LXC             bool
	Power, restart  string
	Notes, template string
	Tags            []string
	Options         map[string]string
	attributes      attribute.Table
	Keys            *options.Keys
	Startup         **Startup
	Waits           *bool
	Powered         *string // power, to be written
}

// schemaOf describes a kind of guests with the attributes of a struct: what it declares, and what
// the plan asks of it. absent has why an attribute of the node block is none of this kind.
func schemaOf[S any](name, doc string, absent map[string]string) model.Kind {
	return model.Kind{
		Name: name, Block: "node", Doc: doc, Guest: true, Absent: absent,
		New:     func() any { return attribute.Default(new(S)) },
		Claims:  func(s any) []model.Claim { return claims(s.(spec).Ports()) },
		Align:   func(want, have *model.Resource) { align(TargetOf(want), StateOf(have)) },
		Reverts: func(want, have *model.Resource) []model.Pending { return Reverts(TargetOf(want), StateOf(have)) },
		Class: func(want, have *model.Resource, path string, cost model.Class) model.Class {
			return TargetOf(want).class(have, path, cost)
		},
		Refuse: refuseGuest,
		Note:   noteGuest,
		Brief:  func(want *model.Resource) string { return TargetOf(want).brief() },
	}
}

// align takes out of what was observed all that the files have no opinion about.
func align(want Target, have State) {
	waits := RestartDue(want, have)
	alignValues(want, have)
	*have.Common().Waits = waits
}

// alignValues is align without what waits for a restart.
func alignValues(want Target, have State) {
	w, h := want.Common(), have.Common()
	*h.Waits = false
	want.alignDevices(have)
	w.Keys.Align(w.Options, h.Options, h.Tag.Options, have.sameOption)
	*h.Startup = (*w.Startup).sameAs(*h.Startup)
}

// RestartDue reports whether changes wait for a restart that the files allow.
func RestartDue(want Target, have State) bool {
	w := want.Common()
	return *have.Common().Waits && w.restart == "allowed" && w.Power == "running" && want.RestartHelps(have)
}

// AttributePath translates a PVE key into the name that it has in the files.
func AttributePath(g State, key string) string {
	c := g.Common()
	if name := c.deviceAt(key); name != "" {
		return name
	}
	if property.IsNet(key) {
		return "nic." + key
	}
	if a := c.attributes.ByKey(key); a != nil {
		return a.Name
	}
	if !g.isOption(key, cmp.Or(c.Config.Next[key], c.Config.Now[key])) {
		return key
	}
	return "options." + key
}

// refuseGuest says what must not be done to a guest even if the files ask for it.
func refuseGuest(want, have *model.Resource) []model.Problem {
	h := StateOf(have)
	if want == nil {
		return h.Volumes().refuseRemoval(have.Guest)
	}
	w := TargetOf(want)
	if h.recreates(w) || want.Guest.VMID != have.Guest.VMID {
		return h.Volumes().refuseRemoval(have.Guest)
	}
	return slices.Concat(h.Volumes().refuse(w.Volumes(), view.RefOf(have)), h.refuse(w, have))
}

// noteGuest says what changes mean for the guest beyond their class.
func noteGuest(want, have *model.Resource, paths []string) string {
	w, h := TargetOf(want), StateOf(have)
	notes := append(h.note(w, have, paths), noteReverts(w, h, paths))
	return strings.Join(slices.DeleteFunc(notes, func(s string) bool { return s == "" }), "; ")
}

// plural counts things in words: "1 core", "2 cores".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// pendingKeys lists what PVE holds back until the next full restart; path translates a
// key into the name it has in the files.
// stuck says why a key is not reverted although no file asks for what waits; "" for all
// others.
func pendingKeys(c view.Config, addr model.Address, path, stuck func(key string) string, secret ...string) []model.Pending {
	if !c.Waits {
		return nil
	}
	out := []model.Pending{}
	for _, k := range c.WaitingKeys() {
		p := model.Pending{Address: addr, Path: path(k), Why: model.PendingRestart, Before: plainValue(c.Now, k), After: plainValue(c.Next, k)}
		if why := stuck(k); why != "" {
			p.Why += "; " + why
		}
		if slices.Contains(secret, k) {
			p.Before, p.After = model.Sensitive, model.Sensitive
		}
		out = append(out, p)
	}
	return out
}

// ValuesByPath are those of a spec by their paths.
func ValuesByPath(spec any) map[string]any {
	out := map[string]any{}
	for _, a := range model.Attrs(spec) {
		out[a.Path] = a.Value
	}
	return out
}

// pick is one of two values.
func pick[T any](first bool, a, b T) T {
	if first {
		return a
	}
	return b
}
