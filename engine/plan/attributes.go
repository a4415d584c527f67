package plan

import (
	"cmp"
	"slices"

	"github.com/homestak/homestak-gitops/engine/model"
)

// Attribute is one attribute of a resource as the site declares it and as the host has it. The values are plain
// ones as in model.Attr: nil if it is not declared, or not there or not read. Secret values are masked.
type Attribute struct {
	Address   model.Address `json:"address"`
	Path      string        `json:"path"`
	Declared  any           `json:"declared"`
	Observed  any           `json:"observed"`
	Sensitive bool          `json:"sensitive"`
}

// Values gives both values for a line of their own.
func (a Attribute) Values() (declared, observed string) {
	return valued(a.Declared, maxWide), valued(a.Observed, maxWide)
}

// Attributes lists the attributes of a resource that are declared or observed, in the order of its kind's struct.
// One of want and have may be nil.
func Attributes(kind *model.Kind, want, have *model.Resource) []Attribute {
	out, at := []Attribute{}, map[string]int{}
	of := cmp.Or(want, have)
	add := func(a model.Attr, set func(*Attribute, any)) {
		i, known := at[a.Path]
		if !known {
			i = len(out)
			at[a.Path] = i
			out = append(out, Attribute{Address: of.Addr, Path: a.Path})
		}
		row := &out[i]
		row.Sensitive = row.Sensitive || a.Secret || sensitive(of, a.Path)
		set(row, a.Value)
	}
	if want != nil {
		for _, a := range model.Attrs(want.Spec) {
			add(a, func(row *Attribute, value any) { row.Declared = value })
		}
	}
	if have != nil {
		seen := have
		if want != nil && kind != nil && kind.Align != nil {
			aligned := *have
			aligned.Spec = model.Clone(have.Spec)
			kind.Align(want, &aligned)
			seen = &aligned
		}
		for _, a := range model.Attrs(seen.Spec) {
			if !have.IsUnread(a.Path) {
				add(a, func(row *Attribute, value any) { row.Observed = value })
			}
		}
	}
	out = slices.DeleteFunc(out, func(a Attribute) bool { return a.Declared == nil && a.Observed == nil })
	for i := range out {
		if a := &out[i]; a.Sensitive {
			a.Declared, a.Observed = masked(a.Declared), masked(a.Observed)
		}
	}
	return out
}
