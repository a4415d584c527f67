// Package model has the shared nouns: addresses, resources, states, kinds, and the site that declares them. It
// knows no file format, no host and no plan.
//
// Read in this order: Address and Resource (one thing), State (many things), Kind (a type of resource; its struct
// tags are the only schema), Site (everything declared), Observed (what a host has).
package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Address names a resource within a site and host: vm.web-1, image.debian-12.
type Address struct{ Kind, Name string }

// String gives kind.name.
func (a Address) String() string { return a.Kind + "." + a.Name }

// MarshalText writes kind.name, so that addresses can be JSON strings and keys.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads kind.name.
func (a *Address) UnmarshalText(b []byte) error {
	got, err := ParseAddress(string(b))
	if err != nil {
		return err
	}
	*a = got
	return nil
}

// ParseAddress reads kind.name; neither part may be empty.
func ParseAddress(s string) (Address, error) {
	kind, name, ok := strings.Cut(s, ".")
	if !ok || kind == "" || name == "" {
		example := "web-1"
		if !ok && s != "" {
			example = s
		}
		return Address{}, fmt.Errorf("address %q is not of the form kind.name, such as vm.%s", s, example)
	}
	return Address{Kind: kind, Name: name}, nil
}

// Means reports whether text is an address, or the name in it.
func Means(text, address string) bool {
	_, name, _ := strings.Cut(address, ".")
	return text != "" && (text == address || text == name)
}

// Compare orders addresses by kind, then by name with numbers in it counted as
// numbers, so that worker-2 comes before worker-10.
func (a Address) Compare(b Address) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), CompareNames(a.Name, b.Name))
}

