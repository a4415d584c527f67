package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// limit works out which addresses the plan may touch: those of one manifest, or
// the targets, each with all that they need.
func (d *draft) limit() {
	if d.in.Manifest != "" {
		of := map[model.Address]bool{}
		for _, a := range d.addrs {
			if d.manifest(a) == d.in.Manifest {
				of[a] = true
			}
		}
		planned := d.in.Want.Planned.Find(func(r *model.Resource) bool { return r.Manifest == d.in.Manifest })
		if len(of)+len(planned) == 0 && !d.in.Destroy && !d.in.Want.Suspended[d.in.Manifest] {
			d.unknownManifest()
		}
		d.withNeeds(of)
		d.scope = of
	}
	if len(d.in.Targets) > 0 {
		of := map[model.Address]bool{}
		for _, a := range d.in.Targets {
			if d.want[a] != nil || d.have[a] != nil { // UnknownTarget reports the others
				of[a] = true
			}
		}
		d.withNeeds(of)
		for a := range of {
			if !d.within(a) {
				delete(of, a)
			}
		}
		d.scope = of
	}
}

func (d *draft) within(a model.Address) bool { return d.scope == nil || d.scope[a] }

// manifest says whose a resource is: the site decides, and where it is silent
// the ownership tag.
func (d *draft) manifest(a model.Address) string {
	if r := d.want[a]; r != nil {
		return r.Manifest
	}
	return d.have[a].Manifest
}

// withNeeds adds to a set all that its members need, directly or not; for a
// destruction nothing, since what is needed does not go with who needs it.
func (d *draft) withNeeds(set map[model.Address]bool) {
	if d.in.Destroy {
		return
	}
	todo := make([]model.Address, 0, len(set))
	for a := range set {
		todo = append(todo, a)
	}
	for len(todo) > 0 {
		r := d.want[todo[len(todo)-1]]
		todo = todo[:len(todo)-1]
		if r == nil {
			continue
		}
		for _, n := range r.Needs {
			if !set[n] && d.want[n] != nil {
				set[n] = true
				todo = append(todo, n)
			}
		}
	}
}

// unknownManifest says that there is nothing to plan, lest that be read as "in
// sync". To destroy nothing is fine: it may have been done before.
func (d *draft) unknownManifest() {
	known := map[string]bool{}
	for _, a := range d.addrs {
		if m := d.manifest(a); m != "" {
			known[m] = true
		}
	}
	d.find(model.Address{}, diag.Finding{
		Severity: diag.Warning, Source: diag.FromGuard,
		Summary: fmt.Sprintf("manifest %q has nothing on host %s", d.in.Manifest, d.in.Host),
		Detail:  diag.DidYouMean(d.in.Manifest, slices.Collect(maps.Keys(known))),
	})
}

// UnknownTarget is the error for the first target that is neither declared nor on the host.
func UnknownTarget(targets []model.Address, want, have model.State) error {
	for _, a := range targets {
		if want[a] != nil || have[a] != nil {
			continue
		}
		known := []string{}
		for _, k := range slices.Concat(want.Addresses(), have.Addresses()) {
			known = append(known, k.String())
		}
		slices.Sort(known)
		return fmt.Errorf("target %s is neither declared nor on the host: %s", a, diag.DidYouMean(a.String(), slices.Compact(known)))
	}
	return nil
}
