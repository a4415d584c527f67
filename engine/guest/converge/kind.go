package converge

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// KindName is the first half of the address of what a spec says inside a node: guest.web-1.
const KindName = "guest"

// Kind is the kind of a spec inside a node. Its Inside is nil: a driver that applies specs from outside sets it.
func Kind() *model.Kind {
	return &model.Kind{
		Name: KindName, Doc: "What a spec says inside a node.",
		New:   func() any { return spec.Empty("") },
		Brief: func(want *model.Resource) string { return "spec " + want.Spec.(*spec.Spec).Name },
	}
}

// Address is that of what a spec says inside a node.
func Address(node string) model.Address { return model.Address{Kind: KindName, Name: node} }

// Observed is the state as the observation of a host has it.
func (s *State) Observed() model.Observed {
	addr := Address(s.Want.Node)
	r := &model.Resource{Addr: addr, Spec: s.Have, Node: s.Want.Node}
	for _, of := range []*spec.Spec{s.Want, s.Have} {
		for _, a := range model.Attrs(of) {
			if !s.reads(a.Path) && !r.IsUnread(a.Path) {
				r.Unread = append(r.Unread, a.Path)
			}
		}
	}
	out := model.Observed{State: model.State{addr: r}}
	for _, u := range s.Unknown {
		out.Unknown = append(out.Unknown, model.Unknown{Scope: u.Aspect + " of " + s.Want.Node, Why: u.Why, Kind: KindName, Only: []model.Address{addr}})
	}
	for _, u := range s.Unmanaged {
		out.Findings = append(out.Findings, diag.Finding{
			Severity: diag.Warning, Source: diag.FromHost, Address: addr.String(),
			Summary: fmt.Sprintf("%s is unmanaged", on(u, s.Want.Node)), Detail: "it is left unchanged: declare it in the spec, or remove it",
		})
	}
	return out
}

// on names a thing inside a node: "user bob on web-1".
func on(thing, node string) string {
	if node == "" {
		return thing
	}
	return thing + " on " + node
}

// reads reports whether an attribute was read.
func (s *State) reads(path string) bool {
	return slices.ContainsFunc(s.readings, func(r reading) bool { return r.Owns(path) })
}

// Unplanned finds a change of this state that a plan did not show; false if it showed all.
func (s *State) Unplanned(planned []plan.Change) (plan.Change, bool) {
	for _, c := range s.Changes() {
		if !Planned(planned, c) {
			return c, true
		}
	}
	return plan.Change{}, false
}

// Planned reports whether a change is among those of a plan.
func Planned(planned []plan.Change, c plan.Change) bool {
	return slices.ContainsFunc(planned, func(p plan.Change) bool { return p.Path == c.Path && reflect.DeepEqual(p.After, c.After) })
}
