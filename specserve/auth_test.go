package specserve_test

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/limit"
)

// fast is a rate that no test reaches.
var fast = limit.Rate{Every: time.Nanosecond, Burst: 1_000_000}

func unlimited() specserve.Limits {
	l := specserve.Usual()
	l.Refusals, l.RefusalsPerNode = fast, fast
	return l
}

func rules(text string) fs.FS {
	return fstest.MapFS{"policy/x.rego": {Data: []byte(text)}}
}

// The whole table: what each method says to each credential, from a network that the posture allows
// and from another one. The same table is in policy/shipped/auth_test.rego.
func TestAuth(t *testing.T) {
	s := serve(t, unlimited())
	expired, err := keys.MintToken(s.keys[0], keys.Claims{Node: "own", Spec: "base", Issued: 1, Expires: 2})
	require.NoError(t, err)
	dropped := keys.NewKey()
	const ok, none, bad, other, late = "200 ", "401 E300", "401 E301", "403 E302", "401 E303"
	for _, c := range []struct {
		credential string
		header     func(node string) []string
		want       map[string]string // by method; the first one counts for all that are missing
	}{
		{"none", func(string) []string { return nil }, map[string]string{"net inside": ok, "": none}},
		{"wrong", func(string) []string { return bearer("wrong") }, map[string]string{"": bad}},
		{"malformed", func(string) []string { return []string{"Authorization", "Basic eDp5"} }, map[string]string{"": none}},
		{"malformed, two segments", func(string) []string { return bearer("wrong.!") }, map[string]string{"": none}},
		{"malformed, three segments", func(string) []string { return bearer(s.mint(s.keys[0], "own") + ".x") }, map[string]string{"": none}},
		{"malformed, not a token", func(string) []string { return bearer("e30.e30") }, map[string]string{"": bad}},
		{"no token", func(string) []string { return []string{"Authorization", "Bearer "} }, map[string]string{"": none}},
		{"two", func(string) []string { return append(bearer(siteToken), bearer(siteToken)...) }, map[string]string{"": none}},
		{"site's token", func(string) []string { return bearer(siteToken) }, map[string]string{"own inside": other, "own outside": other, "": ok}},
		{"node's token", func(node string) []string {
			return bearer(map[string]string{"net": netToken, "site": siteNode, "own": ownToken}[node])
		}, map[string]string{"site inside": other, "site outside": other, "": ok}},
		{"other node's token", func(node string) []string {
			return bearer(map[string]string{"net": ownToken, "site": netToken, "own": netToken}[node])
		}, map[string]string{"": other}},
		{"provisioning", func(node string) []string { return bearer(s.mint(s.keys[0], node)) }, map[string]string{"": ok}},
		{"provisioning, small letters", func(node string) []string {
			return []string{"authorization", "bearer " + s.mint(s.keys[0], node)}
		}, map[string]string{"": ok}},
		{"provisioning, older key", func(node string) []string { return bearer(s.mint(s.keys[1], node)) }, map[string]string{"": ok}},
		{"provisioning, dropped key", func(node string) []string { return bearer(s.mint(dropped, node)) }, map[string]string{"": bad}},
		{"provisioning, other node", func(node string) []string { return bearer(s.mint(s.keys[0], node+"x")) }, map[string]string{"": other}},
		{"provisioning, expired", func(string) []string { return bearer(expired) }, map[string]string{"": late}},
	} {
		for _, network := range []string{"inside", "outside"} {
			changed := site()
			if network == "outside" {
				changed.Postures["net"].Auth.Networks = []string{"192.0.2.0/24"}
			}
			s.publish(network, changed)
			for _, node := range []string{"net", "site", "own"} {
				want, exact := c.want[node+" "+network]
				if !exact {
					want = c.want[""]
				}
				got := s.ask("GET", "/spec/"+node, c.header(node)...)
				require.Equal(t, want, fmt.Sprint(got.status, " ", got.code()), "%s to %s from %s: %s", c.credential, node, network, got.body)
				require.Equal(t, got.status == 401, got.header.Get("WWW-Authenticate") != "")
				if got.status != 200 {
					require.NotContains(t, got.body, "canary")
				}
			}
		}
	}
	require.Equal(t, `Bearer realm="homestak-gitops", error="invalid_token"`, s.ask("GET", "/spec/own", bearer("wrong")...).header.Get("WWW-Authenticate"))
	require.Equal(t, `Bearer realm="homestak-gitops"`, s.ask("GET", "/spec/own").header.Get("WWW-Authenticate"))
}

