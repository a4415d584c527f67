package policy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
	"weak"

	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/policy"
)

// shown is how findings look to people.
func shown(found diag.List) string {
	b := &bytes.Buffer{}
	found.Write(b)
	return b.String()
}

func TestFindingsOfRules(t *testing.T) {
	s := set(t, "policy/say.rego", `package homestak.site

deny contains "memory is dear\nUse less.\n" if input.version == 1

deny contains {
	"rule": "no-motd",
	"message": sprintf("node %s greets", [name]),
	"address": sprintf("%s.%s", [node.type, name]),
	"fix": "Take the file away.",
} if {
	some name, node in input.site.nodes
	node.spec.config.file["/etc/motd"]
}

warn contains {"message": "a pool", "address": "pool.lab"} if true

warn contains {"message": "nowhere", "address": "vm.nosuch"} if true
`)
	require.Equal(t, `manifests/web.hcl:5:3: error: node web-1 greets
  Take the file away.
  (rule no-motd at policy/say.rego:5, package homestak.site)

pools.hcl:1:3: warning: a pool
  (rule warn at policy/say.rego:15, package homestak.site; or rule warn at policy/say.rego:17, package homestak.site)

error: memory is dear
  Use less.
  (rule deny at policy/say.rego:3, package homestak.site)

warning: nowhere
  (rule warn at policy/say.rego:15, package homestak.site; or rule warn at policy/say.rego:17, package homestak.site)
`, shown(only(s.Site(t.Context(), site(), request()))))
}

func TestAddressesHavePlaces(t *testing.T) {
	places := map[string]string{
		"vm.web-1": "manifests/web.hcl:5:3", "node.cache": "manifests/web.hcl:25:3", "posture.prod": "postures.hcl:20:3", "spec.base": "specs.hcl:1:3",
		"host.father": "hosts/father.hcl:3:3", "pool.lab": "pools.hcl:1:3", "manifest.web": "manifests/web.hcl:1:3", "site.home": "site.hcl:1:3",
		"vm.edge": "", // of a recipe
	}
	for address, want := range places {
		s := set(t, "policy/x.rego", "package homestak.site\ndeny contains {\"message\": \"m\", \"address\": \""+address+"\"} if true\n")
		found, _ := s.Site(t.Context(), site(), request())
		require.Len(t, found, 1)
		require.Equal(t, want, found[0].At.String(), address)
		require.Equal(t, address, found[0].Address)
	}
}

func TestFindingsOfAnotherShapeDeny(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"number", `deny contains 7 if true`, "policy/x.rego:2:1: error: homestak.site.deny denies: its finding is neither a string nor an object with a message"},
		{"set", `deny contains {"a"} if true`, "policy/x.rego:2:1: error: homestak.site.deny denies: its finding is neither a string nor an object with a message"},
		{"empty text", `deny contains "" if true`, "policy/x.rego:2:1: error: homestak.site.deny denies: its finding is an empty string"},
		{"blank text", `deny contains " \n" if true`, "policy/x.rego:2:1: error: homestak.site.deny denies: its finding is an empty string"},
		{"no message", `deny contains {"rule": "x"} if true`, "policy/x.rego:2:1: error: homestak.site.deny denies: its finding has no message"},
		{"misspelt message", `deny contains {"msg": "x"} if true`, `policy/x.rego:2:1: error: homestak.site.deny denies: its finding has the unknown field "msg"; known: rule, message, address, fix`},
		{"message of another type", `deny contains {"message": 3} if true`, "policy/x.rego:2:1: error: homestak.site.deny denies: its finding has a message that is not a string"},
		{"no address", `deny contains {"message": "x", "address": "web"} if true`, `policy/x.rego:2:1: error: homestak.site.deny denies: its finding has an invalid address: address "web" is not of the form kind.name, such as vm.web`},
		{"a warning without a message", `warn contains {"rule": "x"} if true`, "policy/x.rego:2:1: error: homestak.site.warn denies: its finding has no message"},
		{"a warning that is no set", `warn := "careful"`, "policy/x.rego:2:1: error: homestak.site.warn denies: it is not a set: write warn contains … if { … }"},
		{"warnings by name", `warn[name] := "careful" if some name, _ in input.site.nodes`, "policy/x.rego:2:1: error: homestak.site.warn denies: it is not a set: write warn contains … if { … }"},
		{"a warning that may be undefined", `warn := "careful" if input.site.name == "nosuch"`, "policy/x.rego:1:1: error: policy/x.rego denies: the rules returned nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found, _ := set(t, "policy/x.rego", "package homestak.site\n"+c.body+"\n").Site(t.Context(), site(), request())
			require.Len(t, found, 1)
			require.Contains(t, found[0].String(), c.want)
			require.Equal(t, diag.Error, found[0].Severity)
		})
	}
}

// A message is one line of printable text, whatever it was made of.
func TestMessagesAreOnePrintableLine(t *testing.T) {
	s := set(t, "policy/x.rego", `package homestak.site
deny contains {"rule": "r\u001b[2J", "message": "red \u001b[31m\u202e text", "fix": "line\r\n\u0007line"} if true
deny contains concat("", ["long " | some i in numbers.range(1, 1000)]) if true
`)
	found, _ := s.Site(t.Context(), site(), request())
	require.Len(t, found, 2)
	require.Equal(t, "red ?[31m? text", found[1].Summary)
	require.Contains(t, found[1].Detail, "line\n?line\n(rule r?[2J at policy/x.rego:2")
	require.Len(t, []rune(found[0].Summary), 500)
	require.True(t, strings.HasSuffix(found[0].Summary, "…"))
}

func TestManyFindingsAreCounted(t *testing.T) {
	s := set(t, "policy/x.rego", "package homestak.site\nwarn contains sprintf(\"%05d\", [i]) if some i in numbers.range(1, 1500)\n")
	found, _ := s.Site(t.Context(), site(), request())
	require.Len(t, found, 1001)
	require.Equal(t, "warning: 500 further findings of warn in package homestak.site [policy]", lines(found)[1000])
	require.False(t, found.HasErrors())
}

// Failures of a guard end with the exit code of guards, also when it is a site's rule
// that failed.
func TestSourcesOfFailures(t *testing.T) {
	for pkg, want := range map[string]diag.Source{"plan": diag.FromPolicy, "guard": diag.FromGuard} {
		site := site()
		s := set(t, "policy/x.rego", "package homestak."+pkg+"\ndeny contains \"x\" if to_number(input.site.name) == 3\n")
		found, _ := s.Plan(t.Context(), site, planned(t, site), request())
		require.Len(t, found, 1)
		require.Equal(t, want, found[0].Source)
		require.Contains(t, found[0].Summary, "policy/x.rego denies (rule deny): to_number")
		require.Empty(t, checkSite(t, s, site), "it is not asked about a site")
	}
}

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
	require.Subset(t, names(), []string{"auth.rego", "auth_test.rego", "guard.rego", "guard_test.rego", "plan.rego", "plan_test.rego", "site.rego", "site_test.rego"})
	require.Len(t, names(), 23)
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

