package policy

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Results of rules.
const (
	denyRule = "deny"
	warnRule = "warn"

	maxEntries = 1000 // of one set; the rest is counted
	maxMessage = 500  // characters of a message
)

// errUndefined is a missing result: a deny or warn that is not a set, and does not hold. It must not be taken for
// consent.
var errUndefined = errors.New("the rules returned nothing")

func stringOf(t *ast.Term) (string, bool) {
	if t == nil {
		return "", false
	}
	s, ok := t.Value.(ast.String)
	return string(s), ok
}

// verdict reads the answer to a question, and counts the rules that gave it.
func (rs *ruleset) verdict(packages []string, answer *ast.Term) (diag.List, plan.Rules) {
	var found diag.List
	n := rs.counter(packages)
	for _, pkg := range packages {
		for _, name := range rs.said(pkg) {
			set, ok := at(answer, pkg, name).(ast.Set)
			if !ok {
				f := rs.misshapen(pkg, name, nil, "it is not a set: write "+name+" contains … if { … }")
				found = append(found, f)
				n.said(pkg, name, "", f.Severity)
				continue
			}
			found = append(found, rs.entries(pkg, name, set, n)...)
		}
	}
	return found, n.rules()
}

// at walks down an object; nil where there is nothing.
func at(t *ast.Term, path ...string) ast.Value {
	for _, key := range path {
		o, ok := t.Value.(ast.Object)
		if !ok {
			return nil
		}
		if t = o.Get(ast.StringTerm(key)); t == nil {
			return nil
		}
	}
	return t.Value
}

func (rs *ruleset) entries(pkg, name string, set ast.Set, n *counter) diag.List {
	var found diag.List
	seen := 0
	set.Until(func(t *ast.Term) bool {
		if seen++; seen > maxEntries {
			return true
		}
		f, label := rs.entry(pkg, name, t)
		found = append(found, f)
		n.said(pkg, name, label, f.Severity)
		return false
	})
	if more := set.Len() - maxEntries; more > 0 {
		f := denial(sourceOf(pkg), fmt.Sprintf("%d further findings of %s in package %s", more, name, pkg), "They are not shown.")
		if name == warnRule {
			f.Severity = diag.Warning
		}
		found = append(found, f)
	}
	return found
}

// entry converts a result of a rule to a finding: a text, or an object with the message and
// optionally the name of the rule, an address, and a fix. It also returns the name.
func (rs *ruleset) entry(pkg, name string, t *ast.Term) (f diag.Finding, label string) {
	f = denial(sourceOf(pkg), "", "")
	if name == warnRule {
		f.Severity = diag.Warning
	}
	if message, ok := stringOf(t); ok {
		if strings.TrimSpace(message) == "" {
			return rs.misshapen(pkg, name, t, "its finding is an empty string"), ""
		}
		say(&f, message, rs.who(pkg, name, ""), "")
		return f, ""
	}
	o, ok := t.Value.(ast.Object)
	if !ok {
		return rs.misshapen(pkg, name, t, "its finding is neither a string nor an object with a message"), ""
	}
	said := map[string]string{"rule": "", "message": "", "address": "", "fix": ""}
	problem := ""
	o.Until(func(k, v *ast.Term) bool {
		key, _ := stringOf(k)
		text, isText := stringOf(v)
		switch _, known := said[key]; {
		case !known:
			problem = fmt.Sprintf("its finding has the unknown field %s; known: rule, message, address, fix", shown(k))
		case !isText:
			problem = fmt.Sprintf("its finding has a %s that is not a string", key)
		}
		said[key] = text
		return problem != ""
	})
	switch {
	case problem != "":
	case strings.TrimSpace(said["message"]) == "":
		problem = "its finding has no message"
	case said["address"] != "":
		if _, err := model.ParseAddress(clip(said["address"])); err != nil {
			problem = "its finding has an invalid address: " + clip(err.Error())
		}
	}
	if problem != "" {
		return rs.misshapen(pkg, name, t, problem), said["rule"]
	}
	f.Address, f.Rule = diag.Line(clip(said["address"])), diag.Line(clip(said["rule"]))
	say(&f, said["message"], rs.who(pkg, name, said["rule"]), said["fix"])
	return f, said["rule"]
}

