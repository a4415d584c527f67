package policy

import (
	"context"
	"errors"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// maxAnswer bounds what Eval gives, in bytes of text.
const maxAnswer = 16 << 20

// ErrUndefined is the answer to a query that holds for nothing.
var ErrUndefined = errors.New("undefined")

// Eval evaluates a query over all rules with an input such as that of Input, within the limits of every evaluation.
// A query of one expression without variables returns its value; any other the list of all results, each an object
// of its variables. Sets become lists.
func (s *Set) Eval(ctx context.Context, query string, input any) (any, error) {
	if !s.works() {
		why := s.whyNot()[0]
		return nil, fmt.Errorf("evaluate %s: %s", query, why)
	}
	doc, err := ast.InterfaceToValue(input)
	if err != nil {
		return nil, fmt.Errorf("evaluate %s: read the input: %w", query, err)
	}
	rs, err := within(ctx, &s.limits, func(ctx context.Context, stop topdown.Cancel) (rego.ResultSet, error) {
		q, err := s.prepare(ctx, query)
		if err != nil {
			return nil, err
		}
		return q.Eval(ctx, rego.EvalParsedInput(doc), rego.EvalExternalCancel(stop))
	})
	if err != nil {
		return nil, fmt.Errorf("evaluate %s: %w", query, err)
	}
	answer, err := answerOf(rs)
	if err != nil {
		return nil, fmt.Errorf("evaluate %s: %w", query, err)
	}
	return answer, nil
}

func answerOf(rs rego.ResultSet) (any, error) {
	size := 0
	value := func(v any) (any, error) {
		t, ok := v.(*ast.Term)
		if !ok {
			return v, nil
		}
		if size += written(t, maxAnswer-size); size > maxAnswer {
			return nil, fmt.Errorf("the answer is larger than %d MiB", maxAnswer>>20)
		}
		return ast.JSON(t.Value)
	}
	if len(rs) == 0 {
		return nil, ErrUndefined
	}
	if len(rs) == 1 && len(rs[0].Bindings) == 0 && len(rs[0].Expressions) == 1 {
		return value(rs[0].Expressions[0].Value)
	}
	list := make([]any, 0, len(rs))
	for _, r := range rs {
		one := map[string]any{}
		for name, v := range r.Bindings {
			v, err := value(v)
			if err != nil {
				return nil, err
			}
			one[name] = v
		}
		list = append(list, one)
	}
	return list, nil
}
