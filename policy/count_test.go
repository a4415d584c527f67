package policy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/policy"
)

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
func TestTheLastSetIsGivenAgain(t *testing.T) {
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
	require.Empty(t, policy.UntoldToShipped(site()))

	s := site()
	s.VMIDRanges, s.Naming.Pattern = s.VMIDRanges[1:], "web-[0-9]+"
	s.Postures["prod"].Auth = nil
	require.Len(t, judgeSite(t, alone, s), 3)
	require.Equal(t, judgeSite(t, beside, s), judgeSite(t, alone, s))
	p := planned(t, s, append(inSync(s), extras(4)...)...)
	require.Equal(t, lines(beside.Plan(t.Context(), s, p, request())), lines(alone.Plan(t.Context(), s, p, request())))
}
