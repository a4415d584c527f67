package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// testRun is a test, a rule whose name begins with test_, and its result. A rule with a name behind that of the test, as
// test_sum[name], has a case for each name.
type testRun struct {
	rule    *ast.Rule
	name    ast.Ref // within its package, without the names of cases
	skipped bool    // its name begins with todo_test_
	failed  bool
	err     error // it could not be evaluated
	cases   cases
	output  bytes.Buffer // of print
}

// testOf returns the test that a rule is, without a result; nil if it is none.
func testOf(rule *ast.Rule) *testRun {
	ref := rule.Head.Ref().GroundPrefix()
	for i, t := range ref {
		name := ""
		switch v := t.Value.(type) {
		case ast.Var:
			name = string(v)
		case ast.String:
			name = string(v)
		}
		if skipped := strings.HasPrefix(name, "todo_test_"); skipped || strings.HasPrefix(name, "test_") {
			return &testRun{rule: rule, name: slices.Clone(ref[:i+1]), skipped: skipped, cases: cases{}}
		}
	}
	return nil
}

// ref is the reference to the rule, such as data.homestak.site_test.test_x.
func (t *testRun) ref() ast.Ref { return t.rule.Module.Package.Path.Extend(t.name) }

func (t *testRun) fullName() string {
	return t.rule.Module.Package.Path.String() + "." + t.name.String()
}

// tail are the names of its cases in the head of the rule.
func (t *testRun) tail() ast.Ref { return t.rule.Head.Ref()[len(t.name):] }

// evaluate runs the test. Errors of functions make an expression undefined, as in opa test.
func (t *testRun) evaluate(ctx context.Context, c *ast.Compiler, limit time.Duration, reached *coverage) {
	if t.skipped {
		return
	}
	ctx, end := context.WithTimeout(ctx, limit)
	defer end()
	stop := topdown.NewCancel()
	defer context.AfterFunc(ctx, stop.Cancel)()
	var marks caseTracer
	q, err := newQuery(c, t.ref().String())
	var found []result
	if err == nil {
		found, err = q.run(ctx, func(o *topdown.Query) {
			o.WithCancel(stop).WithPrintHook(topdown.NewPrintHook(&t.output)).WithQueryTracer(&marks)
			if reached != nil {
				o.WithQueryTracer(reached)
			}
		})
	}
	switch {
	case err != nil:
		t.err = err
	case len(found) == 0:
		t.failed = true
	case t.rule.Head.DocKind() == ast.PartialObjectDoc:
		t.failed = t.cases.take(found[0].value)
		for _, names := range marks.names {
			t.failed = t.cases.mark(names) || t.failed
		}
	default:
		t.failed = !found[0].value.Equal(ast.InternedTerm(true))
	}
}

// cases are the results of the cases of a test, by name; there may be cases within a case.
type cases map[string]*testCase

type testCase struct {
	fullName string // with those around it, for people
	failed   bool
	cases    cases
}

// take adds what the rule says of its cases, and reports whether one failed.
func (cs cases) take(value *ast.Term) (failed bool) {
	object, ok := value.Value.(ast.Object)
	if !ok {
		return false
	}
	object.Foreach(func(name, value *ast.Term) {
		c := &testCase{failed: !value.Equal(ast.InternedTerm(true)), cases: cases{}}
		if _, ok := value.Value.(ast.Object); ok {
			c.failed = c.cases.take(value)
		}
		cs[caseName(name)] = c
		failed = failed || c.failed
	})
	return failed
}

// mark adds a case that was begun, as a failed one unless the rule says more of it, and reports whether it failed.
func (cs cases) mark(names []string) bool {
	if len(names) == 0 {
		return true
	}
	c := cs[names[0]]
	if c == nil {
		c = &testCase{failed: true, cases: cases{}}
		cs[names[0]] = c
	}
	if len(names) > 1 {
		failed := c.cases.mark(names[1:])
		c.failed = c.failed || failed
		return failed
	}
	return c.failed
}

// all lists the cases, each before those within it.
func (cs cases) all() []*testCase { return cs.within("") }

func (cs cases) within(name string) []*testCase {
	var out []*testCase
	for _, key := range sortedKeys(cs) {
		c := cs[key]
		c.fullName = name + diag.Line(key)
		out = append(append(out, c), c.cases.within(c.fullName+", ")...)
	}
	return out
}

// caseName is a term as the name of a case: a text as it is, all else as JSON.
func caseName(t *ast.Term) string {
	if s, ok := t.Value.(ast.String); ok {
		return string(s)
	}
	v, err := ast.JSON(t.Value)
	if err != nil {
		return "INVALID"
	}
	text, err := json.Marshal(v)
	if err != nil {
		return "INVALID"
	}
	return string(text)
}

