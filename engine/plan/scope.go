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
func (p *planner) limit() {
	if p.in.Manifest != "" {
		of := map[model.Address]bool{}
		for _, a := range p.addrs {
			if p.manifest(a) == p.in.Manifest {
				of[a] = true
			}
		}
		if len(of) == 0 && !p.in.Destroy && !p.in.Want.Suspended[p.in.Manifest] {
			p.unknownManifest()
		}
		p.withNeeds(of)
		p.scope = of
	}
	if len(p.in.Targets) > 0 {
		of := map[model.Address]bool{}
		for _, a := range p.in.Targets {
			if p.want[a] == nil && p.have[a] == nil {
				p.unknownTarget(a)
				continue
			}
			of[a] = true
		}
		p.withNeeds(of)
		for a := range of {
			if !p.within(a) {
				delete(of, a)
			}
		}
		p.scope = of
	}
}

func (p *planner) within(a model.Address) bool { return p.scope == nil || p.scope[a] }

// manifest tells whose a resource is: the site decides, and where it is silent
// the mark.
func (p *planner) manifest(a model.Address) string {
	if r := p.want[a]; r != nil {
		return r.Manifest
	}
	return p.have[a].Manifest
}

// withNeeds adds to a set all that its members need, directly or not; for a
// destruction nothing, since what is needed does not go with who needs it.
func (p *planner) withNeeds(set map[model.Address]bool) {
	if p.in.Destroy {
		return
	}
	todo := make([]model.Address, 0, len(set))
	for a := range set {
		todo = append(todo, a)
	}
	for len(todo) > 0 {
		r := p.want[todo[len(todo)-1]]
		todo = todo[:len(todo)-1]
		if r == nil {
			continue
		}
		for _, n := range r.Needs {
			if !set[n] && p.want[n] != nil {
				set[n] = true
				todo = append(todo, n)
			}
		}
	}
}

// unknownManifest says that there is nothing to plan, lest that be read as "in
// sync". To destroy nothing is fine: it may have been done before.
func (p *planner) unknownManifest() {
	known := map[string]bool{}
	for _, a := range p.addrs {
		if m := p.manifest(a); m != "" {
			known[m] = true
		}
	}
	p.find(model.Address{}, diag.Finding{
		Severity: diag.Warning, Source: diag.FromGuard,
		Summary: fmt.Sprintf("manifest %q has nothing on host %s", p.in.Manifest, p.in.Host),
		Detail:  diag.DidYouMean(p.in.Manifest, slices.Collect(maps.Keys(known))),
	})
}

func (p *planner) unknownTarget(a model.Address) {
	known := make([]string, len(p.addrs))
	for i, k := range p.addrs {
		known[i] = k.String()
	}
	p.find(a, diag.Finding{
		Severity: diag.Error, Source: diag.FromGuard,
		Summary: fmt.Sprintf("target %s is neither declared nor on the host", a), Detail: diag.DidYouMean(a.String(), known),
	})
}