// An export into the site's own folder contains the rules twice. That changes nothing as long as it is not edited.
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
	require.Contains(t, checkLine(found), "policy/guard.rego changes the shipped rule limit of package homestak.guard")
}

func TestEval(t *testing.T) {
	s := set(t, "policy/x.rego", "package homestak.site\nwarn contains \"w\" if input.site.name == \"home\"\n")
	doc, err := request().Input(site(), nil)
	require.NoError(t, err)
	for query, want := range map[string]any{
		"input.site.name":                           "home",
		"data.homestak.site.warn":                   []any{"w"},
		"1 + 1":                                     json.Number("2"),
		"some name; input.site.nodes[name].type":    []any{map[string]any{"name": "cache"}, map[string]any{"name": "web-1"}},
		"x := input.version":                        []any{map[string]any{"x": json.Number("1")}},
		"input.site.nodes[\"web-1\"].spec.identity": map[string]any{"hostname": "web-1", "domain": "home.example"},
	} {
		got, err := s.Eval(t.Context(), query, doc, nil)
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
		_, err := s.Eval(t.Context(), query, doc, nil)
		require.ErrorContains(t, err, want, query)
		require.Equal(t, want == "undefined", errors.Is(err, policy.ErrUndefined))
	}
	_, err = s.Eval(t.Context(), "1", func() {}, nil)
	require.ErrorContains(t, err, "read the input")
}

// No content of a policy file may end the process, or count as permission.
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

const (
	fast   = 300 * time.Millisecond // long enough for any policy that is in order
	slow   = time.Minute            // memory is to run out first
	narrow = 64 << 20
)

// bad compiles one policy of the site under tight limits, and says what the Set then
// denies: both of site and plan.
func bad(t *testing.T, text string, limit time.Duration) diag.List {
	t.Helper()
	s, found := policy.Compile(t.Context(), policy.Options{
		Site: tree("policy/x.rego", text), Kinds: kinds(), Limit: limit, Memory: narrow,
	})
	site := site()
	denied, _ := s.Site(t.Context(), site, request())
	if found.HasErrors() {
		require.Equal(t, found, denied, "what does not compile denies by the same findings")
		require.Equal(t, found, only(s.Plan(t.Context(), site, planned(t, site), request())))
		require.False(t, s.Authorize(t.Context(), good()).Allow)
	}
	return denied
}

// The compiler repeats itself, the findings do not: one for each line, and one for each message.
func TestN16OneMistakeInAPolicyIsOneFinding(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want []string
	}{
		"Rego of old": {"deny[msg] {\n\tmsg := \"x\"\n}", []string{"policy/x.rego:2:1: error: policy/x.rego does not compile: `contains` keyword is required for partial set rules [policy]"}},
		"a misspelt variable": {
			"deny contains \"x\" if {\n\tinptu.site.name == \"a\"\n\tinptu.site.domain == \"b\"\n}\ndeny contains \"y\" if inptu.site.name == \"a\"",
			[]string{"policy/x.rego:3:2: error: policy/x.rego does not compile: var inptu is unsafe [policy]"},
		},
		"two mistakes": {"deny contains \"x\" if inptu.site.name == \"a\"\ndeny contains \"y\" if othr == 1", []string{
			"policy/x.rego:2:22: error: policy/x.rego does not compile: var inptu is unsafe [policy]",
			"policy/x.rego:3:22: error: policy/x.rego does not compile: var othr is unsafe [policy]",
		}},
	} {
		_, found := policy.Compile(t.Context(), policy.Options{Site: tree("policy/x.rego", "package homestak.site\n"+c.body+"\n")})
		require.Equal(t, c.want, lines(found), name)
	}
}

// A policy that cannot be asked, or does not answer, denies by its file and rule.
func TestBadPoliciesDenyByTheirName(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"syntax error", "deny contains \"x\" if {\n\tinput.site.name ==\n}", "policy/x.rego:4:1: error: policy/x.rego does not compile: unexpected } token"},
		{"Rego of old", "deny[msg] { msg := \"x\" }", "policy/x.rego:2:1: error: policy/x.rego does not compile: `contains` keyword is required for partial set rules"},
		{"unsafe variable", "deny contains x if input.site.name == \"home\"", "policy/x.rego:2:15: error: policy/x.rego does not compile: var x is unsafe"},
		{"wrong type", `deny contains "x" if count(3) == 1`, "policy/x.rego:2:22: error: policy/x.rego does not compile: count: invalid argument(s)"},
		{"recursion", "deny contains \"x\" if a\na if b\nb if a", "policy/x.rego:3:1: error: policy/x.rego does not compile: rule data.homestak.site.a is recursive: data.homestak.site.a -> data.homestak.site.b -> data.homestak.site.a"},
		{"network", `deny contains "x" if http.send({"method": "get", "url": "http://127.0.0.1"}).status_code != 200`, "policy/x.rego:2:22: error: policy/x.rego does not compile: undefined function http.send"},
		{"name server", `deny contains "x" if count(net.lookup_ip_addr("localhost")) > 0`, "policy/x.rego:2:28: error: policy/x.rego does not compile: undefined function net.lookup_ip_addr"},
		{"environment", `deny contains "x" if opa.runtime().env.HOME == "/root"`, "policy/x.rego:2:22: error: policy/x.rego does not compile: undefined function opa.runtime"},
		{"clock", `deny contains "x" if time.now_ns() > 3`, "policy/x.rego:2:22: error: policy/x.rego does not compile: undefined function time.now_ns"},
		{"time zone of the machine", `deny contains "x" if time.clock([0, "Local"])[0] == 3`, "policy/x.rego:2:22: error: policy/x.rego denies (rule deny): time.clock: the time zone Local differs between machines: name one, such as Europe/Berlin"},
		{"chance", `deny contains "x" if rand.intn("x", 6) == 3`, "policy/x.rego:2:22: error: policy/x.rego does not compile: undefined function rand.intn"},
		{"schema from the network", `deny contains "x" if json.match_schema(input, {"$ref": "http://127.0.0.1/s"})[0]`, "policy/x.rego:2:22: error: policy/x.rego does not compile: undefined function json.match_schema"},

		{"error of a function", `deny contains "x" if to_number(input.site.name) == 3`, `policy/x.rego:2:22: error: policy/x.rego denies (rule deny): to_number: strconv.ParseFloat: parsing "home": invalid syntax`},
		{"null where there may be none", `deny contains "x" if count(input.plan) == 3`, "policy/x.rego:2:22: error: policy/x.rego denies (rule deny): count: operand 1 must be one of {array, object, set, string} but got null"},
		{"conflict", "deny contains \"x\" if f == 3\nf := 3 if input.site.name == \"home\"\nf := 4 if input.version == 1", "policy/x.rego:4:1: error: policy/x.rego denies (rule deny): rule data.homestak.site.f produced conflicting values"},

		{"endless loop", "deny contains \"x\" if {\n\tr := numbers.range(1, 900000)\n\tsome i in r\n\tsome j in r\n\ti + j == -1\n}", "error: policy/x.rego denies (rule deny): it did not finish within 300ms"},
		{"endless loop in a helper", "deny contains \"x\" if helper(3)\nhelper(n) if {\n\tr := numbers.range(1, 900000)\n\tevery i in r { some j in r; i + j + n > 0; i * j > 9e99 }\n}\nhelper(n) if {\n\tr := numbers.range(1, 900000)\n\tsome i in r\n\tsome j in r\n\ti + j == n - 9\n}", "error: policy/x.rego denies (rule deny): it did not finish within 300ms"},
		{"too many numbers", `deny contains "x" if count(numbers.range(1, 1000000000)) == 3`, "policy/x.rego:2:28: error: policy/x.rego denies (rule deny): numbers.range: the result would have more than 1000000 elements"},
		{"too many steps", `deny contains "x" if count(numbers.range_step(1, 1000000000, 3)) == 3`, "policy/x.rego:2:28: error: policy/x.rego denies (rule deny): numbers.range_step: the result would have more than 1000000 elements"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := bad(t, "package homestak.site\n"+c.body+"\n", fast)
			require.NotEmpty(t, found)
			require.Contains(t, found[0].String(), c.want)
			require.Equal(t, diag.Error, found[0].Severity)
			require.Equal(t, "policy/x.rego", found[0].At.File)
		})
	}
}

