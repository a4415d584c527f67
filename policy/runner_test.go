package policy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/policy"
)

// siteTests are tests that end in every way there is.
const siteTests = `package homestak.site_test

import data.homestak.site

test_passes if count(site.deny) == 0 with input as {"site": {"postures": {}, "nodes": {}}}

test_fails if 1 == 2

test_is_undefined if input.nosuch.field

todo_test_waits if 1 == 2

test_cases[name] if {
	some name, n in {"one": 1, "two": 2, "three": 3}
	n < 3
}

test_prints if {
	print("seen:", 42)
	1 == 2
}

test_error_of_a_function if to_number("x") == 1

test_contradiction if f(1) == 1

f(_) := 1

f(x) := 2 if x > 0
`

func TestTheShippedRulesPassTheirTests(t *testing.T) {
	out := &bytes.Buffer{}
	tally, err := set(t).Test(t.Context(), out, policy.TestOptions{Coverage: true})
	require.NoError(t, err)
	require.Empty(t, out.String())
	require.True(t, tally.OK())
	require.Positive(t, tally.Passed)
	require.Zero(t, tally.Skipped)
	require.Empty(t, tally.Missed, "every line of a shipped rule is reached by its tests")
	require.Equal(t, 100.0, tally.Coverage)
}

func TestSiteTestsAreRun(t *testing.T) {
	s, found := policy.Compile(t.Context(), policy.Options{Site: tree("policy/x_test.rego", siteTests)})
	require.Empty(t, found, "tests are no policies")
	out := &bytes.Buffer{}
	tally, err := s.Test(t.Context(), out, policy.TestOptions{Match: regexp.MustCompile(`^data\.homestak\.site_test\.(todo_)?test_(passes|fails|is_|waits|cases|prints|error|contra)`)})
	require.NoError(t, err)
	require.Equal(t, []string{
		"5 test_passes: passed", "7 test_fails: failed", "9 test_is_undefined: failed", "11 todo_test_waits: skipped",
		"13 test_cases: failed [three]", "18 test_prints: failed", "23 test_error_of_a_function: failed",
		"25 test_contradiction: error policy/x_test.rego:29: eval_conflict_error: function data.homestak.site_test.f produced conflicting values for the same inputs:\n1 at policy/x_test.rego:27\n2 at policy/x_test.rego:29",
	}, results(&tally))
	require.Equal(t, policy.Tally{Passed: 3, Failed: 5, Skipped: 1, Errors: 1}, tally)
	require.False(t, tally.OK())
	require.Equal(t, `policy/x_test.rego:7: data.homestak.site_test.test_fails: FAIL
policy/x_test.rego:9: data.homestak.site_test.test_is_undefined: FAIL
policy/x_test.rego:11: data.homestak.site_test.todo_test_waits: SKIPPED
policy/x_test.rego:13: data.homestak.site_test.test_cases: FAIL
  three: FAIL
policy/x_test.rego:18: data.homestak.site_test.test_prints: FAIL
  seen: 42
policy/x_test.rego:23: data.homestak.site_test.test_error_of_a_function: FAIL
policy/x_test.rego:25: data.homestak.site_test.test_contradiction: ERROR: policy/x_test.rego:29: eval_conflict_error: function data.homestak.site_test.f produced conflicting values for the same inputs:
  1 at policy/x_test.rego:27
  2 at policy/x_test.rego:29
`, out.String())

	out.Reset()
	tally, err = s.Test(t.Context(), out, policy.TestOptions{Match: regexp.MustCompile(`site_test\.test_passes`), Verbose: true})
	require.NoError(t, err)
	require.Equal(t, []string{"5 test_passes: passed"}, results(&tally))
	require.Equal(t, policy.Tally{Passed: 1}, tally)
	require.Equal(t, "policy/x_test.rego:5: data.homestak.site_test.test_passes: PASS\n", out.String())
}

// results takes the single results of the site's tests out of a tally, one a line.
func results(t *policy.Tally) []string {
	var out []string
	for _, r := range t.Tests {
		line := fmt.Sprintf("%d %s: %s %s", r.Line, r.Name[strings.LastIndex(r.Name, ".")+1:], r.Outcome, r.Error)
		if len(r.Failed) > 0 {
			line += fmt.Sprint(r.Failed)
		}
		if !r.Shipped {
			out = append(out, strings.TrimSpace(line))
		}
	}
	t.Tests = nil
	return out
}

func TestTestsThatDoNotCompile(t *testing.T) {
	for name, text := range map[string]string{
		"syntax":  "package x_test\ntest_a if {",
		"effects": "package x_test\ntest_a if http.send({\"method\": \"get\", \"url\": \"http://127.0.0.1\"}).status_code == 200",
	} {
		s, found := policy.Compile(t.Context(), policy.Options{Site: tree("policy/x_test.rego", text)})
		require.Empty(t, found)
		_, err := s.Test(t.Context(), &bytes.Buffer{}, policy.TestOptions{})
		require.ErrorContains(t, err, "run tests of policies: policy/x_test.rego:2:", name)
		require.ErrorContains(t, err, "policy/x_test.rego does not compile: ", name)
	}
}

