package specserve_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// tree is a site of two children, inner and other, with nodes below each: one by its parent, one by a
// manifest of its own, and one a level deeper. Each node needs a secret of its own.
func tree() (*model.Site, specserve.Needs) {
	s := catalogSite()
	pve := func(name, parent string) *model.Node { return &model.Node{Name: name, Type: "pve", Parent: parent} }
	vm := func(name, parent, spec string) *model.Node {
		return &model.Node{Name: name, Type: "vm", Parent: parent, Spec: spec}
	}
	s.Hosts = map[string]*model.Host{"inner": {Name: "inner", APIToken: "canary-token-of-inner"}, "father": {Name: "father", APIToken: "canary-token-of-father"}}
	s.Manifests["tree"] = &model.Manifest{Name: "tree", Host: "father", Nodes: []*model.Node{
		pve("inner", ""), pve("other", ""), vm("app", "inner", ""), pve("leaf", "inner"), vm("deep", "leaf", ""), vm("far-app", "other", "site_token"), vm("beside", "", ""),
	}}
	s.Manifests["below"] = &model.Manifest{Name: "below", Host: "inner", Nodes: []*model.Node{vm("late", "", "")}}
	needs := specserve.Needs{"": {"passwords.everywhere"}}
	passwords, tokens := map[string]string{"everywhere": "canary-everywhere", "unused": "canary-unused"}, map[string]string{"signing_key": strings.Repeat("0a", 32), "site_token": catalogSiteToken}
	for _, name := range []string{"inner", "app", "leaf", "deep", "far-app", "beside", "late"} {
		needs[name] = []string{"passwords." + name}
		passwords[name], tokens["node_tokens."+name] = "canary-of-"+name, "canary-node-token-of-"+name
	}
	s.Secrets.Values = map[string]map[string]string{
		"passwords": passwords, "auth": tokens,
		"api_tokens": {"father": "canary-token-of-father", "a": "canary-token-of-inner"},
		"ssh_keys":   {"ops": "ssh-ed25519 AAAA", "driver": "-----BEGIN OPENSSH PRIVATE KEY-----\ncanary-key\n"},
	}
	return s, needs
}

func config(t *testing.T, c *specserve.Catalog, child string) (wire.Config, string, string) {
	t.Helper()
	n := c.Node(child)
	require.NotNil(t, n)
	document, tag, err := c.Config(n, specserve.Own{Pins: []string{pinA, pinB}, Token: "new.token"})
	require.NoError(t, err)
	got, _, err := wire.ReadConfig(document, child)
	require.NoError(t, err)
	require.Equal(t, "new.token", got.Token)
	return got, string(document), tag
}

// A child gets the names of all secrets, and the values of its subtree: no canary of anybody else.
func TestConfigOfAChild(t *testing.T) {
	s, needs := tree()
	c := made(t, specserve.CatalogInput{Site: s, Agent: "father", Needs: needs})
	require.Equal(t, []string{"beside", "inner", "net", "other", "own", "plain", "site"}, c.Names(), "an agent serves what is right on it")
	inner, text, tag := config(t, c, "inner")
	require.Equal(t, "3f2c1a9", inner.Commit)
	require.False(t, inner.Removed)
	require.Equal(t, "home.example", inner.Defaults.Domain)
	require.Equal(t, []string{"driver"}, inner.PrivateKeys)
	has := map[string]bool{}
	for section, values := range s.Secrets.Values {
		require.Len(t, inner.Secrets[section], len(values), "all names are known")
		for name, value := range inner.Secrets[section] {
			if value != nil {
				has[section+"."+name] = true
				require.Equal(t, values[name], *value)
			}
		}
	}
	want := map[string]bool{"ssh_keys.ops": true, "api_tokens.a": true, "passwords.everywhere": true}
	for _, name := range []string{"app", "leaf", "deep", "late"} {
		want["passwords."+name], want["auth.node_tokens."+name] = true, true
	}
	require.Equal(t, want, has)
	for _, other := range []string{"canary-of-far-app", "canary-of-beside", "canary-unused", "canary-of-inner", "canary-token-of-father", "canary-key", catalogSiteToken, strings.Repeat("0a", 32)} {
		require.NotContains(t, text, other)
	}

	other, _, _ := config(t, c, "other")
	require.NotNil(t, other.Secrets["auth"]["site_token"], "a posture of its subtree lets nodes in by it")
	require.Nil(t, other.Secrets["passwords"]["app"])

	// The tag is that of the document without the token, so that a new token is no news.
	_, same, err := c.Config(c.Node("inner"), specserve.Own{Pins: []string{pinA, pinB}})
	require.NoError(t, err)
	require.Equal(t, tag, same)
	s.Secrets.Values["passwords"]["app"] = "another"
	_, _, changed := config(t, made(t, specserve.CatalogInput{Site: s, Agent: "father", Needs: needs}), "inner")
	require.NotEqual(t, tag, changed)

	// Where nobody knows who needs what, nobody gets anything but what is its own.
	blind, _, _ := config(t, made(t, specserve.CatalogInput{Site: s, Agent: "father"}), "inner")
	require.Nil(t, blind.Secrets["passwords"]["app"])
}

