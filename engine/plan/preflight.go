package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// checkPreflight reports what of the host is in the way of a step, at the line that
// asks for it, and takes out what is sure to fail: it would in every pass, and with
// it its manifest would stop, or be made and taken back, again and again.
func (g *guard) checkPreflight() {
	g.each(func(s *Step) {
		if why := g.homeless[s.Address]; why != "" && s.Action == Create {
			g.refuseAt(s, "nodes", "no PVE node can take it: "+why, "make room, add PVE nodes to nodes, or raise capacity of the host; the choice counts the memory of all declared guests, and of others that run")
		}
		if problem := g.crowded[s.Address]; problem != "" && s.Action == Create {
			f := diag.Warnf(s.Want.RangeOf("spread"), problem, "it is created all the same: add PVE nodes or make room first, or migrate one of them later")
			f.Source = diag.FromGuard
			g.find(s.Address, f)
		}
	})
	type line struct {
		at      diag.Range
		by      model.Address // where no line is known
		summary string
	}
	var found []*diag.Finding
	shared, who := map[line]*diag.Finding{}, map[*diag.Finding][]model.Address{}
	failing, withheld := map[model.Address]bool{}, map[*diag.Finding]bool{}
	wrong := map[model.Address][]string{} // attributes that ask for what is amiss
	for _, o := range g.in.Have.Preflight {
		s := g.steps[o.Address]
		if s == nil || s.Want == nil || !concerns(o, s) || o.Node != "" && o.Node != s.Want.Guest.Node {
			continue
		}
		if o.Withhold || o.Severity == diag.Error {
			failing[s.Address] = true
			wrong[s.Address] = append(wrong[s.Address], o.Path)
		}
		key := line{at: o.At, summary: o.Summary}
		if o.At.IsZero() {
			key.by = o.Address
		}
		f := shared[key]
		if f == nil {
			f = &diag.Finding{Severity: o.Severity, Source: diag.FromGuard, Summary: o.Summary, Detail: o.Detail, At: o.At}
			if o.At.IsZero() {
				f.At = s.Want.RangeOf(o.Path)
			}
			found, shared[key] = append(found, f), f
			withheld[f] = o.Withhold || o.Severity == diag.Error
		}
		if !slices.Contains(who[f], s.Address) {
			who[f] = append(who[f], s.Address)
		}
	}
	for _, f := range found {
		not := ""
		if withheld[f] {
			not = g.steps[who[f][0]].Action.not()
		}
		f.Summary = those(who[f], not) + ": " + f.Summary
		if s := g.steps[who[f][0]]; not != "" && len(who[f]) == 1 {
			f.Summary += s.alsoWithheld(wrong[s.Address]...)
		}
		g.find(who[f][0], *f)
	}
	g.each(func(s *Step) {
		if failing[s.Address] {
			g.withhold(s, false)
		}
	})
}

// those names resources, and what does not happen to them, "" if it does.
func those(who []model.Address, not string) string {
	names := make([]string, len(who))
	for i, a := range who {
		names[i] = a.String()
	}
	text := strings.Join(names, ", ")
	if n := len(names); n > 3 {
		text = fmt.Sprintf("%s and %d more", strings.Join(names[:2], ", "), n-2)
	}
	switch {
	case not == "":
		return text
	case len(who) > 1:
		return text + " are " + not
	default:
		return text + " is " + not
	}
}

// concerns reports whether an obstacle is in the way of a step.
func concerns(o model.PreflightProblem, s *Step) bool {
	if s.Action == Adopt {
		return false
	}
	return s.Action != Update || o.Any || slices.ContainsFunc(s.Changes, func(c Change) bool {
		return o.Path != "" && (c.Path == o.Path || strings.HasPrefix(c.Path, o.Path+".")) || o.Power && c.Path == "power"
	})
}
