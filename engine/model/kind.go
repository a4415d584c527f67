package model

import (
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Kind is a type of resource. Everything except the requests to the host follows from it: decoding, diff, plan
// text, policy input, reference page.
//
// Tags of the struct that New returns, field by field:
//
//	hcl:"name"           a required attribute; hcl:"name,optional" an optional one
//	hcl:"disk,block"     an inner block: a pointer to a struct (at most one), or a slice of structs (any number)
//	hcl:"name,label"     in such a struct: the label of the block, the key of its list
//	plan:"name"          compared under this name, without an attribute in the language (no hcl tag)
//	plan:"-"             decoded, but never compared
//	cost:"restart"       the Class of a change; without the tag it is none
//	ref:"image"          the text names a block of this type; the loader checks it and adds it to Needs when that type is a kind
//	secret:"true"        never shown, whatever it was made from
//	doc:"…"              one sentence for the reference page
//
// Field types: string, bool, int, float64, time.Duration, []string, map[string]string, pointers to the scalars
// among them (nil: not declared), and the block forms. New returns the defaults, which the files override.
type Kind struct {
	Name  string // the first half of its addresses: vm, image, pool
	Block string // the block type that declares it: "node" for what a manifest's node may be, else its own
	Doc   string // one sentence for the reference page
	Guest bool   // it is a guest of PVE: has a VMID, a node, power
	// Everywhere: it has no host attribute; it is wanted on each host where something needs it, and kept
	// there as long as the site declares it.
	Everywhere bool
	// Inside derives what is wanted inside a node of a host: Spec, Private, Needs beside the guest, At, Ranges, Sensitive, Missing,
	// Report and Reports of a resource, and what is wrong with it; nil for nothing. Of is the guest that the node becomes, complete. No block declares
	// such a kind, and it goes with its guest, without a step of its own. Nil for all other kinds.
	Inside func(of *Resource, in Scope) (*Resource, diag.List)
	// Unspecified: the contents do not follow from the spec of the node. If nothing is done, the reason is a line
	// of its own.
	Unspecified bool

	// Absent says of attributes that other kinds of this block have why this one has not, and what to do; one of an
	// inner block goes by both names, such as nic.queues. May be nil.
	Absent map[string]string

	New func() any // pointer to a spec with the defaults in it

	// VMID is that of the guest which a resource beside the manifests becomes; 0 if it becomes none. It is asked
	// about a spec as declared. May be nil.
	VMID func(spec any) int

	// Size is what a guest takes of its PVE node, wanted or observed. Nil: nothing is known, and it counts as nothing.
	Size func(r *Resource) Size

	// Resolve completes a decoded spec by what stands around it (sizes, networks, keys): afterwards it says all
	// that is wanted, in Spec and in Private. It is pure, is called once per host on a copy of its own, and returns
	// what is wrong. In.Host is nil for a recipe. May be nil.
	Resolve func(r *Resource, in Scope) []Problem

	// Claims are what only one resource may have: an address, a MAC. May be nil.
	Claims func(spec any) []Claim

	// Align makes two complete specs comparable before the diff: it writes into the spec of have (a copy) what wants
	// no opinion about, such as an invented MAC. Only called with both set. May be nil.
	Align func(want, have *Resource)

	// Reverts lists what the host holds back for the next restart although nothing in want asks for it: the step
	// reverts it. Before is what is in force and stays, After the pending value. Only called with both set. May be nil.
	Reverts func(want, have *Resource) []Pending

	// Class refines the cost tag of one change by what is known of the guest (running, hotplug). May be nil.
	Class func(want, have *Resource, path string, cost Class) Class

	// Refuse says why the step from have to want (nil: to nothing) must not be taken although it could be
	// described, such as a smaller disk. The plan then holds the finding and no step. May be nil.
	Refuse func(want, have *Resource) []Problem

	// Note says in a sentence what changes at these paths mean beyond their classes, such as data that go; "" for
	// nothing. It becomes part of the step's reason. May be nil.
	Note func(want, have *Resource, paths []string) string

	// Remarks says what is to be reported of a resource that is there, whether a step follows or not: want is nil for one
	// that is not wanted. Host is the declared one, nil if there is none. May be nil.
	Remarks func(host *Host, want, have *Resource) Remarks

	// Brief names a wanted resource in a few words for the line of its creation, such as "vm-small, debian-12".
	Brief func(want *Resource) string
}

// Remarks are a plan's findings about a resource in addition to its steps.
type Remarks struct {
	Pending    []Pending // what the host holds already and applies later
	Undeclared []Setting // settings that no file has ever named: they are not drift, and stay
	Findings   diag.List
}

// Problem is something wrong with a spec, at the path of one of its attributes
// ("" for the whole); the caller knows the place in the files.
type Problem struct {
	Path     string
	Severity diag.Severity // empty means an error
	Summary  string
	Detail   string
	Site     bool   // it is of the whole site, and no line of this resource is to blame: reported once; with Path, at the site's block
	Not      string // of Refuse: what the resource is not, such as "not usable"; that its step is not done unless set
}

// Claim is a thing that may be had once, such as {"MAC address", "BC:24:11:00:00:01"}.
type Claim struct {
	What, Value, Path string
	On                string // the network on which two of it disturb each other, such as "vmbr0"; "" if that is everywhere
}

// Scope is the context in which a spec is resolved. Host, Node and Manifest may be nil.
type Scope struct {
	Site     *Site
	Host     *Host
	Manifest *Manifest
	Node     *Node
	Name     string    // of the resource
	Needs    []Address // of the resource
	Earlier  *Earlier  // how the node was; only for Kind.Inside of one whose spec is withdrawn
}

// Earlier is a node as it was in an earlier commit of the site.
type Earlier struct {
	Site *Site
	Host *Host
	Node *Node
}

// Kinds is the table of all kinds, in the order of the reference page.
type Kinds []*Kind

// Get finds a kind by name; nil if there is none.
func (ks Kinds) Get(name string) *Kind {
	for _, k := range ks {
		if k.Name == name {
			return k
		}
	}
	return nil
}

// Block lists the kinds that a block type may declare.
func (ks Kinds) Block(name string) Kinds {
	var out Kinds
	for _, k := range ks {
		if k.Block == name {
			out = append(out, k)
		}
	}
	return out
}

// Names lists the kinds' names, sorted.
func (ks Kinds) Names() []string {
	out := make([]string, 0, len(ks))
	for _, k := range ks {
		out = append(out, k.Name)
	}
	slices.SortFunc(out, strings.Compare)
	return out
}