// say puts a message into a finding: its first line is the summary. Message and source are separate, so that a
// message cannot imitate another rule's.
func say(f *diag.Finding, message, who, fix string) {
	summary, rest, _ := strings.Cut(strings.TrimSpace(message), "\n")
	f.Summary = diag.Line(clip(summary))
	var detail []string
	for _, text := range []string{cleanLines(clip(rest)), cleanLines(clip(fix)), "(" + who + ")"} {
		if text != "" {
			detail = append(detail, text)
		}
	}
	f.Detail = strings.Join(detail, "\n")
}

// who names the rules that may have said something: the one that writes this label,
// else the site's of that name. Shipped rules all have labels.
func (rs *ruleset) who(pkg, name, label string) string {
	label = diag.Line(clip(label))
	var named, others []string
	for _, r := range rs.rules {
		switch {
		case r.pkg != pkg || r.name != name:
		case label != "" && r.label == label:
			named = append(named, r.String())
		case !r.shipped && r.label == "":
			others = append(others, r.String())
		}
	}
	if len(named) > 0 {
		return strings.Join(named, "; or ")
	}
	const most = 5
	if len(others) == 0 || len(others) > most {
		others = []string{fmt.Sprintf("rule %s of package %s", name, pkg)}
	}
	who := strings.Join(others, "; or ")
	if label != "" {
		who = label + ": " + who
	}
	return who
}

// misshapen is the denial by a rule whose result is not a finding.
func (rs *ruleset) misshapen(pkg, name string, t *ast.Term, problem string) diag.Finding {
	f := denial(sourceOf(pkg), fmt.Sprintf("%s.%s denies: %s", pkg, name, problem), "")
	var lines []string
	if t != nil {
		lines = append(lines, "It says: "+shown(t))
	}
	lines = append(lines, `A finding is a string, or {"rule": "kebab-name", "message": "…", "address": "vm.web-1", "fix": "…"} with at least the message.`,
		"("+rs.who(pkg, name, "")+")")
	f.Detail = strings.Join(lines, "\n")
	var own []rule
	for _, r := range rs.rules {
		if r.pkg == pkg && r.name == name && !r.shipped {
			own = append(own, r)
		}
	}
	if len(own) == 1 {
		f.At, f.Code = rs.locate(own[0].at)
	}
	return f
}

// shown writes a value for people, if it is short enough to be read.
func shown(t *ast.Term) string {
	if written(t, maxMessage) > maxMessage {
		return "(too much to show)"
	}
	return diag.Line(t.String())
}

func denial(source diag.Source, summary, detail string) diag.Finding {
	return diag.Finding{Severity: diag.Error, Source: source, Summary: summary, Detail: detail}
}

func sourceOf(pkg string) diag.Source {
	if pkg == guardPackage || isPack(pkg) {
		return diag.FromGuard
	}
	return diag.FromPolicy
}

// rangesOf finds where an address is declared. Most evaluations find nothing, and ask for no address.
func rangesOf(site *model.Site, p *plan.Plan) func(address string) diag.Range {
	at := sync.OnceValue(func() map[string]diag.Range { return declarations(site, p) })
	return func(address string) diag.Range { return at()[address] }
}

// declarations has the place of each address of a site and a plan.
func declarations(site *model.Site, p *plan.Plan) map[string]diag.Range {
	at := map[string]diag.Range{"site." + site.Name: site.At}
	for name, h := range site.Hosts {
		at["host."+name] = h.At
	}
	for name, v := range site.Postures {
		at["posture."+name] = v.At
	}
	for name, v := range site.Specs {
		at["spec."+name] = v.At
	}
	for addr, r := range site.Objects {
		at[addr.String()] = r.At
	}
	if p != nil {
		for _, s := range p.Steps {
			at[s.Address.String()] = s.At
		}
	}
	for name, m := range site.Manifests {
		at["manifest."+name] = m.At
		for _, n := range m.Nodes {
			where := n.At
			if n.Resource != nil && !n.Resource.At.IsZero() {
				where = n.Resource.At
			}
			if m.Host != "" {
				at[n.Type+"."+n.Name], at["node."+n.Name] = where, where
			}
		}
	}
	return at
}

// cleanLines is clean for a text of several lines; empty ones are left out.
func cleanLines(s string) string {
	var out []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(diag.Line(strings.TrimRight(line, "\r\n"))); line != "" {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

func clip(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	runes := []rune(s[:min(len(s), 4*maxMessage)])
	if len(runes) < maxMessage {
		return s
	}
	return string(runes[:maxMessage-1]) + "…"
}