// The nodes of a child are served by the child.
func TestNodesOfAnAgent(t *testing.T) {
	s, needs := tree()
	require.Equal(t, []string{"app", "late", "leaf"}, made(t, specserve.CatalogInput{Site: s, Agent: "inner", Needs: needs}).Names())
	require.Equal(t, []string{"deep"}, made(t, specserve.CatalogInput{Site: s, Agent: "leaf", Needs: needs}).Names())
}

func TestConfigOfAChildThatLeaves(t *testing.T) {
	s, _ := tree()
	c := made(t, specserve.CatalogInput{Site: s, Agent: "father"})
	document, _, err := c.Config(specserve.Removed("gone"), specserve.Own{Pins: []string{pinA}})
	require.NoError(t, err)
	got, pins, err := wire.ReadConfig(document, "gone")
	require.NoError(t, err)
	require.Len(t, pins, 1)
	require.True(t, got.Removed)
	require.Nil(t, got.Secrets)
	require.NotContains(t, string(document), "canary")

	for _, bad := range []string{"", "{}", `{"version":2,"identity":"gone","pins":["` + pinA + `"]}`, `{"version":1,"identity":"gone"}`, `{"version":1,"identity":"other","pins":["` + pinA + `"]}`, `{"version":1,"identity":"gone","token":"a\nb","pins":["` + pinA + `"]}`} {
		_, _, err := wire.ReadConfig([]byte(bad), "gone")
		require.Error(t, err, bad)
	}
}

// A child gets the keys that prove its own guests and those of the children below it: neither the key of the site nor those
// of its siblings or its parent, in none of its documents. It learns that the site has a key even if its parent does not know the value.
func TestS1KeysOfAChild(t *testing.T) {
	s, needs := tree()
	now, before := strings.Repeat("c1", 32), strings.Repeat("c2", 32)
	auth := s.Secrets.Values["auth"]
	auth["ownership_key"], auth["ownership_key_previous"], auth["ownership_keys.other"] = now, before, strings.Repeat("c3", 32)
	needs["app"] = append(needs["app"], "auth", "auth.ownership_key") // a site cannot, and that is not what protects it
	c := made(t, specserve.CatalogInput{Site: s, Agent: "father", Needs: needs})
	inner, text, _ := config(t, c, "inner")
	want := map[string]string{}
	for _, owner := range []string{"inner", "leaf"} {
		maps.Copy(want, s.Secrets.DerivedOwnershipKeys(s.Name, owner))
	}
	got := map[string]string{}
	for name, value := range inner.Secrets["auth"] {
		if model.IsOwnershipSecret(name) && value != nil {
			got[name] = *value
		}
	}
	require.Len(t, want, 4)
	require.Equal(t, want, got)
	canaries := []string{now, before, auth["ownership_keys.other"]}
	for _, owner := range []string{"father", "other", "mother"} {
		for _, key := range s.Secrets.DerivedOwnershipKeys(s.Name, owner) {
			canaries = append(canaries, key)
		}
	}
	documents := []string{text}
	for _, n := range c.Names() {
		document, _, err := c.Node(n).Answer(specserve.Own{})
		if err == nil {
			documents = append(documents, string(document))
		}
	}
	for _, canary := range canaries {
		for _, document := range documents {
			require.NotContains(t, document, canary)
		}
	}

	// The child passes the keys on in turn.
	below := &model.Secrets{Values: map[string]map[string]string{"auth": got}}
	require.Equal(t, s.Secrets.OwnershipKeys(s.Name, "leaf"), below.OwnershipKeys(s.Name, "leaf"))

	auth["ownership_key"], auth["ownership_key_previous"] = "", ""
	inner, _, _ = config(t, made(t, specserve.CatalogInput{Site: s, Agent: "father", Needs: needs}), "inner")
	require.Contains(t, inner.Secrets["auth"], "ownership_key")
	require.Nil(t, inner.Secrets["auth"]["ownership_key"])
	require.NotContains(t, inner.Secrets["auth"], "ownership_keys.inner")

	// A child that left gets its keys as well: it proves by them what it has to remove.
	auth["ownership_key"] = now
	document, _, err := made(t, specserve.CatalogInput{Site: s, Agent: "father", Needs: needs}).Config(specserve.Removed("gone"), specserve.Own{Pins: []string{pinA}})
	require.NoError(t, err)
	left, _, err := wire.ReadConfig(document, "gone")
	require.NoError(t, err)
	key := s.Secrets.DerivedOwnershipKeys(s.Name, "gone")["ownership_keys.gone"]
	require.Equal(t, map[string]map[string]*string{"auth": {"ownership_key": nil, "ownership_keys.gone": &key}}, left.Secrets)

	// An agent that has heard nothing from its own parent does not know whether there is a key. One at the top knows that there is none.
	s.Secrets = nil
	inner, _, _ = config(t, made(t, specserve.CatalogInput{Site: s, Agent: "father", Needs: needs}), "inner")
	require.Contains(t, inner.Secrets["auth"], "ownership_key")
	inner, _, _ = config(t, made(t, specserve.CatalogInput{Site: s, Agent: "father", Way: "father", Needs: needs}), "inner")
	require.NotContains(t, inner.Secrets["auth"], "ownership_key")
}
