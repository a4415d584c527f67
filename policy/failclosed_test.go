package policy_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/policy"
)

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

// Of a rule that would be silent for ever, the file says that it is in force.
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
func TestFieldsThatAreThereAreNoFindings(t *testing.T) {
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
	count(object.union(input.site.nodes["web-1"], {"x": 1})) == 20
}
deny contains "k" if {
	doc := {"mine": 1, "site": input.site}
	doc.mine != 1
}
deny contains "l" if { some s in input.plan.steps; some c in s.changes; c.before.x == c.after[0] }
deny contains "m" if object.get(rego.metadata.rule(), "title", "") == "x"
`)
	require.Empty(t, judgeSite(t, s, site()))
}

func TestALibraryMayHaveADenyOfItsOwn(t *testing.T) {
	s, found := policy.Compile(t.Context(), policy.Options{Site: tree("policy/lib.rego", "package lib\ndeny contains \"x\" if input.version == 1\n")})
	require.Equal(t, []string{"policy/lib.rego:2:1: warning: nothing evaluates rule deny of package lib [policy]"}, lines(found))
	require.Empty(t, judgeSite(t, s, site()))
}

func TestTheZeroSetDenies(t *testing.T) {
	want := []string{"error: no policies were compiled, so everything is denied [policy]"}
	for _, s := range []*policy.Set{nil, {}} {
		require.Equal(t, want, lines(s.Site(t.Context(), site(), request())))
		require.Equal(t, want, lines(s.Plan(t.Context(), site(), planned(t, site()), request())))
		require.Equal(t, policy.Decision{Code: policy.Forbidden, Reason: "no policies were compiled, so everything is denied"}, s.Authorize(t.Context(), good()))
		_, err := s.Eval(t.Context(), "1", nil)
		require.ErrorContains(t, err, "no policies were compiled")
		_, err = s.Test(t.Context(), nil, policy.TestOptions{})
		require.ErrorContains(t, err, "no policies were read")
	}
}

func TestACancelledQuestionIsDenied(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := set(t, "policy/x.rego", "package homestak.site\ndeny contains \"x\" if { r := numbers.range(1, 900000); some i in r; some j in r; i + j < 0 }\n")
	cancel()
	require.Contains(t, judgeLine(s.Site(ctx, site(), request())), "context canceled")
	// Compiling may be done before anybody looks; if it is not, the set denies.
	half, found := policy.Compile(ctx, policy.Options{})
	require.Equal(t, found.HasErrors(), only(half.Site(t.Context(), site(), request())).HasErrors())
}

// only leaves out how many rules were asked.
func only(found diag.List, _ plan.Rules) diag.List { return found }

func judgeLine(found diag.List, _ ...plan.Rules) string { return strings.Join(lines(found), "\n") }

// unreadable is a tree with one file that cannot be read.
type unreadable struct{ fs.FS }

func (u unreadable) Open(name string) (fs.File, error) {
	if strings.HasSuffix(name, "secret.rego") {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("input/output error")}
	}
	return u.FS.Open(name)
}

// A policy that nobody could read might have denied.
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

func TestWhatIsNoPolicyIsLeftAlone(t *testing.T) {
	s := set(t, "policy/README.md", "{{{", "policy/.hidden/x.rego", "{{{", "policy/.x.rego", "{{{", "policy/x_test.rego", "{{{", "other/x.rego", "{{{", "x.rego", "{{{",
		"policy/deep/down/x.rego", "package homestak.site\ndeny contains \"found\" if true\n")
	require.Equal(t, []string{"error: found [policy]"}, judgeSite(t, s, site()))
}
