package policy_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// shown is how findings look to people.
func shown(found diag.List) string {
	b := &bytes.Buffer{}
	diag.Text(b, found)
	return b.String()
}

func TestWhatRulesSay(t *testing.T) {
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
		{"no address", `deny contains {"message": "x", "address": "web"} if true`, `policy/x.rego:2:1: error: homestak.site.deny denies: its finding has an invalid address: address "web" is not of the form kind.name, such as vm.web-1`},
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
func TestMessagesAreTamed(t *testing.T) {
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
	for pkg, want := range map[string]string{"plan": diag.FromPolicy, "guard": diag.FromGuard} {
		site := site()
		s := set(t, "policy/x.rego", "package homestak."+pkg+"\ndeny contains \"x\" if to_number(input.site.name) == 3\n")
		found, _ := s.Plan(t.Context(), site, planned(t, site), request())
		require.Len(t, found, 1)
		require.Equal(t, want, found[0].Source)
		require.Contains(t, found[0].Summary, "policy/x.rego denies (rule deny): to_number")
		require.Empty(t, judgeSite(t, s, site), "it is not asked about a site")
	}
}