// A gigabyte of output, in all the ways that were found to make it.
func TestOutputIsBounded(t *testing.T) {
	tenfold := func(call, first string) string {
		b := &strings.Builder{}
		fmt.Fprintf(b, "s0 := %s\n", first)
		for i := range 9 {
			s := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("s%d, ", i), 10), ", ")
			fmt.Fprintf(b, "s%d := "+call+"\n", i+1, s)
		}
		return b.String()
	}
	const (
		memory  = "it took more than 64 MiB of memory"
		tooLong = "the result would be a string of more than 1024 KiB"
		digits  = "a number has more than 400 digits"
		million = `long := concat("", ["0123456789" | some i in numbers.range(1, 100000)])` + "\n"
	)
	for _, c := range []struct{ name, body, want string }{
		{"many findings", "deny contains sprintf(\"%01200d\", [i]) if some i in numbers.range(1, 900000)", memory},
		{"pairs", "x := [[i, j] | some i in numbers.range(1, 100000); some j in numbers.range(1, 100000)]\ndeny contains \"x\" if count(x) == 3", memory},
		{"a list joined with itself", "a0 := numbers.range(1, 900000)\na1 := array.concat(a0, a0)\na2 := array.concat(a1, a1)\na3 := array.concat(a2, a2)\na4 := array.concat(a3, a3)\na5 := array.concat(a4, a4)\na6 := array.concat(a5, a5)\na7 := array.concat(a6, a6)\na8 := array.concat(a7, a7)\ndeny contains \"x\" if count(a8) == 3", "array.concat: the result would have more than 1000000 elements"},
		{"texts, ten times ten times", tenfold(`concat("", [%s])`, `"0123456789"`) + `deny contains s9 if true`, "concat: " + tooLong},
		{"one text, many times", million + `deny contains concat("", [long | some i in numbers.range(1, 1000)]) if true`, "concat: " + tooLong},
		{"width of a number", `deny contains sprintf(concat("", ["%[1]999999d" | some i in numbers.range(1, 1100)]), [1]) if true`, "sprintf: " + tooLong},
		{"width from an argument", `deny contains sprintf("%*d%*d%*d%*d%*d%*d%*d%*d%*d%*d%*d%*d%*d%*d%*d%*d%*d", [n | some i in numbers.range(1, 34); n := 900000]) if true`, "sprintf: " + tooLong},
		{"one argument, many times", million + `deny contains sprintf(concat("", ["%[1]s" | some i in numbers.range(1, 1000)]), [long]) if true`, "sprintf: " + tooLong},
		{"template", million + `deny contains $"{long}{long}" if true`, "internal.template_string: " + tooLong},
		{"replaced", million + `deny contains replace(long, "1", long) if true`, "replace: " + tooLong},
		{"replaced by table", million + `deny contains strings.replace_n({"1": long}, long) if true`, "strings.replace_n: " + tooLong},
		{"replaced by pattern", million + `deny contains regex.replace(long, ".+", concat("", ["$0" | some i in numbers.range(1, 1000)])) if true`, "regex.replace: " + tooLong},
		{"encoded", million + `deny contains hex.encode(long) if true`, "hex.encode: " + tooLong},
		{"nested lists as text", tenfold(`[%s]`, `[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]`) + `deny contains json.marshal(s9) if true`, "json.marshal: " + tooLong},
		{"nested lists in a message", tenfold(`[%s]`, `[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]`) + `deny contains sprintf("%v", [s9]) if true`, "sprintf: " + tooLong},
		{"flattened", `deny contains "x" if { a := numbers.range(1, 100000); count(array.flatten([a | some i in a])) == 3 }`, "array.flatten: the result would have more than 1000000 elements"},
		{"digits", "n0 := 12345678901234567890\n" + squares(20) + `deny contains "x" if n20 == 3`, "mul: " + digits},
		{"product", `deny contains "x" if product(numbers.range(1, 100000)) == 3`, "product: " + digits},
		{"exponent", `deny contains "x" if floor(json.unmarshal("1e9999")) == 3`, "json.unmarshal: " + digits},
		{"shifted", `deny contains "x" if bits.lsh(1, 100000000000) == 3`, "undefined function bits.lsh"},
		{"all addresses", `deny contains "x" if count(net.cidr_expand("10.0.0.0/8")) == 3`, "undefined function net.cidr_expand"},
		{"all paths", `deny contains "x" if count(graph.reachable_paths({"a": ["a"]}, ["a"])) == 3`, "undefined function graph.reachable_paths"},
		{"template language", `deny contains strings.render_template("{{range .x}}{{.}}{{end}}", {"x": [1]}) if true`, "undefined function strings.render_template"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := bad(t, "package homestak.site\n"+c.body+"\n", slow)
			require.Len(t, found, 1)
			require.Contains(t, found[0].Summary, "policy/x.rego ")
			require.Contains(t, found[0].Summary, c.want)
		})
	}
}

