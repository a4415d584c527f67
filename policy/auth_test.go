package policy_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/policy"
)

// good is a request that the shipped rules allow.
func good() policy.AuthInput {
	return policy.AuthInput{
		Method: "GET", Path: "/spec/web-1", Identity: "web-1", Remote: "10.0.12.5:40112", Posture: site().Postures["prod"],
		Credential: policy.Credential{Kind: policy.NodeToken, Valid: true, Identity: "web-1"},
	}
}

func TestAuthorize(t *testing.T) {
	allowed := policy.Decision{Allow: true}
	refused := func(code int, reason string) policy.Decision { return policy.Decision{Code: code, Reason: reason} }
	dev := site().Postures["dev"]
	for _, c := range []struct {
		name   string
		change func(*policy.AuthInput)
		want   policy.Decision
	}{
		{"a node's token", func(*policy.AuthInput) {}, allowed},
		{"nothing shown", func(in *policy.AuthInput) { in.Credential = policy.Credential{} }, refused(401, "a credential is required")},
		{"not valid", func(in *policy.AuthInput) { in.Credential.Valid = false }, refused(401, "the credential is not valid")},
		{"of another", func(in *policy.AuthInput) { in.Credential.Identity = "web-2" }, refused(403, "the credential belongs to another node")},
		{"not valid, and of another", func(in *policy.AuthInput) { in.Credential.Valid, in.Credential.Identity = false, "web-2" }, refused(401, "the credential is not valid")},
		{"of another kind", func(in *policy.AuthInput) { in.Credential = policy.Credential{Kind: policy.SiteToken, Valid: true} }, refused(403, "a credential of kind site_token is not accepted here")},
		{"provisioning", func(in *policy.AuthInput) { in.Credential.Kind, in.Posture = policy.Provisioning, nil }, allowed},
		{"network", func(in *policy.AuthInput) { in.Credential, in.Posture = policy.Credential{}, dev }, allowed},
		{"network, IPv4 in IPv6", func(in *policy.AuthInput) {
			in.Credential, in.Posture, in.Remote = policy.Credential{}, dev, "[::ffff:10.1.2.3]:80"
		}, allowed},
		{"network, from elsewhere", func(in *policy.AuthInput) {
			in.Credential, in.Posture, in.Remote = policy.Credential{}, dev, "192.168.1.1"
		}, refused(401, "a credential is required")},
		{"network, from nowhere", func(in *policy.AuthInput) { in.Credential, in.Posture, in.Remote = policy.Credential{}, dev, "@" }, refused(401, "a credential is required")},
		{"network, for the bundle", func(in *policy.AuthInput) {
			in.Credential, in.Posture, in.Path = policy.Credential{}, dev, "/config/web-1"
		}, refused(401, "a credential is required")},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := good()
			c.change(&in)
			require.Equal(t, c.want, set(t).Authorize(t.Context(), in))
		})
	}
}

func TestASiteAddsToAuth(t *testing.T) {
	for _, c := range []struct {
		name, body string
		change     func(*policy.AuthInput)
		want       policy.Decision
	}{
		{"an allow", `allow if startswith(input.path, "/public/")`, func(in *policy.AuthInput) { in.Path, in.Credential = "/public/x", policy.Credential{} }, policy.Decision{Allow: true}},
		{"a deny wins", `deny contains "not today" if input.identity == "web-1"`, nil, policy.Decision{Code: 403, Reason: "not today"}},
		{"a code", `deny contains {"message": "who are you", "code": 401} if true`, nil, policy.Decision{Code: 401, Reason: "who are you"}},
		{"of two the lower code", "deny contains {\"message\": \"b\", \"code\": 403} if true\ndeny contains {\"message\": \"a\", \"code\": 401} if true", nil, policy.Decision{Code: 401, Reason: "a"}},
		{"a deny of no shape", `deny contains 7 if true`, nil, policy.Decision{Code: 403, Reason: "a rule of homestak.auth denies, but its entry is neither a string nor an object with a message"}},
		{"an allow of no shape", `allow := "yes" if input.identity == "web-2"`, func(in *policy.AuthInput) { in.Identity, in.Credential = "web-2", policy.Credential{} }, policy.Decision{Code: 401, Reason: "a credential is required"}},
		{"a default", `default allow := false`, nil, policy.Decision{Allow: true}},
		{"an error", `allow if to_number(input.path) == 3`, nil, policy.Decision{Code: 403, Reason: `policy/x.rego denies (rule allow): to_number: strconv.ParseFloat: parsing "/spec/web-1": invalid syntax`}},
		{"a contradiction", `allow := false if input.identity == "web-1"`, nil, policy.Decision{Code: 403, Reason: "policy/x.rego denies (rule allow): rule data.homestak.auth.allow produced conflicting values"}},
		{"control characters", `deny contains "a\u001b[31m\nb" if true`, nil, policy.Decision{Code: 403, Reason: "a?[31m b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := good()
			if c.change != nil {
				c.change(&in)
			}
			s, found := policy.Compile(t.Context(), policy.Options{Site: tree("policy/x.rego", "package homestak.auth\n"+c.body+"\n")})
			require.Empty(t, lines(found))
			require.Equal(t, c.want, s.Authorize(t.Context(), in))
		})
	}
}