// caseTracer notes the names of the cases that were begun.
type caseTracer struct{ names [][]string }

// Enabled implements topdown.QueryTracer.
func (*caseTracer) Enabled() bool { return true }

// Config implements topdown.QueryTracer.
func (*caseTracer) Config() topdown.TraceConfig { return topdown.TraceConfig{} }

// TraceEvent implements topdown.QueryTracer.
func (t *caseTracer) TraceEvent(e topdown.Event) {
	if e.Op != topdown.TestCaseOp {
		return
	}
	if call, ok := e.Node.(*ast.Expr); ok {
		if list, ok := call.Operand(0).Value.(*ast.Array); ok {
			var names []string
			list.Foreach(func(name *ast.Term) { names = append(names, caseName(name)) })
			t.names = append(t.names, names)
		}
	}
}

// numberTests lets the compiler give a number to each further test of the same name, so that they are tests of their own.
func numberTests(c *ast.Compiler) {
	number := func(c *ast.Compiler) *ast.Error {
		count := map[string]int{}
		for _, name := range sortedKeys(c.Modules) {
			for _, rule := range c.Modules[name].Rules {
				t := testOf(rule)
				if t == nil || t.skipped {
					continue
				}
				key, last, tail := t.ref().String(), len(t.name)-1, t.tail()
				if n := count[key]; n > 0 {
					if v, ok := t.name[last].Value.(ast.Var); ok {
						t.name[last] = ast.VarTerm(fmt.Sprintf("%s#%02d", v, n))
					} else {
						t.name[last] = ast.StringTerm(fmt.Sprintf("%s#%02d", string(t.name[last].Value.(ast.String)), n))
					}
					rule.Head.SetRef(append(t.name, tail...))
				}
				count[key]++
			}
		}
		return nil
	}
	c.WithStageAfterID(ast.StageRewriteRuleHeadRefs, ast.CompilerStageDefinition{Name: "NumberTests", MetricName: "number_tests", Stage: number})
}

// markCases lets the compiler add a call of internal.test_case to each test with cases, as early as the names of the case
// are known: then a case counts also if the rest of the rule does not hold for it.
func markCases(c *ast.Compiler) {
	mark := func(c *ast.Compiler) *ast.Error {
		for _, m := range c.Modules {
			for _, rule := range m.Rules {
				t := testOf(rule)
				if t == nil || t.skipped || len(t.tail()) == 0 || marksCases(rule.Body) {
					continue
				}
				at := 0
				for _, name := range t.tail() {
					rule.Body = hoist(rule.Body, name)
				}
				for _, name := range t.tail() {
					if v, ok := name.Value.(ast.Var); ok {
						at = max(at, 1+slices.IndexFunc(rule.Body, func(e *ast.Expr) bool { return mentions(e, v) }))
					}
				}
				call := ast.NewExpr([]*ast.Term{ast.NewTerm(ast.InternalTestCase.Ref()), ast.NewTerm(ast.NewArray(t.tail()...))})
				rule.Body = slices.Insert(rule.Body, at, call)
			}
		}
		return nil
	}
	c.WithStageAfterID(ast.StageRewriteLocalVars, ast.CompilerStageDefinition{Name: "MarkCases", MetricName: "mark_cases", Stage: mark})
}

// marksCases reports whether the author of a rule marked its cases.
func marksCases(body ast.Body) bool {
	found := false
	ast.WalkExprs(body, func(e *ast.Expr) bool {
		found = found || e.IsCall() && e.Operator().Equal(ast.InternalTestCase.Ref())
		return found
	})
	return found
}

// hoist moves the expression by which the compiler gives a variable of the head its value: it is at the end, and
// moves up to where the variables in it are known. What the author wrote stays where it is.
func hoist(body ast.Body, name *ast.Term) ast.Body {
	for i, e := range slices.Backward(body) {
		if !e.Generated || !e.IsEquality() && !e.IsAssignment() || !e.Operand(0).Equal(name) {
			continue
		}
		to := 0
		ast.WalkVars(e.Operand(1), func(v ast.Var) bool {
			if strings.HasPrefix(string(v), ast.LocalVarPrefix) {
				to = max(to, 1+slices.IndexFunc(body[:i], func(e *ast.Expr) bool { return mentions(e, v) }))
			}
			return false
		})
		return slices.Insert(slices.Delete(body, i, i+1), to, e)
	}
	return body
}

// mentions reports whether a variable is in an expression.
func mentions(e *ast.Expr, v ast.Var) bool {
	found := false
	ast.WalkVars(e, func(has ast.Var) bool {
		found = found || has == v
		return found
	})
	return found
}