func squares(n int) string {
	b := &strings.Builder{}
	for i := range n {
		fmt.Fprintf(b, "n%d := n%d * n%d\n", i+1, i, i)
	}
	return b.String()
}

// What is large and in order passes: the bounds are far away from it.
func TestBoundsLetThrough(t *testing.T) {
	require.Empty(t, bad(t, `package homestak.site
deny contains "concat" if count(concat(",", [sprintf("%05d", [i]) | some i in numbers.range(1, 10000)])) != 59999
deny contains "marshal" if count(json.marshal(input)) < 1000
deny contains "replace" if replace("a-b-c", "-", ".") != "a.b.c"
deny contains "replace_n" if strings.replace_n({"a": "b"}, "aa") != "bb"
deny contains "regex" if regex.replace("web-17", "([a-z]+)-([0-9]+)", "$2/$1") != "17/web"
deny contains "sprintf" if sprintf("%-20s|%5d|%.2f|%v", ["x", 42, 1.5, {"a": [1]}]) != "x                   |   42|1.50|{\"a\": [1]}"
deny contains "template" if $"{input.site.name} is {1 + 1}" != "home is 2"
deny contains "numbers" if 2 * 1e300 + 1.5 - 7 < 0
deny contains "sum" if sum(numbers.range(1, 1000)) != 500500
deny contains "product" if product([2, 3, 7]) != 42
deny contains "flatten" if count(array.flatten([[1, 2], 3])) != 3
deny contains "units" if units.parse_bytes("64Gi") != 68719476736
deny contains "time" if time.clock([time.parse_rfc3339_ns(input.now), "Europe/Berlin"]) != [4, 4, 5]
deny contains "cidr" if not net.cidr_contains("192.0.2.0/24", "192.0.2.30")
deny contains "unmarshal" if json.unmarshal("{\"a\": 1e300}").a != 1e300
deny contains "step" if numbers.range_step(0, 10, 5) != [0, 5, 10]
deny contains "base64" if base64.decode(base64.encode("x")) != "x"
`, slow))
}

// A rule that could never deny is an error, since its file looks as if it were in force.
func TestSilentPoliciesDeny(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"undefined field", "package homestak.site\ndeny contains \"x\" if input.sitee.name == \"x\"", `policy/x.rego:2:22: error: policy/x.rego reads the field "sitee", which the input does not have there`},
		{"undefined field of a node", "package homestak.site\ndeny contains \"x\" if {\n\tsome _, node in input.site.nodes\n\tnode.spec.acess.posture.name == \"prod\"\n}", `policy/x.rego:4:2: error: policy/x.rego reads the field "acess", which the input does not have there`},
		{"undefined attribute", "package homestak.site\ndeny contains \"x\" if input.site.nodes[_].attributes.memroy > 3", `policy/x.rego:2:22: error: policy/x.rego reads the field "memroy", which the input does not have there`},
		{"undefined field in a function", "package homestak.plan\ndeny contains \"x\" if { some s in input.plan.steps; bad(s) }\nbad(step) if step.klass == \"restart\"", `policy/x.rego:3:14: error: policy/x.rego reads the field "klass", which the input does not have there`},
		{"undefined field in a condition on all", "package homestak.guard\ndeny contains \"x\" if not all_well\nall_well if every s in input.plan.steps { s.actoin == \"create\" }", `policy/x.rego:3:43: error: policy/x.rego reads the field "actoin", which the input does not have there`},
		{"undefined field in a comprehension", "package homestak.site\ndeny contains \"x\" if count([n | some n in input.site.nodes; n.modee == \"pull\"]) > 0", `policy/x.rego:2:61: error: policy/x.rego reads the field "modee", which the input does not have there`},
		{"undefined field of a request", "package homestak.auth\ndeny contains \"x\" if input.credential.type == \"none\"", `policy/x.rego:2:22: error: policy/x.rego reads the field "type", which the input does not have there`},
		{"the other document", "package homestak.auth\ndeny contains \"x\" if input.site.name == \"none\"", `policy/x.rego:2:22: error: policy/x.rego reads the field "site", which the input does not have there`},
		{"undefined rule", "package homestak.site\ndeny contains \"x\" if data.lib.production", `policy/x.rego:2:22: error: policy/x.rego refers to data.lib.production, and there is no such rule`},
		{"undefined rule of a package", "package homestak.site\nimport data.homestak.guard\ndeny contains \"x\" if guard.nosuch", `policy/x.rego:3:22: error: policy/x.rego refers to data.homestak.guard.nosuch, and there is no such rule`},
		{"misspelt package", "package homestak.sites\ndeny contains \"x\" if true", `policy/x.rego:1:1: error: nothing evaluates package homestak.sites`},
		{"a shipped rule changed", "package homestak.guard\nremovals contains \"x\" if true", `policy/x.rego:2:1: error: policy/x.rego changes the shipped rule removals of package homestak.guard`},
		{"a shipped set made a value", "package homestak.guard\ndeny := set()", `does not compile: conflicting rules data.homestak.guard.deny found`},
		{"nothing at all", "# deny contains \"x\" if true", `policy/x.rego:1:1: error: policy/x.rego does not compile: empty module`},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := bad(t, c.text+"\n", slow)
			require.Len(t, found, 1)
			require.Contains(t, found[0].String(), c.want)
		})
	}
}

// A field that the checks cannot follow to the input may be anything.
func TestExistingFieldsAreNotFindings(t *testing.T) {
	s := set(t, "policy/lib/lib.rego", `package lib
posture(n) := n.spec.access.posture
any_name(x) := x.anything
own(x) := x.name if x.version == input.version
`, "policy/x.rego", `package homestak.site
import data.lib
import input.site.nodes

deny contains "a" if lib.posture(nodes["web-1"]).name != "prod"
deny contains "b" if lib.any_name({"anything": 1}) != 1
deny contains "c" if nodes["web-1"].attributes.options.cpu != "host"
deny contains "d" if nodes["cache"].attributes.template != "debian"
deny contains "e" if nodes["web-1"].spec.config.file["/etc/motd"].content != "welcome"
deny contains "f" if input.commit.trailers.Ticket != "HOME-7"
deny contains "g" if object.get(input, ["site", "nosuch", "x"], 3) != 3
deny contains "h" if { some field; input.site[field] == "nosuch" }
deny contains "i" if nodes["web-1"].attributes.nic.lan.vlan != 12
deny contains "j" if not other with input as {"anything": true}
other if input.anything
deny contains "n" if not renamed with input.site.name as "there"
renamed if {
	input.site.name == "there"
	input.site.nodes["web-1"].vmid == 10001
	count(object.union(input.site.nodes["web-1"], {"x": 1})) == 30
}
deny contains "k" if {
	doc := {"mine": 1, "site": input.site}
	doc.mine != 1
}
deny contains "l" if { some s in input.plan.steps; some c in s.changes; c.before.x == c.after[0] }
deny contains "m" if object.get(rego.metadata.rule(), "title", "") == "x"
`)
	require.Empty(t, checkSite(t, s, site()))
}

