package hcl

import (
	"io/fs"
	"maps"
	"slices"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// maxChainOfLocals bounds how many locals may wait for each other at once.
const maxChainOfLocals = 2000

// scope is where an expression stands, and so what it may refer to.
type scope struct {
	ctx           *hclv2.EvalContext
	functionsOnly bool            // nothing but functions
	nodes         map[string]bool // of the manifest around, and whether it is known which they are; nil outside of one
	each          bool            // in a node with for_each
	count         bool            // in a node with count
}

// child is the scope with further values in it.
func (s *scope) child(values map[string]cty.Value) *scope {
	c := *s
	c.ctx = s.ctx.NewChild()
	c.ctx.Variables = values
	return &c
}

// cell is a value with a name that other such values may need: local.x or site.x.
// It is worked out when it is first asked for.
type cell struct {
	name  string // local.x
	expr  hclsyntax.Expression
	at    hclv2.Range
	state int // cellNew, cellBusy, cellDone
	val   cty.Value
	ok    bool // val is set; otherwise the reason has been told
}

const (
	cellNew = iota
	cellBusy
	cellDone
)

// inputs are what expressions depend on beside the blocks.
type inputs struct {
	files   fs.FS             // the site's tree, for file and templatefile
	secrets *model.Secrets    // nil: no value is known, and every name is taken to exist
	vars    map[string]string // values for variable blocks, by name
}

// evaluator gives the expressions of a tree their values.
type evaluator struct {
	*tree
	inputs  inputs
	funcs   map[string]function.Function
	others  map[string]sum // files that expressions read
	base    *scope         // what every expression of the tree may refer to
	secrets cty.Value      // what secret stands for, if its names are known

	vars     map[string]cty.Value
	failed   map[string]bool  // variables without a value
	cells    map[string]*cell // values that may need each other: local.x, site.x
	given    map[hclsyntax.Expression]*cell
	settled  bool    // all cells are worked out, and base has them
	settling []*cell // those that wait for each other right now
}

func newEvaluator(t *tree, in inputs, funcs map[string]function.Function) *evaluator {
	return &evaluator{
		tree: t, inputs: in, funcs: funcs, others: map[string]sum{}, base: &scope{ctx: &hclv2.EvalContext{}},
		vars: map[string]cty.Value{}, failed: map[string]bool{}, cells: map[string]*cell{}, given: map[hclsyntax.Expression]*cell{},
	}
}

// prepare works out all that expressions can refer to. Site has the attributes that the site
// block may have, each with its value where it is not declared.
func (ev *evaluator) prepare(site map[string]cty.Value) {
	root := &hclv2.EvalContext{Variables: map[string]cty.Value{}, Functions: maps.Clone(ev.funcs)}
	maps.Copy(root.Functions, ev.fileFunctions())
	for _, t := range ev.types {
		if t.named {
			names := map[string]cty.Value{}
			for name := range ev.named[t.name] {
				names[name] = cty.StringVal(name)
			}
			root.Variables[t.name] = cty.ObjectVal(names)
		}
	}
	ev.base = &scope{ctx: root}
	ev.variables(&scope{ctx: &hclv2.EvalContext{Functions: ev.funcs}, functionsOnly: true})
	root.Variables["var"] = cty.ObjectVal(ev.vars)
	ev.secrets = ev.secretValues()

	var order []*cell
	add := func(c *cell) {
		ev.cells[c.name] = c
		order = append(order, c)
	}
	ev.localCells(add)
	ev.siteCells(site, add)
	for _, c := range order {
		ev.settle(c)
	}
	ready := map[string]map[string]cty.Value{"local": {}, "site": {}}
	for _, c := range order {
		if c.ok {
			group, name, _ := strings.Cut(c.name, ".")
			ready[group][name] = c.val
		}
	}
	ev.base = ev.base.child(map[string]cty.Value{"local": cty.ObjectVal(ready["local"]), "site": cty.ObjectVal(ready["site"])})
	ev.settled = true
}

func (ev *evaluator) localCells(add func(*cell)) {
	for _, b := range ev.blocks["locals"] {
		for _, inner := range b.body.Blocks {
			ev.errorf(inner.TypeRange, "block in locals", "locals holds values only: write %s = { … }.", clip(inner.Type, maxQuoted))
		}
		for _, a := range sortedAttributes(b.body) {
			if first := ev.cells["local."+a.Name]; first != nil {
				ev.errorf(a.NameRange, "duplicate local "+quote(a.Name), "The first is at %s: rename or remove one of them.", diagRange(first.at))
				continue
			}
			add(&cell{name: "local." + a.Name, expr: a.Expr, at: a.NameRange})
		}
	}
}

// siteCells offers the site's plain attributes; one that is not declared is null,
// or what it is unless set.
func (ev *evaluator) siteCells(site map[string]cty.Value, add func(*cell)) {
	declared := hclsyntax.Attributes{}
	name := cty.NullVal(cty.String)
	for _, b := range ev.blocks["site"] {
		declared, name = b.body.Attributes, cty.StringVal(b.name)
	}
	add(&cell{name: "site.name", state: cellDone, val: name, ok: ev.complete || len(ev.blocks["site"]) > 0})
	for _, name := range slices.Sorted(maps.Keys(site)) {
		c := &cell{name: "site." + name, val: site[name], ok: ev.complete, state: cellDone}
		if a := declared[name]; a != nil {
			c.expr, c.at, c.state = a.Expr, a.NameRange, cellNew
			ev.given[a.Expr] = c
		}
		add(c)
	}
}

// settle works out a cell and before it all that it needs.
func (ev *evaluator) settle(c *cell) bool {
	switch {
	case c.state == cellDone:
		return c.ok
	case c.state == cellBusy:
		ev.circle(c)
		return false
	case len(ev.settling) >= maxChainOfLocals:
		ev.errorf(c.at, "locals too deep", "More than %d values wait for each other here.", maxChainOfLocals)
		return false
	}
	c.state = cellBusy
	ev.settling = append(ev.settling, c)
	c.val, c.ok = ev.compute(c.expr, ev.base)
	ev.settling = ev.settling[:len(ev.settling)-1]
	c.state = cellDone
	return c.ok
}

// circle tells that a cell needs itself.
func (ev *evaluator) circle(c *cell) {
	var way []string
	for _, s := range ev.settling {
		if s == c || len(way) > 0 {
			way = append(way, s.name)
		}
	}
	if len(way) > 12 {
		way = append(way[:12:12], "…")
	}
	ev.errorf(c.at, c.name+" needs itself", "%s → %s. Give one of them a value of its own.", strings.Join(way, " → "), c.name)
}

// variables gives every variable block its value: that of the command line, else
// its default.
func (ev *evaluator) variables(sc *scope) {
	for _, b := range ev.blocks["variable"] {
		v, ok := ev.variable(b, sc)
		if ev.vars[b.name] = v; !ok {
			delete(ev.vars, b.name)
			ev.failed[b.name] = true
		}
	}
	if !ev.complete {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(ev.inputs.vars)) {
		if ev.named["variable"][name] == nil {
			ev.add(diag.Errorf(diag.Range{}, "unknown variable "+quote(name), "--var names it, but the site has no such variable block. %s", ev.nearest(name, slices.Sorted(maps.Keys(ev.named["variable"])))))
		}
	}
}

func (ev *evaluator) variable(b *block, sc *scope) (cty.Value, bool) {
	for _, a := range sortedAttributes(b.body) {
		if a.Name != "type" && a.Name != "default" && a.Name != "description" {
			ev.errorf(a.NameRange, "unknown attribute "+quote(a.Name)+" in variable "+quote(b.name), "%s", ev.nearest(a.Name, []string{"type", "default", "description"}))
		}
	}
	for _, inner := range b.body.Blocks {
		ev.errorf(inner.TypeRange, "unknown block "+quote(inner.Type)+" in variable "+quote(b.name), "A variable has the attributes type, default and description.")
	}
	typ, typed := cty.DynamicPseudoType, b.body.Attributes["type"]
	if typed != nil {
		t, diags := typeexpr.TypeConstraint(typed.Expr)
		if ev.addDiagnostics(diags, false); diags.HasErrors() {
			return cty.NilVal, false
		}
		typ = t
	}
	def, hasDefault := cty.NilVal, b.body.Attributes["default"]
	if hasDefault != nil {
		v, ok := ev.evaluate(hasDefault.Expr, sc)
		if !ok {
			return cty.NilVal, false
		}
		converted, err := convert.Convert(v, typ)
		if err != nil {
			ev.errorf(hasDefault.Expr.Range(), "default of another type", "The type of variable %s is %s: %s.", quote(b.name), typ.FriendlyNameForConstraint(), err)
			return cty.NilVal, false
		}
		def = converted
	}
	text, set := ev.inputs.vars[b.name]
	switch {
	case set:
		if typed == nil && hasDefault != nil && def.Type().IsPrimitiveType() {
			typ = def.Type()
		}
		return ev.fromCommandLine(b, text, typ)
	case hasDefault == nil:
		ev.errorf(b.at, "variable "+quote(b.name)+" has no value", "Give it one with --var %s=VALUE, or a default.", b.name)
		return cty.NilVal, false
	default:
		return def, true
	}
}

// fromCommandLine reads the text of --var: as it stands for what takes a text, as
// an expression of the language for lists and maps.
func (ev *evaluator) fromCommandLine(b *block, text string, typ cty.Type) (cty.Value, bool) {
	v := cty.StringVal(text)
	refuse := func() (cty.Value, bool) {
		ev.errorf(b.at, "--var "+b.name+" does not fit", "Variable %s takes %s.", quote(b.name), typ.FriendlyNameForConstraint())
		return cty.NilVal, false
	}
	if !typ.IsPrimitiveType() && typ != cty.DynamicPseudoType {
		// The nesting is measured aside: its finding would show a place that is in no file.
		if aside := new(findings); !aside.checkNesting("", []byte(text), hclsyntax.LexExpression, false) {
			return refuse()
		}
		expr, diags := hclsyntax.ParseExpression([]byte(text), "--var "+b.name, hclv2.InitialPos)
		if diags.HasErrors() {
			return refuse()
		}
		parsed, diags := expr.Value(nil)
		if diags.HasErrors() {
			return refuse()
		}
		v = parsed
	}
	v, err := convert.Convert(v, typ)
	if err != nil || tooBig(v) != "" {
		return refuse()
	}
	return v, true
}
