package policy

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// maxAnswer bounds what Eval gives, in bytes of text.
const maxAnswer = 16 << 20

// ErrUndefined is the answer to a query that holds for nothing.
var ErrUndefined = errors.New("undefined")

// Eval evaluates a query over all rules with an input such as that of Input, within the limits of every evaluation.
// A query of one expression without variables returns its value; any other the list of all results, each an object
// of its variables. Sets become lists.
// With explain it also writes there how each expression was evaluated.
func (s *Set) Eval(ctx context.Context, query string, input any, explain io.Writer) (any, error) {
	s = s.complete()
	if !s.works() {
		why := s.whyNot()[0]
		return nil, fmt.Errorf("evaluate %s: %s", query, why)
	}
	doc, err := ast.InterfaceToValue(input)
	if err != nil {
		return nil, fmt.Errorf("evaluate %s: read the input: %w", query, err)
	}
	trace := topdown.NewBufferTracer()
	rs, err := within(ctx, &s.limits, func(ctx context.Context, stop topdown.Cancel) ([]result, error) {
		q, err := newQuery(s.compiler, query)
		if err != nil {
			return nil, err
		}
		return q.run(ctx, func(t *topdown.Query) {
			if asks(t, doc, stop); explain != nil {
				t.WithQueryTracer(trace)
			}
		})
	})
	if late := new(stopped); explain != nil && !errors.As(err, &late) { // one that was stopped may still write to the trace
		topdown.PrettyTrace(explain, *trace)
	}
	if err != nil {
		return nil, fmt.Errorf("evaluate %s: %w", query, err)
	}
	answer, err := answerOf(rs)
	if err != nil {
		return nil, fmt.Errorf("evaluate %s: %w", query, err)
	}
	return answer, nil
}

func answerOf(found []result) (any, error) {
	size := 0
	value := func(t *ast.Term) (any, error) {
		if size += written(t, maxAnswer-size); size > maxAnswer {
			return nil, fmt.Errorf("the answer is larger than %d MiB", maxAnswer>>20)
		}
		return ast.JSON(t.Value)
	}
	if len(found) == 0 {
		return nil, ErrUndefined
	}
	if len(found) == 1 && len(found[0].vars) == 0 && found[0].value != nil {
		return value(found[0].value)
	}
	list := make([]any, 0, len(found))
	for _, r := range found {
		one := map[string]any{}
		for name, t := range r.vars {
			v, err := value(t)
			if err != nil {
				return nil, err
			}
			one[name] = v
		}
		list = append(list, one)
	}
	return list, nil
}