func TestALibraryMayHaveADenyOfItsOwn(t *testing.T) {
	s, found := policy.Compile(t.Context(), policy.Options{Site: tree("policy/lib.rego", "package lib\ndeny contains \"x\" if input.version == 1\n")})
	require.Equal(t, []string{"policy/lib.rego:2:1: warning: nothing evaluates rule deny of package lib [policy]"}, lines(found))
	require.Empty(t, checkSite(t, s, site()))
}

func TestTheZeroSetDenies(t *testing.T) {
	want := []string{"error: no policies were compiled, so everything is denied [policy]"}
	for _, s := range []*policy.Set{nil, {}} {
		require.Equal(t, want, lines(s.Site(t.Context(), site(), request())))
		require.Equal(t, want, lines(s.Plan(t.Context(), site(), planned(t, site()), request())))
		require.Equal(t, policy.Decision{Code: policy.Forbidden, Reason: "no policies were compiled, so everything is denied"}, s.Authorize(t.Context(), good()))
		_, err := s.Eval(t.Context(), "1", nil, nil)
		require.ErrorContains(t, err, "no policies were compiled")
		_, err = s.Test(t.Context(), nil, policy.TestOptions{})
		require.ErrorContains(t, err, "no policies were read")
	}
}

func TestACancelledQuestionIsDenied(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := set(t, "policy/x.rego", "package homestak.site\ndeny contains \"x\" if { r := numbers.range(1, 900000); some i in r; some j in r; i + j < 0 }\n")
	cancel()
	require.Contains(t, checkLine(s.Site(ctx, site(), request())), "context canceled")
	// Compiling may be done before anybody looks; if it is not, the set denies.
	half, found := policy.Compile(ctx, policy.Options{})
	require.Equal(t, found.HasErrors(), only(half.Site(t.Context(), site(), request())).HasErrors())
}

// only leaves out how many rules were asked.
func only(found diag.List, _ plan.Rules) diag.List { return found }

func checkLine(found diag.List, _ ...plan.Rules) string { return strings.Join(lines(found), "\n") }

// unreadable is a tree with one file that cannot be read.
type unreadable struct{ fs.FS }

func (u unreadable) Open(name string) (fs.File, error) {
	if strings.HasSuffix(name, "secret.rego") {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("input/output error")}
	}
	return u.FS.Open(name)
}

// An unreadable policy might have denied, so it denies.
func TestUnreadablePoliciesDeny(t *testing.T) {
	rule := &fstest.MapFile{Data: []byte("package homestak.site\n")}
	for _, c := range []struct {
		name string
		site fs.FS
		want string
	}{
		{"read error", unreadable{fstest.MapFS{"policy/secret.rego": rule}}, "policy/secret.rego:1:1: error: policy/secret.rego cannot be read [policy]"},
		{"link", fstest.MapFS{"policy/x.rego": {Data: []byte("../../etc"), Mode: fs.ModeSymlink | 0o777}}, "policy/x.rego:1:1: error: policy/x.rego cannot be read [policy]"},
		{"no folder", fstest.MapFS{"policy": rule}, "policy:1:1: error: policy cannot be read [policy]"},
		{"too large", fstest.MapFS{"policy/x.rego": {Data: []byte("package homestak.site\n" + strings.Repeat("# x\n", 1<<19))}}, "policy/x.rego:1:1: error: policy/x.rego cannot be read [policy]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, found := policy.Compile(t.Context(), policy.Options{Site: c.site})
			require.Equal(t, []string{c.want}, lines(found))
			require.Equal(t, found, only(s.Site(t.Context(), site(), request())))
		})
	}
}

func TestOtherFilesAreIgnored(t *testing.T) {
	s := set(t, "policy/README.md", "{{{", "policy/.hidden/x.rego", "{{{", "policy/.x.rego", "{{{", "policy/x_test.rego", "{{{", "other/x.rego", "{{{", "x.rego", "{{{",
		"policy/deep/down/x.rego", "package homestak.site\ndeny contains \"found\" if true\n")
	require.Equal(t, []string{"error: found [policy]"}, checkSite(t, s, site()))
}

func TestAProgramThatStopsIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := policy.Limited(5 * time.Second)
		began := time.Now()
		_, err := s.Within(t.Context(), func(ctx context.Context, _ topdown.Cancel) (string, error) {
			<-ctx.Done()
			return "", errors.New("stopped at rule x")
		})
		require.EqualError(t, err, "it did not finish within 1m0s\nstopped at rule x")
		require.Less(t, time.Since(began), 61*time.Second)
		got, err := s.Within(t.Context(), func(context.Context, topdown.Cancel) (string, error) { return "fine", nil })
		require.NoError(t, err)
		require.Equal(t, "fine", got)
	})
}

// A call that never looks whether it was stopped is left behind, so that the caller has
// its answer; until it has ended, nothing further is begun.
func TestACallThatDoesNotStopIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := policy.Limited(5 * time.Second)
		deaf := make(chan struct{})
		began := time.Now()
		_, err := s.Within(t.Context(), func(context.Context, topdown.Cancel) (string, error) {
			<-deaf
			return "too late", nil
		})
		require.EqualError(t, err, "it did not finish within 1m0s")
		require.Less(t, time.Since(began), 65*time.Second)

		quick := func(context.Context, topdown.Cancel) (string, error) { return "fine", nil }
		_, err = s.Within(t.Context(), quick)
		require.EqualError(t, err, "a policy that was stopped still runs; nothing is checked until it ends")

		close(deaf)
		synctest.Wait()
		got, err := s.Within(t.Context(), quick)
		require.NoError(t, err)
		require.Equal(t, "fine", got)
	})
}

func TestACallerWhoGoesIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		_, err := policy.Limited(time.Hour).Within(ctx, func(ctx context.Context, stop topdown.Cancel) (string, error) {
			<-ctx.Done()
			require.True(t, stop.Cancelled())
			return "", errors.New("stopped")
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, time.Second, time.Since(began).Truncate(time.Second))
	})
}

