package plan

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// changes lists what must change of an existing resource, in the order of the
// kind's struct: blocks and map entries are paired by their keys, and what only
// one side has is nil on the other. attrs are those of want.
func (p *proposal) changes(want, have *model.Resource, attrs []model.Attr) []Change {
	kind := p.kind(want)
	seen := have.Spec
	if kind.Align != nil {
		aligned := *have
		aligned.Spec = model.Clone(seen)
		kind.Align(want, &aligned)
		seen = aligned.Spec
	}
	var out []Change
	add := func(path string, before, after any, cost model.Class, secret bool) {
		if have.IsUnread(path) || p.isPending(want.Addr, path, after) {
			return
		}
		if kind.Class != nil {
			cost = kind.Class(want, have, path, cost)
		}
		out = append(out, Change{path, before, after, secret || sensitive(want, path), cost})
	}
	if want.Guest != nil && have.Guest != nil && want.Guest.VMID != have.Guest.VMID {
		// PVE cannot renumber a guest, and the disks go with the old number.
		out = append(out, Change{"vmid", int64(have.Guest.VMID), int64(want.Guest.VMID), false, model.ClassDataLoss})
	}
	if !model.Same(want.Spec, seen) { // nearly always they are, and it is cheaper to see than to list
		pair(attrs, model.Attrs(seen), add)
	}
	if kind.Reverts != nil {
		for _, r := range kind.Reverts(want, have) {
			if !slices.ContainsFunc(out, func(c Change) bool { return isWithin(c.Path, r.Path) }) {
				out = append(out, Change{r.Path, r.After, r.Before, sensitive(want, r.Path), model.ClassNone})
			}
		}
	}
	return out
}

// isWithin reports whether a path is another one, or a part of it.
func isWithin(path, other string) bool { return path == other || strings.HasPrefix(path, other+".") }

// pair calls add for every path whose value differs. Nearly always both sides have
// the same paths in the same order; only from the first mismatch on it looks them up.
func pair(want, have []model.Attr, add func(path string, before, after any, cost model.Class, secret bool)) {
	i := 0
	for ; i < len(want) && i < len(have) && want[i].Path == have[i].Path; i++ {
		if !equal(want[i].Value, have[i].Value) {
			add(want[i].Path, have[i].Value, want[i].Value, want[i].Cost, want[i].Secret)
		}
	}
	want, have = want[i:], have[i:]
	if len(want) == 0 && len(have) == 0 {
		return
	}
	there := make(map[string]int, len(have))
	for i, a := range have {
		there[a.Path] = i
	}
	for _, a := range want {
		var before any
		if i, ok := there[a.Path]; ok {
			before = have[i].Value
			delete(there, a.Path)
		}
		if !equal(a.Value, before) {
			add(a.Path, before, a.Value, a.Cost, a.Secret)
		}
	}
	for _, a := range have {
		if _, left := there[a.Path]; left && a.Value != nil {
			add(a.Path, a.Value, nil, a.Cost, a.Secret)
		}
	}
}

// Differences lists how a spec differs from another of its type, by the tags of their
// fields alone: what Make finds, without what a kind knows of costs.
func Differences(want, have any) []Change {
	out := []Change{}
	pair(model.Attrs(want), model.Attrs(have), func(path string, before, after any, cost model.Class, secret bool) {
		out = append(out, Change{path, before, after, secret, cost})
	})
	return out
}

// equal compares plain values; a list is the only one that == does not take.
func equal(a, b any) bool {
	la, isA := a.([]string)
	lb, isB := b.([]string)
	if isA || isB {
		return isA && isB && slices.Equal(la, lb)
	}
	return a == b
}

// isPending reports whether PVE holds this very change already and waits for a
// restart with it: it is in Pending then, and ordering it again does nothing.
func (p *proposal) isPending(addr model.Address, path string, after any) bool {
	return slices.ContainsFunc(p.pending[addr], func(d model.Pending) bool {
		return d.Path == path && same(d.After, after)
	})
}

// same compares values by what they are in the document, where 4 and 4.0 and any
// sort of integer are one.
func same(a, b any) bool {
	ja, errA := json.Marshal(a)
	jb, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(ja, jb)
}

// sensitive reports whether any part of an attribute was made from a secret: the
// attribute, the block or map around it, or an element within.
func sensitive(r *model.Resource, path string) bool {
	for _, s := range r.Sensitive {
		if s == path || strings.HasPrefix(path, s+".") || strings.HasPrefix(s, path+".") {
			return true
		}
	}
	return false
}

// hide takes the values out of a pending change that is made from a secret.
func (d *draft) hide(p *model.Pending) {
	secret := false
	for _, r := range []*model.Resource{d.want[p.Address], d.have[p.Address]} {
		if r == nil || secret {
			continue
		}
		secret = sensitive(r, p.Path) || slices.ContainsFunc(model.Attrs(r.Spec), func(a model.Attr) bool {
			return a.Secret && a.Path == p.Path
		})
	}
	if secret {
		p.Before, p.After = masked(p.Before), masked(p.After)
	}
}

// masked hides a value, but not that there is none.
func masked(v any) any {
	if v == nil {
		return nil
	}
	return model.Sensitive
}
