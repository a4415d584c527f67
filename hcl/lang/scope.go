package lang

// Evaluation of expressions. References are resolved (refs.go) before an expression is evaluated (eval.go), so
// findings come from this package and not from the library. Variables, locals and the site's attributes are
// computed in the order of their dependencies (scope.go); funcs.go is the table of functions. A value from a secret
// keeps its secretMark through all expressions.

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

// maxChainOfLocals limits how deeply locals may depend on each other.
const maxChainOfLocals = 2000

// Scope is the context of an expression: what it may refer to.
type Scope struct {
	ctx           *hclv2.EvalContext
	functionsOnly bool            // nothing but functions
	Nodes         map[string]bool // of the manifest around, and whether it is known which they are; nil outside of one
	Each          bool            // in a node with for_each
	Count         bool            // in a node with count
}

// Child returns the scope with additional values.
func (s *Scope) Child(values map[string]cty.Value) *Scope {
	c := *s
	c.ctx = s.ctx.NewChild()
	c.ctx.Variables = values
	return &c
}

// cell is a named value that other cells may depend on: local.x or site.x. It is computed on first
// use.
type cell struct {
	name  string // local.x
	expr  hclsyntax.Expression
	at    hclv2.Range
	state int // cellNew, cellBusy, cellDone
	val   cty.Value
	ok    bool // val is set; otherwise the reason has been reported
}

const (
	cellNew = iota
	cellBusy
	cellDone
)

// Inputs are the values that expressions depend on, apart from the blocks.
type Inputs struct {
	Files    fs.FS             // the site's tree, for file and templatefile
	Secrets  *model.Secrets    // nil: no value is known, and every name is taken to exist
	Vars     map[string]string // values for variable blocks, by name
	Position *Position         // says where the evaluation is; may be nil
}

// Evaluator evaluates the expressions of a tree.
type Evaluator struct {
	*Tree
	Inputs  Inputs
	funcs   map[string]function.Function
	Others  map[string]Sum // files that expressions read
	Base    *Scope         // what every expression of the tree may refer to
	secrets cty.Value      // what secret stands for, if its names are known

	vars      map[string]cty.Value
	failed    map[string]bool  // variables without a value
	cells     map[string]*cell // values that may need each other: local.x, site.x
	given     map[hclsyntax.Expression]*cell
	cellsDone bool    // all cells are worked out, and base has them
	computing []*cell // those that wait for each other right now
}

// Evaluator returns an Evaluator for a tree. Before Prepare, expressions cannot refer to
// anything.
func (tree *Tree) Evaluator(in Inputs, funcs map[string]function.Function) *Evaluator {
	return &Evaluator{
		Tree: tree, Inputs: in, funcs: funcs, Others: map[string]Sum{}, Base: &Scope{ctx: &hclv2.EvalContext{}},
		vars: map[string]cty.Value{}, failed: map[string]bool{}, cells: map[string]*cell{}, given: map[hclsyntax.Expression]*cell{},
	}
}

// Prepare computes everything that expressions can refer to. Site has the attributes of the site
// block with their defaults.
func (ev *Evaluator) Prepare(site map[string]cty.Value) {
	root := &hclv2.EvalContext{Variables: map[string]cty.Value{}, Functions: maps.Clone(ev.funcs)}
	maps.Copy(root.Functions, ev.fileFunctions())
	for _, t := range ev.Types {
		if t.Named {
			names := map[string]cty.Value{}
			for name := range ev.Named[t.Name] {
				names[name] = cty.StringVal(name)
			}
			root.Variables[t.Name] = cty.ObjectVal(names)
		}
	}
	ev.Base = &Scope{ctx: root}
	ev.variables(&Scope{ctx: &hclv2.EvalContext{Functions: ev.funcs}, functionsOnly: true})
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
		ev.computeCell(c)
	}
	ready := map[string]map[string]cty.Value{"local": {}, "site": {}}
	for _, c := range order {
		if c.ok {
			group, name, _ := strings.Cut(c.name, ".")
			ready[group][name] = c.val
		}
	}
	ev.Base = ev.Base.Child(map[string]cty.Value{"local": cty.ObjectVal(ready["local"]), "site": cty.ObjectVal(ready["site"])})
	ev.cellsDone = true
}

func (ev *Evaluator) localCells(add func(*cell)) {
	for _, b := range ev.Blocks["locals"] {
		for _, inner := range b.Body.Blocks {
			ev.Errorf(inner.TypeRange, "block in locals", "locals contains only values: write %s = { … }.", Clip(inner.Type, MaxQuoted))
		}
		for _, a := range SortedAttributes(b.Body) {
			if first := ev.cells["local."+a.Name]; first != nil {
				ev.Errorf(a.NameRange, "duplicate local "+Quote(a.Name), "The first is at %s: rename or remove one of them.", DiagRange(first.at))
				continue
			}
			add(&cell{name: "local." + a.Name, expr: a.Expr, at: a.NameRange})
		}
	}
}