func TestAPanicIsAnError(t *testing.T) {
	_, err := policy.Limited(time.Hour).Within(t.Context(), func(context.Context, topdown.Cancel) (string, error) { panic("a mistake of OPA") })
	require.ErrorContains(t, err, "internal error of the policy engine: a mistake of OPA")
}

// shipped are the rules of this program about sites, and about plans.
const (
	aboutSites = 4
	aboutPlans = 4
)

func TestRulesAreCounted(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       plan.Rules
	}{
		{"shipped rules alone", "", plan.Rules{OK: aboutSites}},
		{"one that holds", `deny contains "a" if input.site.name != "home"`, plan.Rules{OK: aboutSites + 1}},
		{"one that denies", `deny contains "a" if true`, plan.Rules{OK: aboutSites, Denied: 1}},
		{"one that warns", `warn contains "a" if true`, plan.Rules{OK: aboutSites, Warning: 1}},
		{"one that says two things", `deny contains {"rule": "r", "message": m} if some m in ["a", "b"]`, plan.Rules{OK: aboutSites, Denied: 1}},
		{"one in two pieces", "deny contains {\"rule\": \"r\", \"message\": \"a\"} if true\ndeny contains {\"rule\": \"r\", \"message\": \"b\"} if false", plan.Rules{OK: aboutSites, Denied: 1}},
		{"two names", "deny contains {\"rule\": \"r\", \"message\": \"a\"} if true\ndeny contains {\"rule\": \"s\", \"message\": \"b\"} if false", plan.Rules{OK: aboutSites + 1, Denied: 1}},
		{"without names, one speaks", "deny contains \"a\" if true\ndeny contains \"b\" if false", plan.Rules{OK: aboutSites + 1, Denied: 1}},
		{"one without a name says two things", `deny contains m if some m in ["a", "b"]`, plan.Rules{OK: aboutSites, Denied: 1}},
		{"a name that is made", `deny contains {"rule": r, "message": "a"} if some r in ["r", "s"]`, plan.Rules{OK: aboutSites, Denied: 1}},
		{"deny and warn", "deny contains \"a\" if true\nwarn contains \"b\" if true\nwarn contains \"c\" if false", plan.Rules{OK: aboutSites + 1, Warning: 1, Denied: 1}},
		{"a warning that is none", `warn contains 3 if true`, plan.Rules{OK: aboutSites, Denied: 1}},
		{"an error", `deny contains "a" if to_number(input.site.name) == 3`, plan.Rules{Denied: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := set(t, "policy/x.rego", "package homestak.site\n"+c.body+"\n")
			_, asked := s.Site(t.Context(), site(), request())
			require.Equal(t, c.want, asked)
			of := site()
			_, asked = s.Plan(t.Context(), of, planned(t, of), request())
			require.Equal(t, plan.Rules{OK: aboutPlans}, asked, "rules about sites are not asked again")
		})
	}

	of := site()
	_, asked := set(t).Plan(t.Context(), of, planned(t, of, append(inSync(of), extras(4)...)...), request())
	require.Equal(t, plan.Rules{OK: aboutPlans - 1, Denied: 1}, asked)
	_, asked = (*policy.Set)(nil).Site(t.Context(), of, request())
	require.Equal(t, plan.Rules{Denied: 1}, asked)
}

// Whatever rules a site adds, the tests of the shipped ones pass beside them.
func TestShippedTestsPassBesideOtherRules(t *testing.T) {
	files := []string{}
	for _, pkg := range []string{"site", "plan", "guard", "auth"} {
		said := `{"rule": "mine", "message": "x", "address": "vm.x"}`
		if pkg == "auth" {
			said = `{"rule": "mine", "message": "x", "code": 403}`
		}
		files = append(files, "policy/"+pkg+".rego", "package homestak."+pkg+"\ndeny contains \"x\" if input.version != 3\ndeny contains "+said+" if input.version != 3\n")
	}
	out := &strings.Builder{}
	tally, err := set(t, files...).Test(t.Context(), out, policy.TestOptions{})
	require.NoError(t, err)
	require.Empty(t, out.String())
	require.True(t, tally.OK())
}

// Policies that did not change are not compiled again.
func TestUnchangedPoliciesAreNotCompiledAgain(t *testing.T) {
	const rule, lib = "package homestak.site\nwarn contains \"x\" if true\n", "package lib\ndeny contains \"x\" if input.version == 1\n"
	compile := func(last *policy.Set, files ...string) (*policy.Set, []string) {
		s, found := policy.Compile(t.Context(), policy.Options{Site: tree(files...), Kinds: kinds(), Last: last})
		return s, lines(found)
	}
	first, warned := compile(nil, "policy/x.rego", rule, "policy/lib.rego", lib)
	require.Len(t, warned, 1)
	again, warnedAgain := compile(first, "policy/x.rego", rule, "policy/lib.rego", lib, "site.hcl", "other")
	require.Same(t, first, again)
	require.Equal(t, warned, warnedAgain, "what was found then is told now, too")

	for _, files := range [][]string{
		{"policy/x.rego", rule},
		{"policy/y.rego", rule, "policy/lib.rego", lib},
		{"policy/x.rego", rule + "# more\n", "policy/lib.rego", lib},
		{"policy/x.rego", rule, "policy/lib.rego", lib, "policy/x_test.rego", "package x_test\n"},
	} {
		other, _ := compile(first, files...)
		require.NotSame(t, first, other)
	}
	broken, found := compile(first, "policy/x.rego", "package homestak.site\ndeny contains {")
	require.NotEmpty(t, found)
	still, foundAgain := compile(broken, "policy/x.rego", "package homestak.site\ndeny contains {")
	require.NotSame(t, broken, still, "it might have been for want of time")
	require.Equal(t, found, foundAgain)
}

// What a site says without rules of its own follows from the site alone, and then its
// nodes are not described at length. Nothing may come of that.
func TestShippedRulesNeedLittle(t *testing.T) {
	alone, beside := set(t), set(t, "policy/lib.rego", "package lib\nunused := input.site.nodes\n")
	require.True(t, alone.Constant())
	require.True(t, beside.Constant())
	require.False(t, set(t, "policy/x.rego", "package homestak.site\ndeny contains \"x\" if input.now == \"x\"\n").Constant())
	require.False(t, (*policy.Set)(nil).Constant())
	require.Empty(t, policy.MissingForShipped(site()))

	s := site()
	s.VMIDRanges, s.Naming.Pattern = s.VMIDRanges[1:], "web-[0-9]+"
	s.Postures["prod"].Auth = nil
	require.Len(t, checkSite(t, alone, s), 3)
	require.Equal(t, checkSite(t, beside, s), checkSite(t, alone, s))
	p := planned(t, s, append(inSync(s), extras(4)...)...)
	require.Equal(t, lines(beside.Plan(t.Context(), s, p, request())), lines(alone.Plan(t.Context(), s, p, request())))
}

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name string, doc any) {
	t.Helper()
	b, err := json.MarshalIndent(doc, "", "  ")
	require.NoError(t, err)
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(file, append(b, '\n'), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), string(b)+"\n")
}

