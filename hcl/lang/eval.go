package lang

import (
	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// Evaluate evaluates an expression. If it fails, the reason has been reported, here or for a value
// that it depends on.
func (ev *Evaluator) Evaluate(expr hclsyntax.Expression, sc *Scope) (cty.Value, bool) {
	if c := ev.given[expr]; c != nil {
		return c.val, ev.computeCell(c)
	}
	return ev.compute(expr, sc)
}

func (ev *Evaluator) compute(expr hclsyntax.Expression, sc *Scope) (cty.Value, bool) {
	switch e := expr.(type) {
	case *hclsyntax.LiteralValueExpr:
		return e.Val, true
	case *hclsyntax.TemplateExpr:
		if e.IsStringLiteral() {
			v, _ := e.Value(nil)
			return v, true
		}
	case *hclsyntax.ScopeTraversalExpr:
		if name, ok := ev.blockName(e.Traversal, sc); ok {
			return name, true
		}
	}
	references := expr.Variables()
	ok := true
	quoted := false // the references are within a text in quotes
	switch expr.(type) {
	case *hclsyntax.TemplateExpr, *hclsyntax.TemplateWrapExpr:
		quoted = true
	}
	for _, t := range references {
		ok = ev.resolve(t, sc, quoted) && ok
	}
	if !ok {
		return cty.NilVal, false
	}
	ctx := ev.context(references, sc)
	ev.Inputs.Position.enter(expr)
	v, diags := expr.Value(ctx)
	if len(diags) > 0 {
		ev.AddDiagnostics(diags, len(marksOf(references, ctx)) > 0)
	}
	if diags.HasErrors() {
		return cty.NilVal, false
	}
	if !v.IsWhollyKnown() && !v.ContainsMarked() {
		v = v.WithMarks(marksOf(references, ctx)) // not every expression keeps the marks of what it does not know
	}
	if problem := tooBig(v); problem != "" {
		ev.Errorf(expr.Range(), "value too large", "%s", problem)
		return cty.NilVal, false
	}
	return v, true
}

// context is the scope of an expression with what only some expressions need: the secrets and,
// while cells are computed, those that it refers to.
func (ev *Evaluator) context(references []hclv2.Traversal, sc *Scope) *hclv2.EvalContext {
	extra := map[string]cty.Value{}
	cells := map[string]map[string]cty.Value{}
	for _, t := range references {
		switch root := t.RootName(); {
		case root == "secret" && ev.Inputs.Secrets != nil:
			extra[root] = ev.secrets
		case root == "secret":
			extra[root] = unknownSecrets(references)
		case (root == "local" || root == "site") && !ev.cellsDone:
			name, _ := stepName(t, 1)
			if cells[root] == nil {
				cells[root] = map[string]cty.Value{}
			}
			cells[root][name] = ev.cells[root+"."+name].val
		}
	}
	for root, values := range cells {
		extra[root] = cty.ObjectVal(values)
	}
	if len(extra) == 0 {
		return sc.ctx
	}
	return sc.Child(extra).ctx
}

// marksOf collects the marks of everything that an expression refers to. It follows at most three
// steps of each reference, because its end may be wrong.
func marksOf(references []hclv2.Traversal, ctx *hclv2.EvalContext) cty.ValueMarks {
	all := cty.ValueMarks{}
	for _, t := range references {
		steps := 2
		if t.RootName() == "secret" {
			steps = 3
		}
		for n := min(steps, len(t)); n > 0; n-- {
			v, diags := t[:n].TraverseAbs(ctx)
			if diags.HasErrors() {
				continue
			}
			_, marks := v.UnmarkDeep()
			for m := range marks {
				all[m] = struct{}{}
			}
			break
		}
	}
	return all
}

const (
	maxText     = 1 << 20 // bytes of all texts in one value
	maxElements = 100_000 // of one value, at all depths
	maxExponent = 4096    // bits: the text of a number is as long as that
)

// tooBig describes what is too large in a value; "" if nothing is. Values can double with every
// local that is built from another one.
func tooBig(v cty.Value) string {
	text, elements := 0, 0
	var walk func(cty.Value) string
	walk = func(v cty.Value) string {
		v, _ = v.Unmark()
		if elements++; elements > maxElements {
			return "It has more than 100,000 elements."
		}
		if !v.IsKnown() || v.IsNull() {
			return ""
		}
		switch t := v.Type(); {
		case t == cty.String:
			if text += len(v.AsString()); text > maxText {
				return "Its strings have more than 1 MiB."
			}
		case t == cty.Number:
			n := v.AsBigFloat()
			if exp := n.MantExp(nil); n.IsInf() || exp > maxExponent || exp < -maxExponent {
				return "It contains a number that is too large for any attribute."
			}
		case t.IsCollectionType() || t.IsTupleType() || t.IsObjectType():
			for it := v.ElementIterator(); it.Next(); {
				k, e := it.Element()
				if t.IsMapType() || t.IsObjectType() {
					k, _ = k.Unmark()
					text += len(k.AsString())
				}
				if problem := walk(e); problem != "" {
					return problem
				}
			}
		}
		return ""
	}
	return walk(v)
}