// The page shows what homestak.auth is for: each field of its input, and a rule that does what it says.
func TestN17ThePageOfAuth(t *testing.T) {
	page, err := os.ReadFile("../docs/policy.md")
	require.NoError(t, err)
	require.NotContains(t, string(page), "not used yet")
	for field := range good().Document() {
		require.Contains(t, string(page), `"`+field+`":`)
	}
	_, rule, found := strings.Cut(string(page), "\n    package homestak.auth\n")
	require.True(t, found)
	rule, _, _ = strings.Cut(rule, "\n    }\n")
	s, problems := policy.Compile(t.Context(), policy.Options{Site: tree("policy/x.rego", "package homestak.auth\n"+rule+"\n}\n")})
	require.Empty(t, lines(problems))
	in := good()
	in.Remote = "192.0.2.17:40000"
	require.True(t, s.Authorize(t.Context(), in).Allow)
	in.Remote = "198.51.100.1:40000"
	require.Equal(t, policy.Decision{Code: 403, Reason: "specs are for the servers' network only"}, s.Authorize(t.Context(), in))
	in.Remote = ""
	require.False(t, s.Authorize(t.Context(), in).Allow)
}

func TestDecisionsAreOfTheirRequestAlone(t *testing.T) {
	s := set(t)
	for range 2 {
		require.True(t, s.Authorize(t.Context(), good()).Allow)
		for _, change := range []func(*policy.AuthInput){
			func(in *policy.AuthInput) { in.Identity = "web-2" },
			func(in *policy.AuthInput) { in.Credential.Valid = false },
			func(in *policy.AuthInput) { in.Credential.Kind = policy.SiteToken },
			func(in *policy.AuthInput) { in.Posture = nil },
		} {
			in := good()
			change(&in)
			require.False(t, s.Authorize(t.Context(), in).Allow)
		}
	}
	in := good()
	in.Identity = strings.Repeat("x", 1000)
	in.Credential.Identity = in.Identity
	for i := range 200 {
		in.Method = fmt.Sprint(i)
		require.True(t, s.Authorize(t.Context(), in).Allow)
		if i > 20 {
			in.Identity, in.Credential.Identity, in.Path = "web-1", "web-1", fmt.Sprintf("/spec/%d", i)
		}
	}
}

// What was decided for one of 10,000 nodes is not decided again when all the others have asked.
func TestDecisionsAreRemembered(t *testing.T) {
	s, usual := set(t), good()
	ask := func(i int) {
		in := usual
		in.Identity = fmt.Sprintf("web-%d", i)
		in.Path, in.Credential.Identity = "/spec/"+in.Identity, in.Identity
		require.True(t, s.Authorize(t.Context(), in).Allow)
	}
	const nodes, most = 10_000, 16_384
	for i := range nodes {
		ask(i)
	}
	first, next := 0, nodes
	again := testing.AllocsPerRun(5, func() { ask(first); first++ })
	made := testing.AllocsPerRun(5, func() { ask(next); next++ })
	require.Less(t, again, made/4, "allocations of a decision that was made, and of a new one")
	for ; next <= most; next++ {
		ask(next) // and what has no room is forgotten
	}
	require.Greater(t, testing.AllocsPerRun(5, func() { ask(first); first++ }), again)
}

func BenchmarkAuthorize(b *testing.B) {
	s := set(b)
	b.Run("again", func(b *testing.B) {
		in := good()
		b.ReportAllocs()
		for b.Loop() {
			require.True(b, s.Authorize(b.Context(), in).Allow)
		}
	})
	b.Run("new", func(b *testing.B) {
		in := good()
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			in.Method = strconv.Itoa(i)
			require.True(b, s.Authorize(b.Context(), in).Allow)
		}
	})
}
