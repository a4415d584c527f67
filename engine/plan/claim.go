package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// taking is a value that only one guest may have, such as a MAC or a static address, that a step
// gives to its resource although another one has it now.
type taking struct {
	by, from model.Address
	claim    model.Claim // as wanted
	meet     bool        // both would run with it on one network
}

// guardClaims finds the steps that take over something from another resource. If that one gives it up in this plan,
// the step waits for it; if it keeps it, the step is withheld when both would run with it on one network. The files
// of a site name each such thing once, so this concerns resources that leave the files or are left unchanged.
func (g *guard) guardClaims() {
	type thing struct{ what, value string }
	name := func(c model.Claim) thing { return thing{c.What, strings.ToLower(c.Value)} }
	wants := map[thing]taking{}
	g.each(func(s *Step) {
		if s.Want == nil {
			return
		}
		var has []model.Claim
		if s.Have != nil {
			has = g.claims(s.Have)
		}
		for _, c := range g.claims(s.Want) {
			if !slices.ContainsFunc(has, func(h model.Claim) bool { return name(h) == name(c) }) {
				wants[name(c)] = taking{by: s.Address, claim: c}
			}
		}
	})
	if len(wants) == 0 {
		return
	}
	for _, from := range g.addrs {
		have := g.have[from]
		if have == nil {
			continue
		}
		for _, h := range g.claims(have) {
			t, wanted := wants[name(h)]
			if !wanted || t.by == from {
				continue
			}
			t.from = from
			t.meet = h.On == t.claim.On && have.Guest != nil && have.Guest.Running && powered(g.want[t.by])
			if !g.givesUp(from, h) {
				g.stillHad(t)
				continue
			}
			g.gives[from] = append(g.gives[from], t)
			g.takes[t.by] = append(g.takes[t.by], t)
		}
	}
}

func (d *draft) claims(r *model.Resource) []model.Claim {
	if kind := d.kind(r); kind.Claims != nil {
		return kind.Claims(r.Spec)
	}
	return nil
}

// powered reports whether a guest should run.
func powered(r *model.Resource) bool {
	return model.TextOf(r.Spec, "power") != "stopped"
}

// givesUp reports whether a step of this plan takes from a resource what it has. One
// that is changed keeps what the files do not speak of, such as a MAC that was made up.
func (d *draft) givesUp(from model.Address, c model.Claim) bool {
	s := d.steps[from]
	switch {
	case s == nil:
		return false
	case s.Action == Update:
		return slices.ContainsFunc(s.Changes, func(d Change) bool {
			was, _ := d.Before.(string)
			was, _, _ = strings.Cut(was, "/") // an address stands there with its prefix length
			return d.Path == c.Path || strings.EqualFold(was, c.Value)
		})
	default:
		return s.Want == nil || !slices.ContainsFunc(d.claims(s.Want), func(w model.Claim) bool {
			return w.What == c.What && strings.EqualFold(w.Value, c.Value)
		})
	}
}

// stillHad deals with a step that would take what another resource keeps.
func (g *guard) stillHad(t taking) {
	s := g.steps[t.by]
	if s == nil {
		return
	}
	if g.withheld[t.from].incomplete && t.meet {
		g.withholdUnknown(s, fmt.Sprintf("%s has the %s", g.standing(t.from), t.what()), g.withheld[t.from].unknowns)
		return
	}
	if g.withheld[t.from].postponed && t.meet {
		g.postpone(s, fmt.Sprintf("%s: the %s is still that of %s", s.Action.not(), t.what(), g.standing(t.from)), g.withheld[t.from].forGood)
		return
	}
	f := diag.Finding{
		Severity: diag.Warning, Source: diag.FromGuard, At: s.Want.RangeOf(t.claim.Path),
		Summary: fmt.Sprintf("%s: the %s is that of %s as well, which stays", t.by, t.what(), g.standing(t.from)),
		Detail:  "two guests with one address on one network disturb each other: take it from that one first, or declare another one here",
	}
	if !t.meet {
		f.Detail += "; they do not both run on one bridge, so this may be intended"
		g.find(t.by, f)
		return
	}
	f.Severity = diag.Error
	f.Summary = fmt.Sprintf("%s is %s: the %s is that of %s, which stays and runs%s", t.by, s.Action.not(), t.what(), g.standing(t.from), s.alsoWithheld(t.claim.Path))
	g.find(t.by, f)
	g.withhold(s, false)
}

// standing names a resource that is there, and where.
func (d *draft) standing(a model.Address) string {
	if g := d.have[a].Guest; g != nil {
		return fmt.Sprintf("%s (VMID %d)", a, g.VMID)
	}
	return a.String()
}

// what names the thing, with the block that it is declared in.
func (t taking) what() string {
	if i := strings.LastIndexByte(t.claim.Path, '.'); i > 0 {
		return t.claim.What + " of " + t.claim.Path[:i]
	}
	return t.claim.What
}

// overlap warns of what is taken before it was given up, since to wait for that would
// have closed a circle.
func (o *ordering) overlap(g *graph) {
	for i, addr := range g.addrs {
		for _, t := range o.takes[addr] {
			if o.steps[t.from] == nil || !t.meet || slices.ContainsFunc(g.before[i], func(j int) bool { return g.addrs[j] == t.from }) {
				continue
			}
			o.find(t.by, diag.Finding{
				Severity: diag.Warning, Source: diag.FromGuard, At: o.want[t.by].RangeOf(t.claim.Path),
				Summary: fmt.Sprintf("%s gets the %s while %s still has it", t.by, t.what(), o.standing(t.from)),
				Detail:  "the two steps would wait for each other; release it in a separate commit first, so that they never both have it",
			})
		}
	}
}
