package policy

import (
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// counter counts the rules of a query by their most severe result. Rules with the same name in
// their results are one rule. For rules without a name it is unknown which one reported a finding:
// every finding counts as another rule, as long as there are others.
type counter struct {
	named   map[spoken]diag.Severity
	unnamed map[spoken]*unnamed // by package and name of the rules, without label
}

// spoken is a rule, as far as what it says shows.
type spoken struct{ pkg, name, label string }

// unnamed are rules of one package and name that write no name into what they say.
type unnamed struct{ rules, denied, warned int }

func (rs *ruleset) counter(packages []string) *counter {
	n := &counter{map[spoken]diag.Severity{}, map[spoken]*unnamed{}}
	for _, r := range rs.rules {
		switch {
		case !slices.Contains(packages, r.pkg) || r.name != denyRule && r.name != warnRule:
		case r.label != "":
			n.named[spoken{r.pkg, r.name, r.label}] = ""
		default:
			n.group(r.pkg, r.name).rules++
		}
	}
	return n
}

func (n *counter) group(pkg, name string) *unnamed {
	k := spoken{pkg: pkg, name: name}
	if n.unnamed[k] == nil {
		n.unnamed[k] = &unnamed{}
	}
	return n.unnamed[k]
}

// said notes a finding.
func (n *counter) said(pkg, name, label string, as diag.Severity) {
	k := spoken{pkg, name, diag.Line(clip(label))}
	before, known := n.named[k]
	switch {
	case known && before != diag.Error:
		n.named[k] = as
	case known:
	case as == diag.Error:
		n.group(pkg, name).denied++
	default:
		n.group(pkg, name).warned++
	}
}

// rules returns the count.
func (n *counter) rules() plan.Rules {
	var out plan.Rules
	for as := range maps.Values(n.named) {
		switch as {
		case diag.Error:
			out.Denied++
		case diag.Warning:
			out.Warning++
		default:
			out.OK++
		}
	}
	for g := range maps.Values(n.unnamed) {
		rules := max(g.rules, 1) // who says something is there
		denied := min(g.denied, rules)
		warned := min(g.warned, rules-denied)
		out = out.Plus(plan.Rules{OK: rules - denied - warned, Warning: warned, Denied: denied})
	}
	return out
}
