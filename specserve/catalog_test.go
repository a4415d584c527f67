package specserve_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

const pinA, pinB = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

// catalogSite has a node for each method, each with a secret of its own in a file.
func catalogSite() *model.Site {
	secret := func(name string) *model.Config {
		return &model.Config{Files: []model.File{{Path: "/etc/secret", Content: "canary-of-" + name + " <&>\u2028", Mode: "0600"}}}
	}
	node := func(name, spec string) *model.Node { return &model.Node{Name: name, Spec: spec, Type: "vm"} }
	s := &model.Site{
		Name: "home", Domain: "home.example", Packages: []string{"vim"},
		Postures: map[string]*model.Posture{}, Specs: map[string]*model.Spec{},
		Manifests: map[string]*model.Manifest{
			"web":    {Name: "web", Host: "father", Nodes: []*model.Node{node("net", "network"), node("site", "site_token"), node("own", "node_token"), node("plain", "")}},
			"away":   {Name: "away", Host: "mother", Nodes: []*model.Node{node("far", "network")}},
			"recipe": {Name: "recipe", Nodes: []*model.Node{node("none", "network")}},
			"frozen": {Name: "frozen", Host: "father", Suspend: true, Nodes: []*model.Node{node("cold", "network")}},
			"later":  {Name: "later", Host: "father", Nodes: []*model.Node{node("chill", "network")}},
		},
		Suspended: []string{"later"},
		Secrets: &model.Secrets{Source: "secrets.yaml", Values: map[string]map[string]string{
			"auth": {"site_token": catalogSiteToken, "node_tokens.own": catalogOwnToken, "node_tokens.net": catalogNetToken, "node_tokens.unknown": "", "signing_key": strings.Repeat("0a", 32)},
		}},
	}
	for _, method := range []string{"network", "site_token", "node_token"} {
		s.Postures[method] = &model.Posture{Name: method, Auth: &model.Auth{Method: method}, SSH: &model.SSHD{Port: 2222}}
		s.Specs[method] = &model.Spec{Name: method, Access: &model.Access{Posture: method}, Config: secret(method)}
	}
	return s
}

const (
	catalogSiteToken = "5e0c9c5a1d-the-token-of-the-site"
	catalogOwnToken  = "8a3b5d7c2f-the-token-of-node-own"
	catalogNetToken  = "1b4e6f8a9c-the-token-of-node-net"
)

func policies(t *testing.T) *policy.Set {
	t.Helper()
	set, found := policy.Compile(t.Context(), policy.Options{})
	require.Empty(t, found)
	return set
}

func made(t *testing.T, in specserve.CatalogInput) *specserve.Catalog {
	t.Helper()
	in.Commit, in.Policies = "3f2c1a9", policies(t)
	c, found := specserve.MakeCatalog(in)
	require.Empty(t, found)
	return c
}

func TestNodes(t *testing.T) {
	c := made(t, specserve.CatalogInput{Site: catalogSite()})
	require.Equal(t, []string{"far", "net", "own", "plain", "site"}, c.Names(), "what is deployed and not suspended")
	require.Equal(t, "frozen", c.Suspended("cold"))
	require.Equal(t, "later", c.Suspended("chill"))
	require.Empty(t, c.Suspended("net"))
	require.Nil(t, c.Node("cold"))
	require.Equal(t, []string{"net", "own", "plain", "site"}, made(t, specserve.CatalogInput{Site: catalogSite(), Host: "father"}).Names())
}