// CompareNames orders names with runs of digits compared by value.
func CompareNames(a, b string) int {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da > 0 && db > 0 {
			na, nb := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
			if c := cmp.Or(cmp.Compare(len(na), len(nb)), cmp.Compare(na, nb), cmp.Compare(da, db)); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

// Resource is one thing, wanted or observed. It is a value once made: who needs
// another version makes a copy (see Clone for Spec).
type Resource struct {
	Addr     Address
	Spec     any       // pointer to the kind's struct
	Private  any       // what its driver alone knows of it beside the attributes, wanted or observed; may be nil
	Needs    []Address // must exist before this one and outlive it; an observed resource has them from its ownership tag
	Manifest string    // the deployment it belongs to; "" for what stands beside the manifests
	Node     string    // the manifest node it comes from; "" if none
	Guest    *Guest    // set for guests only
	Inside   Address   // the guest that it is inside of, which is among Needs; zero for what is on the host. Only on wanted resources
	Deferred string    // why nothing is done to what is inside of a guest, and what to do about it; only between Kind.Inside and Want
	Inborn   bool      // the creation of its guest makes it, so that a step is about a guest that is there without it; only on what is wanted inside of a guest
	Reports  bool      // the node reports to the agent of its host as soon as it is as wanted; only on wanted guests, and on what is wanted inside of them
	Report   bool      // a difference of an existing object is reported without a step; only for resources inside a guest
	Unread   []string  // paths of attributes that could not be read, so that no change follows from them; only on observed resources

	At        diag.Range  // where declared; zero if observed
	Ranges    []AttrRange // where single attributes were declared; only on wanted resources
	Sensitive []string    // paths of attributes made from secrets, sorted; only on wanted resources
	Missing   []string    // secrets it needs whose value is not known here, such as secret.ssh_keys.ops

	MissingToCreate []string // further ones that are needed only to create it
}

// Guest has what a VM or container has in addition to the attributes of its kind.
type Guest struct {
	VMID        int          // 0 in a wanted guest: to be chosen
	Choose      []VMIDRange  // where VMID may be chosen from, in order; empty: anywhere PVE allows
	Node        string       // the PVE node it lives, or shall live, on; of a wanted guest with Nodes the plan chooses it
	Nodes       []string     // the PVE nodes where it may live; wanted guests of a cluster only
	Running     bool         // observed
	Starting    bool         // observed: it runs since minutes at most, and need not answer yet
	Pulls       bool         // observed: it was created in mode pull, so its first boot leads it to its parent
	Digest      string       // observed: of the configuration that was read
	Lock        string       // observed: PVE's lock on the configuration, "" if free
	LockLeft    bool         // observed: it is locked, and no task works on it that would end that
	Locked      string       // observed: why nothing can be done to it now, and what clears that; "" if something can
	Hibernated  string       // observed: that it is hibernated, and what wakes it; nothing can be done to it but that. "" if it is not
	Unproven    Unproven     // observed: that its ownership is not proved; zero if it is
	Renumbered  Renumbered   // observed: that it did not get its VMID from us; zero if it did
	Adoptable   bool         // observed: it has no owner, and is the one that adopt of its node names: it may be adopted, and nothing else
	Adopted     bool         // observed: it was made elsewhere and adopted; it goes only if the site orders that
	NoOrigin    bool         // wanted: it was made elsewhere, and the files do not say what to create it from
	HA          string       // observed: what the HA manager makes of it (started, error, …), "" if it does not manage it
	Orphan      Orphan       // observed: what happens to nodes of the site that live on it when it goes; "" for a guest that holds none
	Backup      *BackupState // observed: of its backups; nil if no one asks how old they are
	Services    []string     // observed: that have to be on another ready node before it goes
	SlowRemoval bool         // observed: its final backup is restored before it goes, which takes as long as a restore
	RemovalNote string       // observed: what else goes with it or comes before, for the reason of a removal: "after a final backup to local"
}

// MayDraw reports whether a VMID may be chosen for the guest.
func (g *Guest) MayDraw(vmid int) bool {
	return len(g.Choose) == 0 || slices.ContainsFunc(g.Choose, func(r VMIDRange) bool { return vmid >= r.From && vmid <= r.To })
}

// Unproven says of a guest that nothing proves that it is ours, and what to do about it. Such a guest is never removed
// or recreated. Unless MayChange, it only gets its proof, and only if it is as the files say.
type Unproven struct {
	Why, Fix  string
	MayChange bool
}

// Renumbered says that a guest was not created under its current VMID, and what to do about it: its VMID differs
// because the guest was changed, not the files.
type Renumbered struct{ Why, Fix string }

// AttrRange is the position of an attribute's declaration.
type AttrRange struct {
	Path string
	At   diag.Range
}

// RangeOf finds where an attribute was declared: the attribute itself, else the
// nearest block around it, else the resource.
func (r *Resource) RangeOf(path string) diag.Range {
	for {
		for _, p := range r.Ranges {
			if p.Path == path {
				return p.At
			}
		}
		cut := strings.LastIndexByte(path, '.')
		if cut < 0 {
			return r.At
		}
		path = path[:cut]
	}
}

// Declares reports whether the files have an attribute or block at a path.
func (r *Resource) Declares(path string) bool {
	return slices.ContainsFunc(r.Ranges, func(p AttrRange) bool { return p.Path == path })
}

// IsUnread reports whether an attribute could not be read.
func (r *Resource) IsUnread(path string) bool { return slices.Contains(r.Unread, path) }

// IsSensitive reports whether an attribute was made from a secret.
func (r *Resource) IsSensitive(path string) bool {
	_, found := slices.BinarySearch(r.Sensitive, path)
	return found
}

// State is a set of resources by address.
type State map[Address]*Resource

// Addresses returns the keys in order.
func (s State) Addresses() []Address {
	return slices.SortedFunc(maps.Keys(s), Address.Compare)
}

// Find returns the addresses of the matching resources, sorted. With few matches, it is much faster than Addresses.
func (s State) Find(match func(*Resource) bool) []Address {
	var out []Address
	for addr, r := range s {
		if match(r) {
			out = append(out, addr)
		}
	}
	slices.SortFunc(out, Address.Compare)
	return out
}

// GuestTag is the tag of Proxmox VE that every managed guest has.
const GuestTag = "homestak"

// Class says what a change costs the running service, from nothing to data.
type Class string

// The disruption classes, least first; docs/changes.md has them for users.
const (
	ClassNone     Class = "none"      // takes effect at once, without interruption
	ClassHot      Class = "hot"       // the running guest sees a device or limit change, without interruption
	ClassPending  Class = "pending"   // written now, takes effect at the next full restart
	ClassRestart  Class = "restart"   // the guest is shut down and started
	ClassMigrate  Class = "migrate"   // disks or the guest itself are moved
	ClassReplace  Class = "replace"   // the thing is destroyed and recreated; nothing of value is lost
	ClassDataLoss Class = "data-loss" // data are destroyed
)

// Worse reports whether c disrupts more than d.
func (c Class) Worse(d Class) bool { return c.rank() > d.rank() }

func (c Class) rank() int {
	return slices.Index([]Class{"", ClassNone, ClassHot, ClassPending, ClassRestart, ClassMigrate, ClassReplace, ClassDataLoss}, c)
}
