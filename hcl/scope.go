package hcl

import (
	"maps"
	"reflect"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// maxChainOfLocals bounds how many locals may wait for each other at once.
const maxChainOfLocals = 2000

// scope is where an expression stands, and so what it may refer to.
type scope struct {
	ctx   *hclv2.EvalContext
	bare  bool                 // nothing but functions
	nodes map[string]*nodeDecl // of the manifest around; nil outside of one
	each  bool                 // in a node with for_each
	count bool                 // in a node with count
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

// prepare works out all that expressions can refer to.
func (l *load) prepare() {
	root := &hclv2.EvalContext{Variables: map[string]cty.Value{}, Functions: maps.Clone(l.funcs)}
	maps.Copy(root.Functions, l.fileFunctions())
	for _, t := range l.types {
		if t.named {
			names := map[string]cty.Value{}
			for name := range l.named[t.name] {
				names[name] = cty.StringVal(name)
			}
			root.Variables[t.name] = cty.ObjectVal(names)
		}
	}
	l.base = &scope{ctx: root}
	l.variables(&scope{ctx: &hclv2.EvalContext{Functions: l.funcs}, bare: true})
	root.Variables["var"] = cty.ObjectVal(l.vars)
	l.secrets = l.secretValues()

	l.cells, l.given = map[string]*cell{}, map[hclsyntax.Expression]*cell{}
	var order []*cell
	add := func(c *cell) {
		l.cells[c.name] = c
		order = append(order, c)
	}
	l.localCells(add)
	l.siteCells(add)
	for _, c := range order {
		l.settle(c)
	}
	ready := map[string]map[string]cty.Value{"local": {}, "site": {}}
	for _, c := range order {
		if c.ok {
			group, name, _ := strings.Cut(c.name, ".")
			ready[group][name] = c.val
		}
	}
	l.base = l.base.child(map[string]cty.Value{"local": cty.ObjectVal(ready["local"]), "site": cty.ObjectVal(ready["site"])})
	l.settled = true
}

func (l *load) localCells(add func(*cell)) {
	for _, b := range l.blocks["locals"] {
		for _, inner := range b.body.Blocks {
			l.errorf(inner.TypeRange, "block in locals", "locals holds values only: write %s = { … }.", clip(inner.Type, maxQuoted))
		}
		for _, a := range sortedAttributes(b.body) {
			if first := l.cells["local."+a.Name]; first != nil {
				l.errorf(a.NameRange, "duplicate local "+quote(a.Name), "The first is at %s: rename or remove one of them.", place(first.at))
				continue
			}
			add(&cell{name: "local." + a.Name, expr: a.Expr, at: a.NameRange})
		}
	}
}

// siteCells offers the site's plain attributes; one that is not declared is null,
// or what it is unless set.
func (l *load) siteCells(add func(*cell)) {
	declared := hclsyntax.Attributes{}
	name := cty.NullVal(cty.String)
	for _, b := range l.blocks["site"] {
		declared, name = b.body.Attributes, cty.StringVal(b.name)
	}
	add(&cell{name: "site.name", state: cellDone, val: name, ok: l.whole || len(l.blocks["site"]) > 0})
	for _, f := range l.schema(reflect.TypeFor[model.Site]()).attrs {
		c := &cell{name: "site." + f.Name, val: cty.NullVal(cty.DynamicPseudoType), ok: l.whole, state: cellDone}
		if def, ok := valueRules["site."+f.Name].def.(string); ok {
			c.val = cty.StringVal(def)
		}
		if a := declared[f.Name]; a != nil {
			c.expr, c.at, c.state = a.Expr, a.NameRange, cellNew
			l.given[a.Expr] = c
		}
		add(c)
	}
}

// settle works out a cell and before it all that it needs.
func (l *load) settle(c *cell) bool {
	switch {
	case c.state == cellDone:
		return c.ok
	case c.state == cellBusy:
		l.circle(c)
		return false
	case len(l.settling) >= maxChainOfLocals:
		l.errorf(c.at, "locals too deep", "More than %d values wait for each other here.", maxChainOfLocals)
		return false
	}
	c.state = cellBusy
	l.settling = append(l.settling, c)
	c.val, c.ok = l.work(c.expr, l.base)
	l.settling = l.settling[:len(l.settling)-1]
	c.state = cellDone
	return c.ok
}

// circle tells that a cell needs itself.
func (l *load) circle(c *cell) {
	var way []string
	for _, s := range l.settling {
		if s == c || len(way) > 0 {
			way = append(way, s.name)
		}
	}
	if len(way) > 12 {
		way = append(way[:12:12], "…")
	}
	l.errorf(c.at, c.name+" needs itself", "%s → %s. Give one of them a value of its own.", strings.Join(way, " → "), c.name)
}

// variables gives every variable block its value: that of the command line, else
// its default.
func (l *load) variables(sc *scope) {
	l.vars, l.failed = map[string]cty.Value{}, map[string]bool{}
	for _, b := range l.blocks["variable"] {
		v, ok := l.variable(b, sc)
		if l.vars[b.name] = v; !ok {
			delete(l.vars, b.name)
			l.failed[b.name] = true
		}
	}
	if !l.whole {
		return
	}
	for _, name := range sortedKeys(l.opts.Vars) {
		if l.named["variable"][name] == nil {
			l.add(diag.Errorf(diag.Range{}, "unknown variable "+quote(name), "--var names it, but the site has no such variable block. %s", l.nearest(name, sortedKeys(l.named["variable"]))))
		}
	}
}

func (l *load) variable(b *block, sc *scope) (cty.Value, bool) {
	for _, a := range sortedAttributes(b.body) {
		if a.Name != "type" && a.Name != "default" && a.Name != "description" {
			l.errorf(a.NameRange, "unknown attribute "+quote(a.Name)+" in variable "+quote(b.name), "%s", l.nearest(a.Name, []string{"type", "default", "description"}))
		}
	}
	for _, inner := range b.body.Blocks {
		l.errorf(inner.TypeRange, "unknown block "+quote(inner.Type)+" in variable "+quote(b.name), "A variable has the attributes type, default and description.")
	}
	typ, typed := cty.DynamicPseudoType, b.body.Attributes["type"]
	if typed != nil {
		t, diags := typeexpr.TypeConstraint(typed.Expr)
		if l.library(diags, false); diags.HasErrors() {
			return cty.NilVal, false
		}
		typ = t
	}
	def, hasDefault := cty.NilVal, b.body.Attributes["default"]
	if hasDefault != nil {
		v, ok := l.evaluate(hasDefault.Expr, sc)
		if !ok {
			return cty.NilVal, false
		}
		converted, err := convert.Convert(v, typ)
		if err != nil {
			l.errorf(hasDefault.Expr.Range(), "default of another type", "The type of variable %s is %s: %s.", quote(b.name), typ.FriendlyNameForConstraint(), err)
			return cty.NilVal, false
		}
		def = converted
	}
	text, set := l.opts.Vars[b.name]
	switch {
	case set:
		if typed == nil && hasDefault != nil && def.Type().IsPrimitiveType() {
			typ = def.Type()
		}
		return l.fromCommandLine(b, text, typ)
	case hasDefault == nil:
		l.errorf(b.at, "variable "+quote(b.name)+" has no value", "Give it one with --var %s=VALUE, or a default.", b.name)
		return cty.NilVal, false
	default:
		return def, true
	}
}

// fromCommandLine reads the text of --var: as it stands for what takes a text, as
// an expression of the language for lists and maps.
func (l *load) fromCommandLine(b *block, text string, typ cty.Type) (cty.Value, bool) {
	v := cty.StringVal(text)
	refuse := func() (cty.Value, bool) {
		l.errorf(b.at, "--var "+b.name+" does not fit", "Variable %s takes %s.", quote(b.name), typ.FriendlyNameForConstraint())
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