// badToken is how a token that opens nothing is answered: one that was meant as a provisioning token, with
// two segments, is malformed if it cannot be taken apart, and any other one is not valid.
func badToken(text string) string {
	if _, err := keys.InspectToken(text); err != nil && strings.Contains(text, ".") {
		return "401 E300"
	}
	return "401 E301"
}

// A token with any one byte changed opens nothing, under every method.
func TestTamperedToken(t *testing.T) {
	s := serve(t, unlimited())
	s.publish("a", site())
	for _, node := range []string{"net", "site", "own"} {
		text := s.mint(s.keys[0], node)
		require.Equal(t, 200, s.ask("GET", "/spec/"+node, bearer(text)...).status)
		for i := range len(text) {
			for _, b := range []byte{'A', '.', '=', text[i] ^ 1} {
				if b == text[i] || b < '!' || b > '~' {
					continue
				}
				got := s.ask("GET", "/spec/"+node, bearer(text[:i]+string(b)+text[i+1:])...)
				require.Equal(t, badToken(text[:i]+string(b)+text[i+1:]), fmt.Sprint(got.status, " ", got.code()), "byte %d is %q", i, b)
			}
		}
		for _, changed := range []string{text[:len(text)-1], text + "A", text + ".", "." + text, text + "." + text, strings.ToUpper(text)} {
			got := s.ask("GET", "/spec/"+node, bearer(changed)...)
			require.Equal(t, badToken(changed), fmt.Sprint(got.status, " ", got.code()), changed)
		}
	}
	// Another payload under a signature that is genuine.
	_, signature, _ := strings.Cut(s.mint(s.keys[0], "net"), ".")
	payload := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"v":1,"n":"own","s":"base","iat":1,"kid":%q}`, s.keys[0].ID))
	require.Equal(t, "E301", s.ask("GET", "/spec/own", bearer(payload+"."+signature)...).code())
}

// Who may not have a spec does not learn whether there is one.
func TestUnknownNodes(t *testing.T) {
	s := start(t)
	for _, c := range []struct{ node, want string }{
		{"nobody", "401 E300"}, {"cold", "401 E300"}, {"own", "401 E300"},
	} {
		got := s.ask("GET", "/spec/"+c.node)
		require.Equal(t, c.want, fmt.Sprint(got.status, " ", got.code()))
		require.Equal(t, s.ask("GET", "/spec/own").body, got.body)
	}
	require.Equal(t, "E302", s.ask("GET", "/spec/nobody", bearer(siteToken)...).code())
	got := s.ask("GET", "/spec/nobody", bearer(s.mint(s.keys[0], "nobody"))...)
	require.Equal(t, 404, got.status)
	require.Equal(t, "E200", got.code())
	got = s.ask("GET", "/spec/cold", bearer(s.mint(s.keys[0], "cold"))...)
	require.Equal(t, 404, got.status)
	require.Contains(t, got.body, "manifest frozen is suspended")
}

// Keys and secrets count from the moment that they are published, and the old ones no longer.
func TestRotation(t *testing.T) {
	s := start(t)
	old := s.mint(s.keys[0], "own")
	next := keys.NewKey()
	s.keys = keys.Keys{next, s.keys[0]}
	s.publish("a", site())
	require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(old)...).status, "both are good in the overlap")
	require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(s.mint(next, "own"))...).status)
	s.keys = keys.Keys{next}
	changed := site()
	changed.Secrets.Values["auth"]["node_tokens.own"] = siteNode + "2"
	s.publish("a", changed)
	require.Equal(t, "E301", s.ask("GET", "/spec/own", bearer(old)...).code())
	require.Equal(t, "E301", s.ask("GET", "/spec/own", bearer(ownToken)...).code())
	require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(siteNode+"2")...).status)
}