// siteCells provides the site's plain attributes; one that is not declared has its default, or
// null.
func (ev *Evaluator) siteCells(site map[string]cty.Value, add func(*cell)) {
	declared := hclsyntax.Attributes{}
	name := cty.NullVal(cty.String)
	for _, b := range ev.Blocks["site"] {
		declared, name = b.Body.Attributes, cty.StringVal(b.Name)
	}
	add(&cell{name: "site.name", state: cellDone, val: name, ok: ev.Complete || len(ev.Blocks["site"]) > 0})
	for _, name := range slices.Sorted(maps.Keys(site)) {
		c := &cell{name: "site." + name, val: site[name], ok: ev.Complete, state: cellDone}
		if a := declared[name]; a != nil {
			c.expr, c.at, c.state = a.Expr, a.NameRange, cellNew
			ev.given[a.Expr] = c
		}
		add(c)
	}
}

// computeCell computes a cell, after everything that it depends on.
func (ev *Evaluator) computeCell(c *cell) bool {
	switch {
	case c.state == cellDone:
		return c.ok
	case c.state == cellBusy:
		ev.circle(c)
		return false
	case len(ev.computing) >= maxChainOfLocals:
		ev.Errorf(c.at, "locals nested too deeply", "More than %d values depend on each other here.", maxChainOfLocals)
		return false
	}
	c.state = cellBusy
	ev.computing = append(ev.computing, c)
	c.val, c.ok = ev.compute(c.expr, ev.Base)
	ev.computing = ev.computing[:len(ev.computing)-1]
	c.state = cellDone
	return c.ok
}

// circle reports that a cell refers to itself.
func (ev *Evaluator) circle(c *cell) {
	var way []string
	for _, s := range ev.computing {
		if s == c || len(way) > 0 {
			way = append(way, s.name)
		}
	}
	if len(way) > 12 {
		way = append(way[:12:12], "…")
	}
	ev.Errorf(c.at, c.name+" refers to itself", "%s → %s. Give one of them a plain value.", strings.Join(way, " → "), c.name)
}

// variables computes the value of every variable block: from the command line, else its default.
func (ev *Evaluator) variables(sc *Scope) {
	for _, b := range ev.Blocks["variable"] {
		v, ok := ev.variable(b, sc)
		if ev.vars[b.Name] = v; !ok {
			delete(ev.vars, b.Name)
			ev.failed[b.Name] = true
		}
	}
	if !ev.Complete {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(ev.Inputs.Vars)) {
		if ev.Named["variable"][name] == nil {
			ev.Add(diag.Errorf(diag.Range{}, "unknown variable "+Quote(name), "--var sets it. %s", ev.NearestOr(name, slices.Sorted(maps.Keys(ev.Named["variable"])), "The site declares no variable.")))
		}
	}
}

func (ev *Evaluator) variable(b *Block, sc *Scope) (cty.Value, bool) {
	for _, a := range SortedAttributes(b.Body) {
		if a.Name != "type" && a.Name != "default" && a.Name != "description" {
			ev.Errorf(a.NameRange, "unknown attribute "+Quote(a.Name)+" in variable "+Quote(b.Name), "%s", ev.Nearest(a.Name, []string{"type", "default", "description"}))
		}
	}
	for _, inner := range b.Body.Blocks {
		ev.Errorf(inner.TypeRange, "unknown block "+Quote(inner.Type)+" in variable "+Quote(b.Name), "A variable has the attributes type, default and description.")
	}
	typ, typed := cty.DynamicPseudoType, b.Body.Attributes["type"]
	if typed != nil {
		t, diags := typeexpr.TypeConstraint(typed.Expr)
		if ev.AddDiagnostics(diags, false); diags.HasErrors() {
			return cty.NilVal, false
		}
		typ = t
	}
	def, hasDefault := cty.NilVal, b.Body.Attributes["default"]
	if hasDefault != nil {
		v, ok := ev.Evaluate(hasDefault.Expr, sc)
		if !ok {
			return cty.NilVal, false
		}
		converted, err := convert.Convert(v, typ)
		if err != nil {
			ev.Errorf(hasDefault.Expr.Range(), "default of the wrong type", "The type of variable %s is %s: %s.", Quote(b.Name), typ.FriendlyNameForConstraint(), err)
			return cty.NilVal, false
		}
		def = converted
	}
	text, set := ev.Inputs.Vars[b.Name]
	switch {
	case set:
		if typed == nil && hasDefault != nil && def.Type().IsPrimitiveType() {
			typ = def.Type()
		}
		return ev.fromCommandLine(b, text, typ)
	case hasDefault == nil:
		ev.Errorf(b.At, "variable "+Quote(b.Name)+" has no value", "Give it one with --var %s=VALUE, or a default.", b.Name)
		return cty.NilVal, false
	default:
		return def, true
	}
}

// fromCommandLine reads the text of --var: literally for strings, numbers and booleans, as an
// expression for lists and maps.
func (ev *Evaluator) fromCommandLine(b *Block, text string, typ cty.Type) (cty.Value, bool) {
	v := cty.StringVal(text)
	refuse := func() (cty.Value, bool) {
		ev.Errorf(b.At, "--var "+b.Name+" has the wrong type", "Variable %s takes %s.", Quote(b.Name), typ.FriendlyNameForConstraint())
		return cty.NilVal, false
	}
	if !typ.IsPrimitiveType() && typ != cty.DynamicPseudoType {
		// The nesting is checked separately: its finding would have a position that is in no file.
		if aside := new(Findings); !aside.CheckNesting("", []byte(text), hclsyntax.LexExpression, false) {
			return refuse()
		}
		expr, diags := hclsyntax.ParseExpression([]byte(text), "--var "+b.Name, hclv2.InitialPos)
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