// What is sent is what wire says, and what a push applies: the posture in full, the node's own name,
// and nothing of any other node.
func TestAnswer(t *testing.T) {
	s := catalogSite()
	c := made(t, specserve.CatalogInput{Site: s})
	pins := []string{pinA, pinB}
	for _, n := range s.Manifests["web"].Nodes {
		node := c.Node(n.Name)
		require.Equal(t, n.Spec, node.Spec)
		want, found := spec.Resolve(s, n)
		require.Empty(t, found)
		for _, own := range []specserve.Own{{Pins: pins}, {Pins: pins, Token: "new.token"}, {Pins: pins, Token: "new.token", Agent: map[string]string{"linux-amd64": strings.Repeat("0a", 32)}}} {
			token := own.Token
			document, tag, err := node.Answer(own)
			require.NoError(t, err)
			sent := wire.Spec{Spec: want, Pins: pins, Token: token, Agent: own.Agent}
			wantDocument, err := sent.Document()
			require.NoError(t, err)
			require.Equal(t, string(wantDocument), string(document))
			wantTag, err := sent.ETag()
			require.NoError(t, err)
			require.Equal(t, wantTag, tag)
			read, err := wire.ReadSpec(document, n.Name)
			require.NoError(t, err)
			require.Equal(t, token, read.Token)
			resolved, err := spec.Read(read.Spec)
			require.NoError(t, err)
			if n.Spec != "" {
				require.Equal(t, n.Name, resolved.Identity.Hostname)
				require.Equal(t, "2222", resolved.Posture.SSH.Port)
			}
			require.Equal(t, n.Spec != "", strings.Contains(string(document), "canary-of-"+n.Spec+" "))
			require.LessOrEqual(t, strings.Count(string(document), "canary"), 1)
			for _, other := range []string{catalogSiteToken, catalogOwnToken, catalogNetToken} {
				require.NotContains(t, string(document), other)
			}
		}
	}
	_, tag, err := c.Node("net").Answer(specserve.Own{Pins: pins})
	require.NoError(t, err)
	_, rotated, err := c.Node("net").Answer(specserve.Own{Pins: []string{pinB, pinA}})
	require.NoError(t, err)
	require.NotEqual(t, tag, rotated)
}

// A commit is served as a whole or not at all.
func TestWhatIsWrongWithACommit(t *testing.T) {
	for want, change := range map[string]func(*model.Site){
		"error: secret passwords.x is not known here":            func(s *model.Site) { s.Specs["node_token"].Missing = []string{"passwords.x"} },
		"error: the spec of node own is too large to be fetched": func(s *model.Site) { s.Specs["node_token"].Config.Files[0].Content = strings.Repeat("x", 8<<20) },
		"error: secret auth.signing_key is not a signing key":    func(s *model.Site) { s.Secrets.Values["auth"]["signing_key"] = catalogSiteToken },
		"warning: secret auth.site_token can be guessed":         func(s *model.Site) { s.Secrets.Values["auth"]["site_token"] = "hunter2hunter2" },
		"warning: secret auth.node_tokens.own can be guessed":    func(s *model.Site) { s.Secrets.Values["auth"]["node_tokens.own"] = "hunter2hunter2" },
	} {
		s := catalogSite()
		change(s)
		c, found := specserve.MakeCatalog(specserve.CatalogInput{Site: s, Commit: "a", Policies: policies(t)})
		require.Len(t, found, 1)
		require.True(t, strings.HasSuffix(found[0].String(), want), found[0].String())
		require.Equal(t, found[0].Severity == diag.Error, c == nil)
		require.NotContains(t, found[0].String()+found[0].Detail, "hunter2")
		require.NotContains(t, found[0].String()+found[0].Detail, catalogSiteToken)
	}
	_, found := specserve.MakeCatalog(specserve.CatalogInput{Site: &model.Site{}, Policies: policies(t)})
	require.Empty(t, found, "a site without secrets")
}

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func mint(t *testing.T, k keys.Key, c keys.Claims) string {
	t.Helper()
	text, err := keys.MintToken(k, c)
	require.NoError(t, err)
	return text
}

