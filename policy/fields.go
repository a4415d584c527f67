package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// checkFields finds references to fields that no input has. It follows the input through variables of rules and
// into functions. Other values may be anything, so it reports no false problems.
//
// It reads the compiled rules: there "some k, v in xs" is v = xs[k], and a variable has one name in one rule.
func (c *checker) checkFields(known shapes) diag.List {
	w := c.walker(known)
	var found diag.List
	c.eachRule(func(m *ast.Module, r *ast.Rule) {
		asked := slices.Contains(asked(), packageOf(m)) && slices.Contains(extensible(packageOf(m)), headName(r))
		if c.shipped(r.Loc().File) || replaces(r) || w.replaced && !asked {
			return
		}
		w.misses(m, r, func(t *ast.Term, field string, has *shape) {
			detail := "A missing field is undefined, so the rule would never report anything."
			if hint := diag.DidYouMean(field, slices.Collect(maps.Keys(has.fields))); hint != "" {
				detail += "\n" + strings.ToUpper(hint[:1]) + hint[1:]
			}
			found = append(found, c.refused(t.Location, fmt.Sprintf("%s reads the field %q, which the input does not have there", r.Loc().File, diag.Line(clip(field))), detail))
		})
	})
	return found
}

func (c *checker) eachRule(f func(*ast.Module, *ast.Rule)) {
	for _, name := range sortedKeys(c.compiler.Modules) {
		m := c.compiler.Modules[name]
		for _, r := range m.Rules {
			for ; r != nil; r = r.Else {
				f(m, r)
			}
		}
	}
}

// walker follows the input through rules.
type walker struct {
	known    shapes
	params   map[string][]*shape // of functions: what is handed to them by all callers
	next     map[string][]*shape // the same, being collected
	replaced bool                // some rule asks others with another input
}

// walker returns one that knows what functions are called with.
func (c *checker) walker(known shapes) *walker {
	w := &walker{known: known, params: map[string][]*shape{}}
	c.eachRule(func(_ *ast.Module, r *ast.Rule) { w.replaced = w.replaced || replaces(r) })
	const rounds = 4 // as deep as calls are followed
	for range rounds {
		c.eachRule(func(m *ast.Module, r *ast.Rule) { w.calls(m, r) })
		w.nextRound()
	}
	return w
}

// replaces reports whether a rule asks others with something else than there is:
// nothing is known of what they get.
func replaces(r *ast.Rule) bool {
	found := false
	ast.WalkExprs(r, func(e *ast.Expr) bool {
		found = found || len(e.With) > 0
		return found
	})
	return found
}

// input is the shape of the document that a package gets.
func (w *walker) input(m *ast.Module) *shape {
	switch packageOf(m) {
	case sitePackage, planPackage, guardPackage:
		return w.known.pass
	case authPackage:
		return w.known.auth
	default:
		return w.known.either
	}
}

// vars gives the shapes of the variables of a rule.
func (w *walker) vars(m *ast.Module, r *ast.Rule) map[ast.Var]*shape {
	vars := map[ast.Var]*shape{ast.Var("input"): w.input(m)}
	for i, arg := range r.Head.Args {
		if v, ok := arg.Value.(ast.Var); ok && i < len(w.params[r.Ref().String()]) {
			vars[v] = w.params[r.Ref().String()][i]
		}
	}
	// A variable may be used before the expression that gives it its value.
	for again := true; again; {
		again = false
		bind := func(variable *ast.Term, s *shape) {
			v, ok := variable.Value.(ast.Var)
			if _, has := vars[v]; ok && s != nil && !has {
				vars[v], again = s, true
			}
		}
		ast.WalkExprs(r, func(e *ast.Expr) bool {
			if every, ok := e.Terms.(*ast.Every); ok {
				if s := shapeAt(vars, every.Domain); s != nil {
					bind(every.Value, s.each)
				}
			}
			if e.IsEquality() || e.IsAssignment() {
				a, b := e.Operand(0), e.Operand(1)
				bind(a, shapeAt(vars, b))
				bind(b, shapeAt(vars, a))
			}
			return false
		})
	}
	return vars
}

// shapeAt is the shape of a term, nil if it may be anything.
func shapeAt(vars map[ast.Var]*shape, t *ast.Term) *shape {
	switch v := t.Value.(type) {
	case ast.Var:
		return vars[v]
	case ast.Ref:
		s, _, _ := follow(vars, v)
		return s
	default:
		return nil
	}
}

// follow follows a reference. It stops at a missing field, and returns its name and the value that lacks it.
func follow(vars map[ast.Var]*shape, ref ast.Ref) (s *shape, missing string, in *shape) {
	head, ok := ref[0].Value.(ast.Var)
	if !ok {
		return nil, "", nil
	}
	s = vars[head]
	for _, t := range ref[1:] {
		if s == nil {
			return nil, "", nil
		}
		if s.fields == nil {
			s = s.each
			continue
		}
		name, ok := t.Value.(ast.String)
		if !ok {
			return nil, "", nil // by a variable, any field
		}
		field, has := s.fields[string(name)]
		if !has {
			return nil, string(name), s
		}
		s = field
	}
	return s, "", nil
}

// calls notes what a rule hands to functions.
func (w *walker) calls(m *ast.Module, r *ast.Rule) {
	if w.next == nil {
		w.next = map[string][]*shape{}
	}
	vars, replaced := w.vars(m, r), replaces(r)
	note := func(fn *ast.Term, args []*ast.Term) {
		ref, ok := fn.Value.(ast.Ref)
		if !ok || !ref.HasPrefix(ast.DefaultRootRef) {
			return
		}
		name := ref.String()
		shapes := make([]*shape, len(args))
		for i, a := range args {
			if !replaced {
				shapes[i] = shapeAt(vars, a)
			}
		}
		if before, again := w.next[name]; again {
			for i := range min(len(before), len(shapes)) {
				if before[i] != shapes[i] {
					shapes[i] = nil // two callers with different things
				}
			}
		}
		w.next[name] = shapes
	}
	ast.WalkExprs(r, func(e *ast.Expr) bool {
		if terms, ok := e.Terms.([]*ast.Term); ok && len(terms) > 0 {
			note(terms[0], terms[1:])
		}
		return false
	})
	ast.WalkTerms(r, func(t *ast.Term) bool {
		if call, ok := t.Value.(ast.Call); ok {
			note(call[0], call[1:])
		}
		return false
	})
}

// nextRound ends a round of calls.
func (w *walker) nextRound() { w.params, w.next = w.next, nil }

// misses reports every reference of a rule to a field that is not there.
func (w *walker) misses(m *ast.Module, r *ast.Rule, report func(t *ast.Term, field string, has *shape)) {
	vars := w.vars(m, r)
	ast.WalkTerms(r, func(t *ast.Term) bool {
		if ref, ok := t.Value.(ast.Ref); ok {
			if _, missing, in := follow(vars, ref); missing != "" {
				report(t, missing, in)
			}
		}
		return false
	})
}
