package policy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/policy"
)

// Tests in unusual forms.
const oddTests = `package homestak.odd_test

test_twice if true

test_twice if 1 == 2

test_twice if true

a.test_inside if true

a.b.todo_test_later if false

test_nested[group][name] if {
	some group, n in {"small": {"a": 1, "b": 12}, "large": {"c": 30}}
	some name, v in n
	v < 10
}

test_numbers[n] if {
	some n in numbers.range(1, 3)
	n != 2
}

test_named["one"] if true

test_named["two"] if 1 == 2

test_by_field[tc.note] if {
	some tc in [
		{"note": "sum", "in": [1, 2], "want": 3},
		{"note": "wrong", "in": [1], "want": 2},
	]
	got := sum(tc["in"])
	print("got", got)
	got == tc.want
}

test_marked[name] if {
	some name in ["x", "y"]
	internal.test_case([name])
	name == "x"
}

test_every if {
	every x in [1, 2] { x > 0 }
}

test_value := 1

test_list := [1]

test_set contains "x" if true

test_object := {"fine": true, "bad": false, "inner": {"deep": 1}}

not_a_test if 1 == 2

test_f(x) := x

test_with_default := false

limit := x if {
	x := 1
	x > 2
} else := 3 if {
	[y | some y in [1, 2]; y > 1] == [2]
}

test_else if limit == 3

test_too_large if to_number("x") == 1
`

// unreached is a rule of which no test reaches the last line.
const unreached = `package homestak.site

warn contains "two" if {
	input.site.postures == {}
	some x in input.site.nodes
	x == 1
}
`

// TestTestsGoAsInOPA runs tests by ours and by OPA's own runner, and compares how each of them and of their cases
// went, what they printed, and which lines they reached.
func TestTestsGoAsInOPA(t *testing.T) {
	files := policy.Shipped()
	files["policy/x_test.rego"], files["policy/odd_test.rego"], files["policy/x.rego"] = siteTests, oddTests, unreached
	s, found := policy.Compile(t.Context(), policy.Options{Site: tree("policy/x_test.rego", siteTests, "policy/odd_test.rego", oddTests, "policy/x.rego", unreached), Limit: time.Minute})
	require.Empty(t, found)
	out := &bytes.Buffer{}
	tally, err := s.Test(t.Context(), out, policy.TestOptions{Coverage: true})
	require.NoError(t, err)
	var ours []string
	for _, r := range tally.Tests {
		ours = append(ours, strings.TrimSpace(fmt.Sprintf("%s:%d %s %s %s", r.File, r.Line, r.Name, r.Outcome, strings.Join(r.Failed, " "))))
	}

	modules, rules := map[string]*ast.Module{}, map[string]*ast.Module{}
	for name, text := range files {
		if !strings.HasPrefix(name, "policy/") {
			name = "shipped/" + name
		}
		m, err := ast.ParseModuleWithOpts(name, text, ast.ParserOptions{ProcessAnnotation: true})
		require.NoError(t, err)
		if modules[name] = m; !strings.HasSuffix(name, "_test.rego") {
			rules[name] = m
		}
	}
	covered := cover.New()
	compiler := ast.NewCompiler().WithEnablePrintStatements(true)
	results, err := tester.NewRunner().SetCompiler(compiler).SetModules(modules).SetParallel(1).SetTimeout(time.Minute).SetCoverageQueryTracer(covered).SetCoverageRuns(nil).RunTests(t.Context(), nil)
	require.NoError(t, err)
	var theirs []string
	for r := range results {
		outcome := "passed"
		switch {
		case r.Skip:
			outcome = "skipped"
		case r.Error != nil:
			outcome = "error"
		case r.Fail:
			outcome = "failed"
		}
		line := fmt.Sprintf("%s:%d %s.%s %s", r.Location.File, r.Location.Row, r.Package, r.Name, outcome)
		for name, c := range r.SubResults.Iter {
			if c.Fail && len(c.SubResults) == 0 {
				line += " " + strings.Join(name, ", ")
			}
		}
		theirs = append(theirs, line)
		for line := range strings.Lines(string(r.Output)) {
			require.Equal(t, !r.Pass(), strings.Contains(out.String(), "  "+line), line)
		}
	}
	require.ElementsMatch(t, theirs, ours)
	report := covered.Report(rules)
	require.InDelta(t, report.Coverage, tally.Coverage, 1e-9)
	var missed []string
	for name, file := range report.Files {
		for _, r := range file.NotCovered {
			missed = append(missed, fmt.Sprintf("%s:%d-%d", name, r.Start.Row, r.End.Row))
		}
	}
	require.ElementsMatch(t, missed, tally.Missed)
	require.NotEmpty(t, missed)
}

// TestQueriesGoAsInOPA evaluates queries by ours and by OPA's package rego.
func TestQueriesGoAsInOPA(t *testing.T) {
	s := set(t)
	input := map[string]any{"list": []any{1, 2, 3}, "no": false, "none": nil, "o": map[string]any{"a": []any{"x", "y"}, "b": []any{}}}
	for _, text := range []string{
		"1", "false", "null", "input.no", "input.none", "input.nosuch", "not input.no", "not input.list", "input.list", "input.list[_]", "input.list[i]",
		"input.list[_] == 2", "input.list[_] == 9", "input.list[i] > 1", "input.o[k][i]", "input.o[k]", "input.o.a[_]", "1 == 1", "1 == 2", "x := 1", "x = input.list[0]", "x := input.list[_]; x > 1",
		"count(input.list)", "count(input.list) > 2", "count(input.list, n)", "input.list; input.o", "input.no; 1", "1; 2", "some x in input.list", "some i, x in input.list; x > 2",
		"[x | some x in input.list; x > 1]", "{k: v | some k, v in input.o}", "every x in input.list { x > 0 }", "walk(input.o, [p, v])", "sum([x | x := input.list[_]])",
		"{1, 2}", "{\"a\": input.list[_]}", "input.list[_] = x", "input.no with input.no as true", "data.homestak.site.deny", "data.homestak.nosuch", "data.homestak[p].deny", "_ = input.list", "input",
		"input.list[", "x", "nosuch(1)", "time.now_ns()", "to_number(\"x\")", "print(1)",
	} {
		theirs, err := rego.New(rego.Compiler(policy.Compiler(s)), rego.Capabilities(policy.Compiler(s).Capabilities()), rego.Query(text), rego.Input(input), rego.StrictBuiltinErrors(true), rego.StackTraces(true)).Eval(t.Context())
		want := answer(theirs)
		if err != nil {
			want = "evaluate " + text + ": " + err.Error()
		}
		got := ""
		if v, err := s.Eval(t.Context(), text, input, nil); err != nil {
			got = err.Error()
		} else {
			b, err := json.Marshal(v)
			require.NoError(t, err)
			got = string(b)
		}
		if strings.HasSuffix(got, policy.ErrUndefined.Error()) {
			got = "undefined"
		}
		require.ElementsMatch(t, strings.Split(want, "\n"), strings.Split(got, "\n"), text) // errors come in any order
	}
}

// answer is what Eval says that it makes of results.
func answer(rs rego.ResultSet) string {
	if len(rs) == 0 {
		return "undefined"
	}
	var v any
	if len(rs) == 1 && len(rs[0].Bindings) == 0 && len(rs[0].Expressions) == 1 {
		v = rs[0].Expressions[0].Value
	} else {
		list := []any{}
		for _, r := range rs {
			list = append(list, map[string]any(r.Bindings))
		}
		v = list
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