func TestCredentials(t *testing.T) {
	s := catalogSite()
	c := made(t, specserve.CatalogInput{Site: s})
	key, old, other := keys.NewKey(), keys.NewKey(), keys.NewKey()
	predecessor, err := keys.ParseKey(strings.Repeat("0a", 32))
	require.NoError(t, err)
	claims := keys.Claims{Node: "own", Spec: "base", Issued: now.Unix() - 10, Expires: now.Unix() + 10}
	expired := claims
	expired.Expires = now.Unix()
	for _, x := range []struct {
		name, text string
		want       policy.Credential
		code       wire.Code
	}{
		{"site's", catalogSiteToken, policy.Credential{Kind: policy.SiteToken, Valid: true}, ""},
		{"node's", catalogOwnToken, policy.Credential{Kind: policy.NodeToken, Valid: true, Identity: "own"}, ""},
		{"another node's", catalogNetToken, policy.Credential{Kind: policy.NodeToken, Valid: true, Identity: "net"}, ""},
		{"almost", catalogSiteToken + "x", policy.Credential{Kind: policy.Provisioning}, wire.CodeRefused},
		{"nothing", "", policy.Credential{Kind: policy.Provisioning}, wire.CodeRefused},
		{"minted", mint(t, key, claims), policy.Credential{Kind: policy.Provisioning, Valid: true, Identity: "own"}, ""},
		{"by the older key", mint(t, old, claims), policy.Credential{Kind: policy.Provisioning, Valid: true, Identity: "own"}, ""},
		{"by the predecessor", mint(t, predecessor.Predecessor(), claims), policy.Credential{Kind: policy.Provisioning, Valid: true, Identity: "own"}, ""},
		{"by that key under a name", mint(t, predecessor, claims), policy.Credential{Kind: policy.Provisioning}, wire.CodeRefused},
		{"by another key", mint(t, other, claims), policy.Credential{Kind: policy.Provisioning}, wire.CodeRefused},
		{"expired", mint(t, key, expired), policy.Credential{Kind: policy.Provisioning}, wire.CodeExpired},
		{"for another node", mint(t, key, keys.Claims{Node: "net", Spec: "base"}), policy.Credential{Kind: policy.Provisioning, Valid: true, Identity: "net"}, ""},
	} {
		got := c.Check(x.text, "own", keys.Keys{key, old}, nil, now)
		require.Equal(t, x.want, got.Credential, x.name)
		if x.code == "" {
			require.NoError(t, got.Err, x.name)
		} else {
			require.Equal(t, x.code, wire.CodeOf(got.Err), x.name)
			require.Zero(t, got.Claims, x.name)
		}
	}
	// A text may be the token of several: that of the node asked about counts, then the site's.
	s.Secrets.Values["auth"]["site_token"], s.Secrets.Values["auth"]["node_tokens.net"] = catalogOwnToken, catalogOwnToken
	c = made(t, specserve.CatalogInput{Site: s})
	for _, node := range []string{"own", "net"} {
		require.Equal(t, policy.Credential{Kind: policy.NodeToken, Valid: true, Identity: node}, c.Check(catalogOwnToken, node, nil, nil, now).Credential)
	}
	require.Equal(t, policy.SiteToken, c.Check(catalogOwnToken, "site", nil, nil, now).Kind)
}

// YAML has the same members in the same order, and values that YAML would take for something else
// stay what they are.
func TestYAML(t *testing.T) {
	document := []byte(`{"b":"true","a":["1","~",null,1.5,"2026-01-02"],"text":"a\nb\n","empty":{},"tab":"a\tb","c":"\u2028<","long":"` + strings.Repeat("x y ", 100) + `"}`)
	out, err := specserve.YAML(document)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(out), "b: \"true\"\na:\n  - \"1\"\n"), string(out))
	var got, want map[string]any
	require.NoError(t, yaml.Unmarshal(out, &got))
	require.NoError(t, json.Unmarshal(document, &want))
	require.Equal(t, want, got)
	_, err = specserve.YAML([]byte("{"))
	require.Error(t, err)
}

// Many readers are of YAML 1.1, where yes, off and 1:20 are no strings.
func TestN17YAMLQuotesWhatOlderReadersMistake(t *testing.T) {
	words := []string{"y", "Y", "yes", "Yes", "YES", "n", "N", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF", "1:20", "190:20:30.15", "0o17", "017", "0644", "0b1", "1_000", "~", "null", "=", "<<", "2026-01-02", ".inf", "-"}
	document := map[string]any{"plain": "web-1", "path": "/etc/motd"}
	for _, word := range words {
		document["value of "+word], document[word] = word, "key"
	}
	in, err := json.Marshal(document)
	require.NoError(t, err)
	out, err := specserve.YAML(in)
	require.NoError(t, err)
	for _, word := range words {
		require.Regexp(t, `(?m)^"?value of `+regexp.QuoteMeta(word)+`"?: ["']`+regexp.QuoteMeta(word)+`["']$`, string(out))
		require.Regexp(t, `(?m)^["']`+regexp.QuoteMeta(word)+`["']: key$`, string(out))
	}
	require.Contains(t, string(out), "plain: web-1\n")
	require.Contains(t, string(out), "path: /etc/motd\n")
}
