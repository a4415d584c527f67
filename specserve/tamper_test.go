package specserve_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

// Every byte of every kind of credential matters, under each method, from a network of the posture and
// from elsewhere, and at each endpoint that takes it.
func TestEveryByteMatters(t *testing.T) {
	s := serve(t, unlimited())
	for _, network := range []string{"127.0.0.1/32", "192.0.2.0/24"} {
		changed := site()
		changed.Postures["net"].Auth.Networks = []string{network}
		changed.Manifests["web"].Nodes = append(changed.Manifests["web"].Nodes, &model.Node{Name: "inner", Spec: "own", Type: "pve"})
		s.publish(network, changed)
		for _, c := range []struct{ method, path, credential, right string }{
			{"GET", "/spec/net", netToken, "200 "},
			{"GET", "/spec/net", siteToken, "200 "},
			{"GET", "/spec/net", s.mint(s.keys[0], "net"), "200 "},
			{"GET", "/spec/site", siteToken, "200 "},
			{"GET", "/spec/site", s.mint(s.keys[1], "site"), "200 "},
			{"GET", "/spec/own", ownToken, "200 "},
			{"GET", "/spec/own", s.mint(s.keys[1], "own"), "200 "},
			{"GET", "/specs", siteToken, "200 "},
			{"GET", "/agent/plan9-arm", s.mint(s.keys[0], "own"), "404 E200"},
			{"GET", "/agent/plan9-arm", siteToken, "404 E200"},
			{"GET", "/site.git/raw/HEAD/x", s.mint(s.keys[0], "inner"), "404 E200"},
			{"GET", "/site.git/raw/HEAD/x", string(s.access.Repository), "404 E200"},
			{"GET", "/wait/own", s.mint(s.keys[0], "own"), "200 "},
			{"POST", "/report/own", s.mint(s.keys[0], "own"), "422 E400"},
			{"GET", "/status", string(s.access.Read), "200 "},
			{"GET", "/metrics", string(s.access.Read), "200 "},
			{"POST", "/reconcile", string(s.access.Operator), "202 "},
		} {
			ask := func(credential string) string {
				got := s.ask(c.method, c.path, append(bearer(credential), "If-None-Match", `"other"`)...)
				return fmt.Sprint(got.status, " ", got.code())
			}
			require.Equal(t, c.right, ask(c.credential), "%s %s", c.method, c.path)
			for i := range len(c.credential) {
				b := c.credential[i] ^ 1
				changed := c.credential[:i] + string(b) + c.credential[i+1:]
				require.Equal(t, badToken(changed), ask(changed), "%s %s, byte %d", c.method, c.path, i)
			}
			for _, changed := range []string{c.credential[:len(c.credential)-1], c.credential + "0"} {
				require.Equal(t, badToken(changed), ask(changed), "%s %s", c.method, c.path)
			}
		}
	}
}

// The program and the repository need a credential that is good, also where the posture of a node lets
// its network fetch specs: whoever needs them has a token.
func TestDownloadsUnderEveryMethod(t *testing.T) {
	s := withRepository(t)
	expired, err := keys.MintToken(s.keys[0], keys.Claims{Node: "inner", Spec: "base", Issued: 1, Expires: 2})
	require.NoError(t, err)
	const refs, program = "/site.git/info/refs?service=git-upload-pack", "/agent/plan9-arm"
	require.Equal(t, 200, s.ask(http.MethodGet, "/spec/net").status, "from this network specs need nothing")
	for _, c := range []struct{ name, credential, repository, program string }{
		{"none", "", "401 E300", "401 E300"},
		{"expired", expired, "401 E303", "401 E303"},
		{"a dropped key", s.mint(keys.NewKey(), "inner"), "401 E301", "401 E301"},
		{"the older key", s.mint(s.keys[1], "inner"), "200 ", "404 E200"},
		{"a node under network", s.mint(s.keys[0], "net"), "403 E302", "404 E200"},
		{"its token of the site", netToken, "403 E302", "404 E200"},
		{"a node under site_token", s.mint(s.keys[0], "site"), "403 E302", "404 E200"},
		{"a node under node_token", s.mint(s.keys[0], "own"), "403 E302", "404 E200"},
	} {
		for path, want := range map[string]string{refs: c.repository, program: c.program} {
			var headers []string
			if c.credential != "" {
				headers = bearer(c.credential)
			}
			got := s.ask(http.MethodGet, path, headers...)
			require.Equal(t, want, fmt.Sprint(got.status, " ", got.code()), "%s: %s", c.name, path)
		}
	}
}
