package policy

import (
	"fmt"
	"sort"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// rule is a rule that says something, and where it stands.
type rule struct {
	pkg, name string // homestak.site, deny
	label     string // the rule it names in what it says, where that is written out
	at        *ast.Location
	end       int // the last line before the next rule of the file
	shipped   bool
	strict    bool // its metadata say that no waiver counts: custom: {waivable: false}
}

// ruleset has all rules and their files. It evaluates queries, and finds the rule for each result
// or failure.
type ruleset struct {
	sources
	rules []rule
}

// title is the name of the rule for people.
func (r rule) title() string {
	if r.label != "" {
		return r.label
	}
	return r.name
}

// String names it for people, and where it is.
func (r rule) String() string {
	if r.shipped {
		return fmt.Sprintf("rule %s, shipped with this program, package %s", r.title(), r.pkg)
	}
	return fmt.Sprintf("rule %s at %s:%d, package %s", r.title(), r.at.File, r.at.Row, r.pkg)
}

// rulesOf lists all rules, in the order of files and lines. The compiler must not have
// seen them: it moves what a rule says out of its head.
func rulesOf(modules map[string]*ast.Module, shipped func(file string) bool) []rule {
	var out []rule
	for _, name := range sortedKeys(modules) {
		m, first := modules[name], len(out)
		for _, r := range m.Rules {
			out = append(out, rule{
				pkg: packageOf(m), name: headName(r), label: labelOf(r), at: r.Loc(), end: r.Loc().Row, shipped: shipped(r.Loc().File), strict: isStrict(r),
			})
		}
		of := out[first:]
		sort.SliceStable(of, func(i, j int) bool { return of[i].at.Row < of[j].at.Row })
		for i := range of {
			of[i].end = 1 << 30
			if i+1 < len(of) {
				of[i].end = max(of[i].at.Row, of[i+1].at.Row-1)
			}
		}
	}
	return out
}

// isStrict reads the metadata of a rule. What is not true forbids waivers, also a text such as "no".
func isStrict(r *ast.Rule) bool {
	for _, a := range r.Annotations {
		if waivable, set := a.Custom["waivable"]; set {
			return waivable != true
		}
	}
	return false
}

func packageOf(m *ast.Module) string { return strings.TrimPrefix(m.Package.Path.String(), "data.") }

func headName(r *ast.Rule) string {
	ref := r.Head.Ref().GroundPrefix()
	if len(ref) == 0 {
		return ""
	}
	switch v := ref[0].Value.(type) {
	case ast.Var:
		return string(v)
	case ast.String:
		return string(v)
	default:
		return ""
	}
}

// labelOf is the name that a rule writes into what it says.
func labelOf(r *ast.Rule) string {
	if r.Head.Key == nil {
		return ""
	}
	o, ok := r.Head.Key.Value.(ast.Object)
	if !ok {
		return ""
	}
	name, _ := stringOf(o.Get(ast.StringTerm("rule")))
	return diag.Line(clip(name))
}