// everything is a plan with an entry in each of its lists: what is read of the world
// is made up, so that nothing is missing.
func everything(t *testing.T, s *model.Site) *plan.Plan {
	t.Helper()
	host := inSync(s)
	host[0].Spec.(*VM).Memory = 1024
	p := planned(t, s, append(host, guest("old", 10100, true))...)
	p.ID = "7c1e04b2f00d" // how it is made is no concern of policies
	p.Unmanaged = []model.Unmanaged{{VMID: 999, Name: "scratch", Kind: "vm", Why: "no ownership tag"}}
	p.Pending = []model.Pending{{Address: model.Address{Kind: "vm", Name: "web-1"}, Path: "cores", Before: 2, After: 4, Why: "set; takes effect at the next full restart"}}
	for i := range p.Steps { // a step without edits has no such field
		p.Steps[i].Edits = []model.Edit{{Path: "memory", User: "anna@pve", At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Task: "UPID:father:1:"}}
	}
	p.Undeclared = []model.Setting{{Address: model.Address{Kind: "vm", Name: "web-1"}, Path: "options.tablet", Value: "0"}}
	p.Unknown = []model.Unknown{{Scope: "node pve2", Why: "offline", Withheld: []model.Address{{Kind: "vm", Name: "web-2"}}}}
	p.Findings = diag.List{
		{Severity: diag.Warning, Source: diag.FromGuard, Summary: "drift", Address: "vm.web-1", At: at("manifests/web.hcl", 5), Code: `node "web" {`},
		{Severity: diag.Error, Source: diag.FromSite, Summary: "a target that is nowhere"},
	}
	return p
}

func TestInput(t *testing.T) {
	s := site()
	doc, err := request().Input(s, everything(t, s))
	require.NoError(t, err)
	golden(t, "input.json", doc)
}

// What was resolved before is not resolved again, and nothing else may come of it.
func TestInputOfAHostThatWasResolved(t *testing.T) {
	s, r := site(), request()
	s.Manifests["web"].Nodes[1].Parent = "elsewhere" // not on the host itself
	want, err := r.Input(s, nil)
	require.NoError(t, err)
	r.Want, _ = s.Want("father")
	require.NotEmpty(t, r.Want.State)
	got, err := r.Input(s, nil)
	require.NoError(t, err)
	require.Equal(t, want, got)

	r.Want.State[model.Address{Kind: "vm", Name: "web-1"}].Spec.(*VM).Memory = 4096
	got, err = r.Input(s, nil)
	require.NoError(t, err)
	require.NotEqual(t, want, got, "it is really used")

	s.Resolved, r.Want = map[string]*model.Want{"father": r.Want}, nil
	again, err := r.Input(s, nil)
	require.NoError(t, err)
	require.Equal(t, got, again, "and so is what the loader resolved")
}

func TestInputWithoutAPlanOrACommit(t *testing.T) {
	doc, err := policy.Request{Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600)), OwnedCount: 12}.Input(&model.Site{Name: "empty"}, nil)
	require.NoError(t, err)
	golden(t, "empty.json", doc)
}

func TestSecretsAreNotInTheInput(t *testing.T) {
	s := site()
	doc, err := request().Input(s, planned(t, s))
	require.NoError(t, err)
	b, err := json.Marshal(doc)
	require.NoError(t, err)
	require.NotContains(t, string(b), "hunter2")
	require.Contains(t, string(b), "(sensitive)")
	require.Equal(t, "hunter2", s.Manifests["web"].Nodes[0].Resource.Spec.(*VM).Password, "the site itself stays as it is")
}

// Rules are checked against what the documents are said to hold, so both must agree, to
// the last field.
func TestShapesAreThoseOfTheDocuments(t *testing.T) {
	s := site()
	s.MaxDeletes = new(int)
	s.Hosts["father"].Storage, s.Hosts["father"].SSH = &model.Storage{}, &model.HostSSH{}
	s.Postures["dev"].Sudo, s.Postures["dev"].Fail2ban = &model.Sudo{}, &model.Fail2ban{}
	spec := s.Specs["base"]
	spec.Identity, spec.Run, spec.Checks = &model.Identity{}, &model.Run{Interval: time.Hour}, []model.Check{{Name: "web", TCP: "80"}}
	spec.Config.PVE, spec.Config.Sysctl = &model.PVEConfig{}, map[string]string{"vm.swappiness": "10"}
	node := s.Manifests["web"].Nodes[0]
	node.Decomm, node.Hyper, node.Checks = &model.Decomm{}, &model.HyperDecl{}, spec.Checks
	s.Manifests["web"].Nodes = s.Manifests["web"].Nodes[:1] // the other kind has other attributes, and the shape those of both

	doc, err := request().Input(s, everything(t, s))
	require.NoError(t, err)
	b, err := json.Marshal(doc)
	require.NoError(t, err)
	var plain any
	require.NoError(t, json.Unmarshal(b, &plain))
	misfits := slices.DeleteFunc(policy.Misfits(kinds(), plain, false), func(m string) bool {
		return m == "input.site.nodes[_].attributes.template is in the shape only" // of a ct
	})
	require.Empty(t, misfits)

	require.Empty(t, policy.Misfits(kinds(), good().Document(), true))
}

// fleet is the site with n nodes more, and a plan that changes every tenth of them.
func fleet(b *testing.B, n int) (*model.Site, *plan.Plan) {
	b.Helper()
	s := site()
	s.VMIDRanges = append(s.VMIDRanges, model.VMIDRange{Name: "fleet", From: 100_000, To: 200_000})
	m := deploy(s, "fleet", "father")
	var have []*model.Resource
	for i := range n {
		spec := func(memory int) *VM {
			return &VM{
				Preset: "vm-small", Image: "debian-12", Memory: memory, Tags: []string{"homestak", "web"},
				Options: map[string]string{"cpu": "host"}, NICs: []NIC{{Name: "lan"}},
			}
		}
		node := add(m, fmt.Sprintf("app-%05d", i), "vm", 100_000+i, spec(0), i)
		node.Spec = "base"
		r, _ := s.Resolve(node.Resource, s.Hosts["father"], node)
		h := *r
		if i%10 == 0 {
			h.Spec = spec(1024)
		}
		have = append(have, &h)
	}
	return s, planned(b, s, have...)
}

