package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// guardChild keeps a guest that may hold nodes of the site until it is known to be empty: its agent has reported
// so, for a commit that does not fill it again. Keeping it is neither an error nor drift: it is listed with what is
// known, and removed in a later pass.
func (g *guard) guardChild(s *Step) {
	if s.Action != Delete && s.Action != Replace || s.Have.Guest == nil || s.Have.Guest.Orphan == "" {
		return
	}
	name, orphan := s.Address.Name, s.Have.Guest.Orphan
	child := g.in.Children[name]
	withdrawn := s.Action == Delete && !g.in.Destroy
	switch {
	case slices.Contains(g.in.AllowOrphans, name):
		s.Reason += "; nodes in it are removed with it, as --allow-orphans or the trailer Allow-Orphans requires"
	case child.Empty && (child.Commit != "" && child.Commit == g.in.Commit || withdrawn && child.Gone):
		s.Reason += "; nothing is left in it, as it reported at " + model.Commit{ID: child.Commit}.Short()
	case withdrawn && orphan == model.OrphanDestroy:
		s.Reason += `; nodes in it are removed with it (orphan = "destroy")`
	case withdrawn && orphan == model.OrphanAbandon:
		g.postpone(s, `removed from the site, and stays with everything in it (orphan = "abandon"): to remove it, `+allowOrphans(name), true)
	case g.in.Destroy && s.Action == Delete:
		why := "nodes of the site may be in it"
		if !child.At.IsZero() {
			why += ", " + known(child)
		}
		g.refuse(s, diag.FromGuard, why, fmt.Sprintf("Take manifest %s out of the site and push that: %s empties itself, and goes when nothing is left in it. To destroy it with all that is in it: --allow-orphans %[2]s.", g.in.Manifest, name))
	default:
		g.postpone(s, fmt.Sprintf("%s until nothing is left in it: %s; %s", s.Action.not(), known(child), nextStep(s, child)), !withdrawn)
	}
}

// known says what is known of a child, and since when.
func known(c model.ChildReport) string {
	if c.At.IsZero() {
		return "no report of its agent is known"
	}
	what := "empty"
	if !c.Empty {
		what = "of no node, but did not report that it is empty"
		if n := len(c.Nodes); n > 0 {
			const most = 5
			names := c.Nodes[:min(n, most)]
			what = fmt.Sprintf("of %d nodes (%s", n, strings.Join(names, ", "))
			if n == 1 {
				what = fmt.Sprintf("of 1 node (%s", names[0])
			}
			if n > most {
				what += ", …"
			}
			what += ")"
		}
	}
	return fmt.Sprintf("last reported %s, at %s: %s", c.At.UTC().Format(time.DateTime+" UTC"), model.Commit{ID: c.Commit}.Short(), what)
}

// nextStep says how to go on with a child that is kept.
func nextStep(s *Step, c model.ChildReport) string {
	name := s.Address.Name
	switch {
	case c.At.IsZero():
		return "if nothing is in it, or nothing that counts, " + allowOrphans(name)
	case s.Action == Replace:
		return fmt.Sprintf("take the nodes below %s out of the site first, or %s", name, allowOrphans(name))
	case !c.Empty && len(c.Nodes) == 0:
		return fmt.Sprintf("homestak-gitops plan on %s lists unmanaged guests, if there are any: move or remove them, or %s", name, allowOrphans(name))
	default:
		return fmt.Sprintf("if %s does not report any more, start it and check its agent; if it is lost, %s", name, allowOrphans(name))
	}
}

func allowOrphans(name string) string {
	return fmt.Sprintf(`push a commit with the trailer "Allow-Orphans: %s", or run it with --allow-orphans %s`, name, name)
}

// postpone takes a step out until a later pass, or for good unless it is allowed.
func (g *guard) postpone(s *Step, why string, forGood bool) {
	g.plan.Deferred = append(g.plan.Deferred, model.Deferred{Address: s.Address.String(), Why: why, Postponed: !forGood, Differs: true})
	g.withhold(s, false)
	h := g.withheld[s.Address]
	h.postponed, h.forGood = true, forGood
	g.withheld[s.Address] = h
}

// Postponed lists what a later pass will do, when it is known that nothing is left in a child.
func (p *Plan) Postponed() []model.Deferred {
	return slices.DeleteFunc(slices.Clone(p.Deferred), func(d model.Deferred) bool { return !d.Postponed })
}