func TestTestsAreLimited(t *testing.T) {
	endless := "package x_test\ntest_a if { r := numbers.range(1, 900000); some i in r; some j in r; i + j < 0 }\ntest_b if true\n"
	s, _ := policy.Compile(t.Context(), policy.Options{Site: tree("policy/x_test.rego", endless), Limit: fast})
	out := &bytes.Buffer{}
	tally, err := s.Test(t.Context(), out, policy.TestOptions{Match: regexp.MustCompile("x_test")})
	require.NoError(t, err)
	require.Len(t, results(&tally), 2)
	require.Equal(t, policy.Tally{Passed: 1, Errors: 1}, tally)
	require.Contains(t, out.String(), "policy/x_test.rego:2: data.x_test.test_a: ERROR: eval_cancel_error: ")

	greedy := "package x_test\ntest_a if { r := numbers.range(1, 900000); count([[i, j] | some i in r; some j in r]) > 0 }\n"
	s, _ = policy.Compile(t.Context(), policy.Options{Site: tree("policy/x_test.rego", greedy), Limit: time.Minute, Memory: narrow})
	_, err = s.Test(t.Context(), out, policy.TestOptions{Match: regexp.MustCompile("x_test")})
	require.ErrorContains(t, err, "it took more than 64 MiB of memory")
}

func TestExport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "policies")
	require.NoError(t, policy.Export(dir))
	names := func() []string {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		var out []string
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	require.Equal(t, []string{"auth.rego", "auth_test.rego", "guard.rego", "guard_test.rego", "plan.rego", "plan_test.rego", "site.rego", "site_test.rego"}, names())
	require.NoError(t, policy.Export(dir), "once more is fine")

	guard := filepath.Join(dir, "guard.rego")
	exported, err := os.ReadFile(guard)
	require.NoError(t, err)
	require.Contains(t, string(exported), policy.Shipped()["guard.rego"])

	edited := append([]byte("# mine\n"), exported...)
	require.NoError(t, os.WriteFile(guard, edited, 0o644))
	require.NoError(t, os.Remove(filepath.Join(dir, "site.rego")))
	err = policy.Export(dir)
	require.ErrorContains(t, err, "nothing is written: "+guard+" already exists, and is not an unchanged export")
	after, err := os.ReadFile(guard)
	require.NoError(t, err)
	require.Equal(t, string(edited), string(after))
	require.NotContains(t, names(), "site.rego", "all or nothing")
}

func TestExportStaysInItsFolder(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "precious")
	require.NoError(t, os.WriteFile(outside, []byte("mine"), 0o644))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "guard.rego")))
	require.Error(t, policy.Export(dir))
	b, err := os.ReadFile(outside)
	require.NoError(t, err)
	require.Equal(t, "mine", string(b))
	require.Error(t, policy.Export(outside))
}

// Who exports into the site's own folder has the rules twice. That changes nothing, as
// long as nobody edits them.
func TestExportedRulesInASite(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, policy.Export(filepath.Join(dir, "policy")))
	_, found := policy.Compile(t.Context(), policy.Options{Site: os.DirFS(dir)})
	require.Empty(t, found)

	name := filepath.Join(dir, "policy", "guard.rego")
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, bytes.Replace(b, []byte("else := 3"), []byte("else := 300"), 1), 0o644))
	_, found = policy.Compile(t.Context(), policy.Options{Site: os.DirFS(dir)})
	require.True(t, found.HasErrors())
	require.Contains(t, judgeLine(found), "policy/guard.rego changes the shipped rule limit of package homestak.guard")
}

func TestEval(t *testing.T) {
	s := set(t, "policy/x.rego", "package homestak.site\nwarn contains \"w\" if input.site.name == \"home\"\n")
	doc, err := policy.Input(site(), nil, request())
	require.NoError(t, err)
	for query, want := range map[string]any{
		"input.site.name":                           "home",
		"data.homestak.site.warn":                   []any{"w"},
		"1 + 1":                                     json.Number("2"),
		"some name; input.site.nodes[name].type":    []any{map[string]any{"name": "cache"}, map[string]any{"name": "web-1"}},
		"x := input.version":                        []any{map[string]any{"x": json.Number("1")}},
		"input.site.nodes[\"web-1\"].spec.identity": map[string]any{"hostname": "web-1", "domain": "home.example"},
	} {
		got, err := s.Eval(t.Context(), query, doc)
		require.NoError(t, err, query)
		require.Equal(t, want, got, query)
	}
	for query, want := range map[string]string{
		"input.site.nosuch":        "undefined",
		"1 +":                      "unexpected eof token",
		"to_number(\"x\")":         "invalid syntax",
		"http.send({})":            "undefined function http.send",
		"opa.runtime()":            "undefined function opa.runtime",
		"numbers.range(1, 1e9)[0]": "more than 1000000 elements",
		"":                         "empty",
		"[numbers.range(i, i + 900000) | some i in numbers.range(1, 1000)]": "64 MiB",
	} {
		s, _ := policy.Compile(t.Context(), policy.Options{Memory: narrow, Limit: slow})
		_, err := s.Eval(t.Context(), query, doc)
		require.ErrorContains(t, err, want, query)
		require.Equal(t, want == "undefined", errors.Is(err, policy.ErrUndefined))
	}
	_, err = s.Eval(t.Context(), "1", func() {})
	require.ErrorContains(t, err, "read the input")
}

// Nothing that stands in a file of policies may end the process, or be taken for leave.
func FuzzCompile(f *testing.F) {
	for _, text := range policy.Shipped() {
		f.Add(text)
	}
	f.Add(siteTests)
	f.Add("package homestak.site\ndeny contains \"x\" if input.sitee")
	f.Add("package homestak.auth\nallow if true")
	f.Fuzz(func(t *testing.T, text string) {
		s, found := policy.Compile(t.Context(), policy.Options{Site: tree("policy/x.rego", text), Kinds: kinds(), Limit: fast})
		denied, _ := s.Site(t.Context(), site(), request())
		if found.HasErrors() {
			require.Equal(t, found, denied)
			require.False(t, s.Authorize(t.Context(), good()).Allow)
		}
		for _, f := range append(found, denied...) {
			require.NotEmpty(t, f.Summary)
			require.NotContains(t, f.Summary, "internal error")
		}
	})
}