// bare is one prepared query over the whole input by OPA alone, over the same rules:
// the floor of P14.
func bare(b *testing.B, query string) rego.PreparedEvalQuery {
	b.Helper()
	options := []func(*rego.Rego){rego.Query(query)}
	for name, text := range policy.Shipped() {
		if !strings.HasSuffix(name, "_test.rego") {
			options = append(options, rego.Module(name, text))
		}
	}
	q, err := rego.New(options...).PrepareForEval(b.Context())
	require.NoError(b, err)
	return q
}

func BenchmarkRules(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		s, p := fleet(b, n)
		r := request()
		r.OwnedCount = n
		ours := set(b)
		input, err := r.Input(s, p)
		require.NoError(b, err)
		floors := map[string]rego.PreparedEvalQuery{
			"site": bare(b, "x := data.homestak.site.deny"),
			"plan": bare(b, `x := {"plan": data.homestak.plan.deny, "guard": data.homestak.guard.deny}`),
		}
		for name, judge := range map[string]func(context.Context) int{
			"site": func(ctx context.Context) int { return len(lines(ours.Site(ctx, s, r))) },
			"plan": func(ctx context.Context) int { return len(lines(ours.Plan(ctx, s, p, r))) },
		} {
			perNode := func(b *testing.B) {
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
			}
			b.Run(fmt.Sprintf("%s/%d/ours", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					require.Zero(b, judge(b.Context()))
				}
				perNode(b)
			})
			b.Run(fmt.Sprintf("%s/%d/bare", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					rs, err := floors[name].Eval(b.Context(), rego.EvalInput(input))
					require.NoError(b, err)
					require.Len(b, rs, 1)
				}
				perNode(b)
			})
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		_, found := policy.Compile(b.Context(), policy.Options{Kinds: kinds()})
		require.Empty(b, found)
	}
}

// The real opa must agree with us on every test: on the shipped rules alone, on the
// example site with them, and on tests that end in every way there is. Run by
// make policy-test, which brings the program.
func TestOPAAgrees(t *testing.T) {
	opa, err := exec.LookPath("opa")
	if err != nil {
		t.Skip("needs the program opa; make policy-test brings it")
	}
	for _, c := range []struct {
		name   string
		copy   func(t *testing.T, site string)
		passes bool
	}{
		{"shipped", func(*testing.T, string) {}, true},
		{"example site", func(t *testing.T, site string) {
			require.NoError(t, os.CopyFS(filepath.Join(site, "policy"), os.DirFS("../examples/site/policy")))
		}, true},
		{"every end", func(t *testing.T, site string) {
			require.NoError(t, os.Mkdir(filepath.Join(site, "policy"), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(site, "policy", "x_test.rego"), []byte(siteTests), 0o644))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			site, shipped := t.TempDir(), filepath.Join(t.TempDir(), "shipped")
			require.NoError(t, policy.Export(shipped))
			c.copy(t, site)
			folders := []string{shipped}
			if own := filepath.Join(site, "policy"); exists(own) {
				folders = append(folders, own)
			}
			theirs, counted := opaTest(t, opa, folders)

			s, found := policy.Compile(t.Context(), policy.Options{Site: os.DirFS(site)})
			require.False(t, found.HasErrors(), lines(found))
			tally, err := s.Test(t.Context(), &bytes.Buffer{}, policy.TestOptions{})
			require.NoError(t, err)
			ours := map[string]string{}
			for _, r := range tally.Tests {
				ours[r.Name] = r.Outcome
			}
			require.Equal(t, theirs, ours)
			require.Equal(t, c.passes, tally.OK())
			tally.Tests = nil
			require.Equal(t, counted, tally)
			t.Logf("%d tests, cases counted: ours and opa's: %d passed, %d failed, %d errors, %d skipped",
				len(ours), tally.Passed, tally.Failed, tally.Errors, tally.Skipped)
		})
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// opaTest runs opa test over folders. It gives how each test went, and their count.
func opaTest(t *testing.T, opa string, folders []string) (map[string]string, policy.Tally) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), opa, append([]string{"test", "--format", "json"}, folders...)...)
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 {
		err = nil // some tests failed, which its answer tells
	}
	require.NoError(t, err)
	var results []struct {
		Package    string         `json:"package"`
		Name       string         `json:"name"`
		Fail, Skip bool           `json:",omitempty"`
		Error      any            `json:"error"`
		SubResults map[string]any `json:"sub_results"`
	}
	require.NoError(t, json.Unmarshal(b, &results))
	out, tally := map[string]string{}, policy.Tally{}
	for _, r := range results {
		name := fmt.Sprintf("%s.%s", r.Package, r.Name)
		require.False(t, slices.Contains([]string{"passed", "failed"}, out[name]), "%s is listed twice", name)
		switch {
		case r.Skip:
			out[name] = "skipped"
			tally.Skipped++
		case r.Error != nil:
			out[name] = "error"
			tally.Errors++
		case r.Fail:
			out[name] = "failed"
		default:
			out[name] = "passed"
		}
		for _, sub := range r.SubResults {
			if fail, _ := sub.(map[string]any)["fail"].(bool); fail {
				tally.Failed++
			} else {
				tally.Passed++
			}
		}
		switch {
		case r.Skip || r.Error != nil || len(r.SubResults) > 0:
		case r.Fail:
			tally.Failed++
		default:
			tally.Passed++
		}
	}
	return out, tally
}

// A set does not keep the tree that it was compiled from: it is taken for many more commits.
func TestASetKeepsNoTree(t *testing.T) {
	compile := func() (*policy.Set, weak.Pointer[fstest.MapFS]) {
		tree := &fstest.MapFS{}
		s, found := policy.Compile(t.Context(), policy.Options{Site: tree})
		require.Empty(t, found)
		return s, weak.Make(tree)
	}
	s, tree := compile()
	for range 100 {
		runtime.GC()
	}
	require.Nil(t, tree.Value())
	runtime.KeepAlive(s)
}

// A position is one of the site's own files: a shipped rule is none of them.
func TestAPositionIsOfTheSite(t *testing.T) {
	for rule, want := range map[string]string{"": "", "warn contains sprintf(\"%d\", [1])": "policy/x.rego"} {
		s, found := policy.Compile(t.Context(), policy.Options{Site: tree("policy/x.rego", "package homestak.site\n"+rule+"\n")})
		require.False(t, found.HasErrors(), "%v", found)
		p := &policy.Position{}
		_, _ = s.Site(policy.WithPosition(t.Context(), p), site(), request())
		require.Equal(t, want, p.At().File)
	}
}
