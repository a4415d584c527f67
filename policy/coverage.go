package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// coverage notes which parts of the rules an evaluation reached.
type coverage struct{ reached map[string]map[span]bool } // by file

// span is a part of a file, from a place to another one.
type span struct{ from, to place }

type place struct{ row, col int }

func newCoverage() *coverage { return &coverage{map[string]map[span]bool{}} }

func spanOf(l *ast.Location) span {
	row, col := l.End()
	return span{place{l.Row, l.Col}, place{row, col}}
}

// compare orders places.
func (p place) compare(o place) int { return cmp.Or(p.row-o.row, p.col-o.col) }

// Enabled implements topdown.QueryTracer.
func (*coverage) Enabled() bool { return true }

// Config implements topdown.QueryTracer.
func (*coverage) Config() topdown.TraceConfig { return topdown.TraceConfig{} }

// TraceEvent implements topdown.QueryTracer. The head of a rule is reached when its body holds.
func (c *coverage) TraceEvent(e topdown.Event) {
	switch node := e.Node.(type) {
	case *ast.Rule:
		if e.Op == topdown.ExitOp {
			c.add(node.Head.Location)
		}
	case *ast.Expr:
		if e.Op == topdown.EvalOp {
			c.add(node.Location)
		}
	}
}

func (c *coverage) add(l *ast.Location) {
	if !l.HasFile() {
		return
	}
	if c.reached[l.File] == nil {
		c.reached[l.File] = map[span]bool{}
	}
	c.reached[l.File][spanOf(l)] = true
}

// isMissed reports whether a location has a file, and neither it nor anything around it was reached.
func (c *coverage) isMissed(l *ast.Location) bool {
	if !l.HasFile() {
		return false
	}
	is := spanOf(l)
	for s := range c.reached[l.File] {
		if s.from.compare(is.from) <= 0 && is.to.compare(s.to) <= 0 {
			return false
		}
	}
	return true
}

// of returns how many percent of the lines of rules were reached, and the parts that were not, as FILE:FIRST-LAST.
// What tests do not run of themselves is left out.
func (c *coverage) of(modules map[string]*ast.Module) (percent float64, missed []string) {
	yes, no := 0, 0
	for _, name := range sortedKeys(modules) {
		if strings.HasSuffix(name, testEnding) {
			yes += rows(c.reached[name])
			continue
		}
		left := map[span]bool{}
		note := func(l *ast.Location) {
			if c.isMissed(l) {
				left[spanOf(l)] = true
			}
		}
		ast.WalkRules(modules[name], func(r *ast.Rule) bool {
			note(r.Head.Location)
			return false
		})
		ast.WalkExprs(modules[name], func(e *ast.Expr) bool {
			if _, declares := e.Terms.(*ast.SomeDecl); !declares {
				note(e.Location)
			}
			return false
		})
		yes, no = yes+rows(c.reached[name]), no+rows(left)
		for _, s := range slices.SortedFunc(maps.Keys(left), func(a, b span) int { return cmp.Or(a.from.compare(b.from), a.to.compare(b.to)) }) {
			missed = append(missed, fmt.Sprintf("%s:%d-%d", name, s.from.row, s.to.row))
		}
	}
	if yes+no == 0 {
		return 0, missed
	}
	return 100 * float64(yes) / float64(yes+no), missed
}

// rows counts the lines of spans.
func rows(spans map[span]bool) int {
	all := map[int]bool{}
	for s := range spans {
		for row := s.from.row; row <= s.to.row; row++ {
			all[row] = true
		}
	}
	return len(all)
}
