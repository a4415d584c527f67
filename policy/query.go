package policy

import (
	"context"
	"errors"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/types"
)

// query is a compiled query over rules. Package rego of OPA has the same, but links a compiler to WebAssembly, and readers
// of bundles with their libraries.
type query struct {
	rules   *ast.Compiler
	own     ast.QueryCompiler
	body    ast.Body
	store   storage.Store // empty
	single  bool          // it has one expression
	filters bool          // it goes through several values, and holds where that expression is not false
}

// result is one way in which a query holds.
type result struct {
	vars  map[string]*ast.Term // of the query
	value *ast.Term            // of a query of one expression; nil for any other
}

// valueVar gets the value of a query of one expression.
const valueVar = ast.Var(ast.WildcardPrefix + "value")

// newQuery compiles a query over rules.
func newQuery(rules *ast.Compiler, text string) (*query, error) {
	body, err := ast.ParseBodyWithOpts(text, ast.ParserOptions{RegoVersion: ast.RegoV1, SkipRules: true, Capabilities: rules.Capabilities()})
	if err != nil {
		return nil, err
	}
	if len(body) == 0 {
		return nil, errors.New("the query is empty")
	}
	q := &query{rules: rules, store: inmem.New(), single: len(body) == 1}
	q.own = rules.QueryCompiler().WithContext(ast.NewQueryContext()).WithStageAfterID(ast.StageResolveRefs, ast.QueryCompilerStageDefinition{
		Name: "KeepValue", MetricName: "query_compile_stage_keep_value", Stage: q.keepValue,
	})
	q.body, err = q.own.Compile(body)
	return q, err
}

// keepValue rewrites a query of one expression so that valueVar gets its value, if it has one.
func (q *query) keepValue(_ ast.QueryCompiler, body ast.Body) (ast.Body, error) {
	if !q.single || body[0].Negated || body[0].IsAssignment() || body[0].IsEquality() {
		return body, nil
	}
	switch terms := body[0].Terms.(type) {
	case *ast.Term:
		q.filters = iterates(body)
		body[0].Terms = ast.Equality.Expr(terms, ast.NewTerm(valueVar)).Terms
	case []*ast.Term: // a call; one argument more takes the result
		if t := q.rules.TypeEnv.GetByValue(terms[0].Value); !types.Void(t) && types.Arity(t) == len(terms)-1 {
			q.filters = iterates(body)
			body[0].Terms = slices.Concat(terms, []*ast.Term{ast.NewTerm(valueVar)})
		}
	}
	return body, nil
}

// iterates reports whether a query may hold in several ways: it has a variable in a reference, or calls a function with
// several results.
func iterates(body ast.Body) bool {
	found := false
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.Term:
			return ast.IsComprehension(x.Value)
		case ast.Ref:
			f := ast.BuiltinMap[x.String()]
			found = found || f != nil && f.Relation || slices.ContainsFunc(x[1:], func(t *ast.Term) bool { _, is := t.Value.(ast.Var); return is })
		}
		return found
	}).Walk(body)
	return found
}

// run evaluates the query, with options.
func (q *query) run(ctx context.Context, options func(*topdown.Query)) ([]result, error) {
	txn, err := q.store.NewTransaction(ctx)
	if err != nil {
		return nil, err
	}
	defer q.store.Abort(ctx, txn)
	t := topdown.NewQuery(q.body).WithQueryCompiler(q.own).WithCompiler(q.rules).WithStore(q.store).WithTransaction(txn)
	options(t)
	var out []result
	names := q.own.RewrittenVars()
	err = t.Iter(ctx, func(found topdown.QueryResult) error {
		r := result{vars: map[string]*ast.Term{}, value: found[valueVar]}
		switch {
		case q.filters && r.value.Equal(ast.InternedTerm(false)):
			return nil
		case r.value == nil && q.single:
			r.value = ast.InternedTerm(true)
		}
		for v, t := range found {
			if name, rewritten := names[v]; rewritten {
				v = name
			}
			if !v.IsGenerated() && !v.IsWildcard() {
				r.vars[string(v)] = t
			}
		}
		out = append(out, r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// ask evaluates the query with an input. An error of a function is one of the query.
func (q *query) ask(ctx context.Context, input ast.Value, stop topdown.Cancel) ([]result, error) {
	return q.run(ctx, func(t *topdown.Query) { asks(t, input, stop) })
}

// asks gives a query its input, and what can stop it.
func asks(t *topdown.Query, input ast.Value, stop topdown.Cancel) {
	t.WithInput(ast.NewTerm(input)).WithCancel(stop).WithStrictBuiltinErrors(true).WithStackTraces(true)
}
