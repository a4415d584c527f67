package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// root is the prefix of the names of all evaluated packages.
const root = "homestak"

// asked lists the packages that are evaluated.
func asked() []string { return []string{sitePackage, planPackage, guardPackage, authPackage} }

// extensible are the rules that a site may add to in each of those packages. All other shipped
// rules are helpers, whose meaning must not change.
func extensible(pkg string) []string {
	if pkg == authPackage {
		return []string{allowRule, denyRule}
	}
	return []string{denyRule, warnRule}
}

// checker checks compiled rules against the evaluated packages and the fields of the input.
type checker struct {
	*ruleset
	compiler *ast.Compiler
}

// check finds rules of the site that compile but never report anything: in packages that are not
// evaluated, with names of shipped rules, with fields that no input has, with references to rules
// that do not exist.
func (c *checker) check(known shapes) diag.List {
	var found diag.List
	ours := map[string]bool{}
	for _, r := range c.rules {
		if r.shipped {
			ours[r.pkg+"."+r.name] = true
		}
	}
	for _, name := range sortedKeys(c.compiler.Modules) {
		m := c.compiler.Modules[name]
		if c.shipped(name) {
			continue
		}
		found = append(found, c.checkPackage(m)...)
		for _, r := range c.rules {
			if r.at.File == name && ours[r.pkg+"."+r.name] && !slices.Contains(extensible(r.pkg), r.name) {
				found = append(found, c.refused(r.at, fmt.Sprintf("%s changes the shipped rule %s of package %s", name, r.name, r.pkg),
					"It would change the results of shipped rules: give it another name."))
			}
		}
	}
	found = append(found, c.checkReferences()...)
	return append(found, c.checkFields(known)...)
}

// checkPackage checks that the package of a module is evaluated.
func (c *checker) checkPackage(m *ast.Module) diag.List {
	pkg, at := packageOf(m), m.Package.Location
	if slices.Contains(asked(), pkg) {
		return nil
	}
	if pkg == root || strings.HasPrefix(pkg, root+".") {
		return diag.List{c.refused(at, "nothing evaluates package "+pkg, "Put rules of a site into "+strings.Join(asked(), ", ")+
			"; put what they share into packages that do not begin with "+root+". "+diag.DidYouMean(pkg, asked()))}
	}
	var found diag.List
	for _, r := range c.rules {
		if r.at.File == at.File && (r.name == denyRule || r.name == warnRule) {
			f := c.refused(r.at, fmt.Sprintf("nothing evaluates rule %s of package %s", r.name, pkg), "Only the rules of "+strings.Join(asked(), ", ")+" are evaluated.")
			f.Severity = diag.Warning // a library may call its own rules so
			found = append(found, f)
		}
	}
	return found
}

// checkReferences finds references to rules that do not exist. There is no data besides the rules,
// so such a reference is always a mistake.
func (c *checker) checkReferences() diag.List {
	var found diag.List
	for _, name := range sortedKeys(c.compiler.Modules) {
		if c.shipped(name) {
			continue
		}
		ast.WalkTerms(c.compiler.Modules[name], func(t *ast.Term) bool {
			ref, ok := t.Value.(ast.Ref)
			if !ok || !ref.HasPrefix(ast.DefaultRootRef) || len(ref) < 2 || c.exists(ref) {
				return false
			}
			found = append(found, c.refused(t.Location, fmt.Sprintf("%s refers to %s, and there is no such rule", name, ref), "A condition on it is never true."))
			return false
		})
	}
	return found
}

// exists reports whether a reference can lead to a rule or a package with rules.
func (c *checker) exists(ref ast.Ref) bool {
	ground := ref.GroundPrefix()
	if len(c.compiler.GetRulesForVirtualDocument(ground)) > 0 || len(c.compiler.GetRulesWithPrefix(ground)) > 0 {
		return true
	}
	node := c.compiler.RuleTree
	for _, t := range ground {
		if node = node.Child(t.Value); node == nil {
			return false
		}
	}
	return true
}

// refused is a denial with a location in a policy of the site.
func (s sources) refused(at *ast.Location, summary, detail string) diag.Finding {
	f := denial(diag.FromPolicy, summary, detail)
	f.At, f.Code = s.locate(at)
	return f
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
