package specserve

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// withChild has a child of type pve with a node below it.
func withChild() (*model.Site, needs) {
	s := site()
	m := *s.Manifests["web"]
	m.Nodes = append(slices.Clip(m.Nodes), &model.Node{Name: "inner", Type: "pve", Spec: "own"}, &model.Node{Name: "app", Type: "vm", Parent: "inner"})
	s.Manifests["web"] = &m
	s.Secrets.Values["passwords"] = map[string]string{"app": "canary-of-app", "own": "canary-of-own"}
	return s, needs{"app": {"passwords.app"}, "own": {"passwords.own"}}
}

func (s *served) publishTree(leaving map[string]bool) {
	s.t.Helper()
	tree, needs := withChild()
	c, found := MakeCatalog(CatalogInput{Site: tree, Commit: "3f2c1a9", Policies: s.set, Agent: "father", Needs: needs})
	require.Empty(s.t, found)
	s.Publish(View{Catalog: c, Keys: s.keys, Access: s.access, Pins: s.pins, Removed: leaving})
}

func TestConfig(t *testing.T) {
	s := serveLimits(t, unlimited())
	s.publishTree(nil)
	got := s.ask("GET", "/config/inner", bearer(s.mint(s.keys[0], "inner"))...)
	require.Equal(t, 200, got.status)
	c, pins, err := wire.ReadConfig([]byte(got.body), "inner")
	require.NoError(t, err)
	require.Equal(t, s.pins, wire.PinTexts(pins))
	require.Equal(t, "canary-of-app", *c.Secrets["passwords"]["app"])
	require.Equal(t, 1, strings.Count(got.body, "canary"), "nothing of anybody else")
	require.Empty(t, c.Token, "it is good for longer")
	tag := got.header.Get("Etag")
	require.Equal(t, 304, s.ask("GET", "/config/inner", append(bearer(s.mint(s.keys[0], "inner")), "If-None-Match", tag)...).status)

	// A token of the older key is renewed, and then a 304 would not do.
	got = s.ask("GET", "/config/inner", append(bearer(s.mint(s.keys[1], "inner")), "If-None-Match", tag)...)
	require.Equal(t, 200, got.status)
	require.Equal(t, tag, got.header.Get("Etag"))
	c, _, err = wire.ReadConfig([]byte(got.body), "inner")
	require.NoError(t, err)
	require.NotEmpty(t, c.Token)
	require.Equal(t, 200, s.ask("GET", "/config/inner", bearer(c.Token)...).status)

	for name, c := range map[string]struct {
		path, token, code string
		status            int
	}{
		"none":                {"/config/inner", "", "E300", 401},
		"not valid":           {"/config/inner", "nonsense", "E301", 401},
		"of another":          {"/config/inner", s.mint(s.keys[0], "own"), "E302", 403},
		"of all nodes":        {"/config/inner", tokenOfSite, "E302", 403},
		"a vm":                {"/config/own", s.mint(s.keys[0], "own"), "E200", 404},
		"a node of the child": {"/config/app", s.mint(s.keys[0], "app"), "E200", 404},
		"unknown node":        {"/config/gone", s.mint(s.keys[0], "gone"), "E200", 404},
	} {
		var headers []string
		if c.token != "" {
			headers = bearer(c.token)
		}
		got := s.ask("GET", c.path, headers...)
		require.Equal(t, c.status, got.status, name)
		require.Equal(t, c.code, got.code(), name)
	}
	require.Equal(t, 405, s.ask("POST", "/config/inner").status)
}

// A child that has left the site stays known as long as it is on the host: it learns that it leaves, and may report that it is
// empty. There is no spec for it any more.
func TestLeavingChild(t *testing.T) {
	s := serveLimits(t, unlimited())
	s.publishTree(map[string]bool{"gone": true})
	token := s.mint(s.keys[0], "gone")
	got := s.ask("GET", "/config/gone", bearer(token)...)
	require.Equal(t, 200, got.status)
	c, _, err := wire.ReadConfig([]byte(got.body), "gone")
	require.NoError(t, err)
	require.True(t, c.Removed)
	require.NotContains(t, got.body, "canary")
	require.Equal(t, 202, s.send("POST", "/report/gone", strings.NewReader(s.document("gone", nil)), bearer(token)...).status)
	require.Equal(t, "gone", s.status().Nodes[0].Identity)
	spec := s.ask("GET", "/spec/gone", bearer(token)...)
	require.Equal(t, 404, spec.status)
	require.Equal(t, "E200", s.ask("GET", "/site.git/info/refs?service=git-upload-pack", bearer(token)...).code(), "let in; this server has none")
	s.publishTree(nil)
	require.Equal(t, 404, s.ask("GET", "/config/gone", bearer(token)...).status)
	require.Empty(t, s.status().Nodes)
}

// The server of an agent has a status and events of its own, for the read key.
func TestStatusAndEventsOfAnAgent(t *testing.T) {
	follow := make(chan string)
	s := serveOptions(t, unlimited(), nil, func(o *Options) {
		o.Status = func() any { return map[string]string{"identity": "father"} }
		o.Events = func(w http.ResponseWriter, r *http.Request, ending <-chan struct{}) {
			out := http.NewResponseController(w)
			for {
				select {
				case text := <-follow:
					_, _ = w.Write([]byte("data: " + text + " after " + r.Header.Get("Last-Event-ID") + "\n\n"))
					_ = out.Flush()
				case <-ending:
					return
				}
			}
		}
		o.Identity = "father"
	})
	s.publishTree(nil)
	for _, path := range []string{"/status", "/events"} {
		require.Equal(t, "E300", s.ask("GET", path).code())
		require.Equal(t, "E301", s.ask("GET", path, bearer(string(s.access.Repository))...).code())
		require.Equal(t, "E301", s.ask("GET", path, bearer(s.mint(s.keys[0], "inner"))...).code())
	}
	for _, key := range [][]byte{s.access.Read, s.access.Operator} {
		require.JSONEq(t, `{"identity":"father"}`, s.ask("GET", "/status", bearer(string(key))...).body)
	}
	require.Equal(t, "text/event-stream; charset=utf-8", s.ask("HEAD", "/events", bearer(string(s.access.Read))...).header.Get("Content-Type"))

	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.addr+"/events?follow=true", http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+string(s.access.Read))
	r.Header.Set("Last-Event-ID", "x-7")
	go func() { follow <- "one" }()
	got, err := s.client.Do(r)
	require.NoError(t, err)
	defer func() { _ = got.Body.Close() }()
	line, err := bufio.NewReader(got.Body).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "data: one after x-7\n", line)

	// A check of the agent itself, of a child, and of what a child has below it.
	operator := bearer(string(s.access.Operator))
	require.Equal(t, 202, s.ask("POST", "/reconcile/father", operator...).status)
	<-s.asked
	require.Equal(t, "E200", s.ask("POST", "/reconcile/old", operator...).code(), "neither the site nor a report has it")
	require.Equal(t, 202, s.ask("POST", "/reconcile/app", operator...).status, "the site has it below inner")
	<-s.asked
	document, err := json.Marshal(map[string]any{
		"version": 1, "identity": "inner", "at": "2027-01-15T08:00:00Z", "phase": "run", "nodes": []map[string]any{{"name": "old", "type": "vm", "parent": "inner", "phase": "run"}},
	})
	require.NoError(t, err)
	require.Equal(t, 202, s.send("POST", "/report/inner", strings.NewReader(string(document)), bearer(s.mint(s.keys[0], "inner"))...).status)
	require.Equal(t, 202, s.ask("POST", "/reconcile/old", operator...).status)
	<-s.asked

	plain := started(t)
	require.Equal(t, "E100", plain.ask("GET", "/events", bearer(string(plain.access.Read))...).code())
}

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

func made(t *testing.T, in CatalogInput) *Catalog {
	t.Helper()
	in.Commit, in.Policies = "3f2c1a9", policies(t)
	c, found := MakeCatalog(in)
	require.Empty(t, found)
	return c
}

func TestNodes(t *testing.T) {
	c := made(t, CatalogInput{Site: catalogSite()})
	require.Equal(t, []string{"far", "net", "own", "plain", "site"}, c.Names(), "what is deployed and not suspended")
	require.Equal(t, "frozen", c.Suspended("cold"))
	require.Equal(t, "later", c.Suspended("chill"))
	require.Empty(t, c.Suspended("net"))
	require.Nil(t, c.Node("cold"))
	require.Equal(t, []string{"net", "own", "plain", "site"}, made(t, CatalogInput{Site: catalogSite(), Host: "father"}).Names())
}

// What is sent is what wire says, and what a push applies: the posture in full, the node's own name,
// and nothing of any other node.
func TestAnswer(t *testing.T) {
	s := catalogSite()
	c := made(t, CatalogInput{Site: s})
	pins := []string{pinA, pinB}
	for _, n := range s.Manifests["web"].Nodes {
		node := c.Node(n.Name)
		require.Equal(t, n.Spec, node.Spec)
		want, found := spec.Resolve(s, n)
		require.Empty(t, found)
		for _, own := range []Own{{Pins: pins}, {Pins: pins, Token: "new.token"}, {Pins: pins, Token: "new.token", Agent: map[string]string{"linux-amd64": strings.Repeat("0a", 32)}}} {
			token := own.Token
			document, tag, err := node.Answer(own)
			require.NoError(t, err)
			sent := wire.Spec{Spec: want, Pins: pins, Token: token, Agent: own.Agent}
			wantDocument, err := json.Marshal(sent)
			require.NoError(t, err)
			require.Equal(t, string(wantDocument), string(document))
			sent.Token = ""
			tagged, err := json.Marshal(sent)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256(tagged))), tag)
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
	_, tag, err := c.Node("net").Answer(Own{Pins: pins})
	require.NoError(t, err)
	_, rotated, err := c.Node("net").Answer(Own{Pins: []string{pinB, pinA}})
	require.NoError(t, err)
	require.NotEqual(t, tag, rotated)
}

// A commit is served as a whole or not at all.
func TestInvalidCommitsAreNotServed(t *testing.T) {
	for want, change := range map[string]func(*model.Site){
		"error: secret passwords.x is not known here":            func(s *model.Site) { s.Specs["node_token"].Missing = []string{"passwords.x"} },
		"error: the spec of node own is too large to be fetched": func(s *model.Site) { s.Specs["node_token"].Config.Files[0].Content = strings.Repeat("x", 8<<20) },
		"error: secret auth.signing_key is not a signing key":    func(s *model.Site) { s.Secrets.Values["auth"]["signing_key"] = catalogSiteToken },
		"warning: secret auth.site_token can be guessed":         func(s *model.Site) { s.Secrets.Values["auth"]["site_token"] = "hunter2hunter2" },
		"warning: secret auth.node_tokens.own can be guessed":    func(s *model.Site) { s.Secrets.Values["auth"]["node_tokens.own"] = "hunter2hunter2" },
	} {
		s := catalogSite()
		change(s)
		c, found := MakeCatalog(CatalogInput{Site: s, Commit: "a", Policies: policies(t)})
		require.Len(t, found, 1)
		require.True(t, strings.HasSuffix(found[0].String(), want), found[0].String())
		require.Equal(t, found[0].Severity == diag.Error, c == nil)
		require.NotContains(t, found[0].String()+found[0].Detail, "hunter2")
		require.NotContains(t, found[0].String()+found[0].Detail, catalogSiteToken)
	}
	_, found := MakeCatalog(CatalogInput{Site: &model.Site{}, Policies: policies(t)})
	require.Empty(t, found, "a site without secrets")
}

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func mint(t *testing.T, k keys.Key, c keys.Claims) string {
	t.Helper()
	text, err := k.MintToken(c)
	require.NoError(t, err)
	return text
}

func TestCredentials(t *testing.T) {
	s := catalogSite()
	c := made(t, CatalogInput{Site: s})
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
	c = made(t, CatalogInput{Site: s})
	for _, node := range []string{"own", "net"} {
		require.Equal(t, policy.Credential{Kind: policy.NodeToken, Valid: true, Identity: node}, c.Check(catalogOwnToken, node, nil, nil, now).Credential)
	}
	require.Equal(t, policy.SiteToken, c.Check(catalogOwnToken, "site", nil, nil, now).Kind)
}

// YAML has the same members in the same order, and values that YAML would take for something else
// stay what they are.
func TestYAML(t *testing.T) {
	document := []byte(`{"b":"true","a":["1","~",null,1.5,"2026-01-02"],"text":"a\nb\n","empty":{},"tab":"a\tb","c":"\u2028<","long":"` + strings.Repeat("x y ", 100) + `"}`)
	out, err := toYAML(document)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(out), "b: \"true\"\na:\n  - \"1\"\n"), string(out))
	var got, want map[string]any
	require.NoError(t, yaml.Unmarshal(out, &got))
	require.NoError(t, json.Unmarshal(document, &want))
	require.Equal(t, want, got)
	_, err = toYAML([]byte("{"))
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
	out, err := toYAML(in)
	require.NoError(t, err)
	for _, word := range words {
		require.Regexp(t, `(?m)^"?value of `+regexp.QuoteMeta(word)+`"?: ["']`+regexp.QuoteMeta(word)+`["']$`, string(out))
		require.Regexp(t, `(?m)^["']`+regexp.QuoteMeta(word)+`["']: key$`, string(out))
	}
	require.Contains(t, string(out), "plain: web-1\n")
	require.Contains(t, string(out), "path: /etc/motd\n")
}

// tree is a site of two children, inner and other, with nodes below each: one by its parent, one by a
// manifest of its own, and one a level deeper. Each node needs a secret of its own.
func tree() (*model.Site, needs) {
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
	needs := needs{"": {"passwords.everywhere"}}
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

func config(t *testing.T, c *Catalog, child string) (wire.Config, string, string) {
	t.Helper()
	n := c.Node(child)
	require.NotNil(t, n)
	document, tag, err := c.Config(n, Own{Pins: []string{pinA, pinB}, Token: "new.token"})
	require.NoError(t, err)
	got, _, err := wire.ReadConfig(document, child)
	require.NoError(t, err)
	require.Equal(t, "new.token", got.Token)
	return got, string(document), tag
}

// A child gets the names of all secrets, and the values of its subtree: no canary of anybody else.
func TestConfigOfAChild(t *testing.T) {
	s, needs := tree()
	c := made(t, CatalogInput{Site: s, Agent: "father", Needs: needs})
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
	_, same, err := c.Config(c.Node("inner"), Own{Pins: []string{pinA, pinB}})
	require.NoError(t, err)
	require.Equal(t, tag, same)
	s.Secrets.Values["passwords"]["app"] = "another"
	_, _, changed := config(t, made(t, CatalogInput{Site: s, Agent: "father", Needs: needs}), "inner")
	require.NotEqual(t, tag, changed)

	// While it is unknown which child needs what, each gets only what is its own.
	blind, _, _ := config(t, made(t, CatalogInput{Site: s, Agent: "father"}), "inner")
	require.Nil(t, blind.Secrets["passwords"]["app"])
}

// The nodes of a child are served by the child.
func TestNodesOfAnAgent(t *testing.T) {
	s, needs := tree()
	require.Equal(t, []string{"app", "late", "leaf"}, made(t, CatalogInput{Site: s, Agent: "inner", Needs: needs}).Names())
	require.Equal(t, []string{"deep"}, made(t, CatalogInput{Site: s, Agent: "leaf", Needs: needs}).Names())
}

func TestConfigOfAChildThatLeaves(t *testing.T) {
	s, _ := tree()
	c := made(t, CatalogInput{Site: s, Agent: "father"})
	document, _, err := c.Config(removed("gone"), Own{Pins: []string{pinA}})
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
	c := made(t, CatalogInput{Site: s, Agent: "father", Needs: needs})
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
		document, _, err := c.Node(n).Answer(Own{})
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
	inner, _, _ = config(t, made(t, CatalogInput{Site: s, Agent: "father", Needs: needs}), "inner")
	require.Contains(t, inner.Secrets["auth"], "ownership_key")
	require.Nil(t, inner.Secrets["auth"]["ownership_key"])
	require.NotContains(t, inner.Secrets["auth"], "ownership_keys.inner")

	// An agent with derived keys says which of the children have none, and so does a child that it gave its secrets.
	file := s.Secrets
	for _, given := range []map[string]string{{"ownership_keys.leaf": now}, {"ownership_key": "", "ownership_keys.inner": "", "ownership_keys.leaf": now}} {
		s.Secrets = &model.Secrets{Values: map[string]map[string]string{"auth": given}}
		inner, _, _ = config(t, made(t, CatalogInput{Site: s, Agent: "father", Needs: needs}), "inner")
		require.Equal(t, map[string]*string{"ownership_key": nil, "ownership_keys.inner": nil, "ownership_keys.leaf": &now}, inner.Secrets["auth"])
	}
	s.Secrets = file

	// A child that left gets its keys as well: it proves by them what it has to remove.
	auth["ownership_key"] = now
	document, _, err := made(t, CatalogInput{Site: s, Agent: "father", Needs: needs}).Config(removed("gone"), Own{Pins: []string{pinA}})
	require.NoError(t, err)
	left, _, err := wire.ReadConfig(document, "gone")
	require.NoError(t, err)
	key := s.Secrets.DerivedOwnershipKeys(s.Name, "gone")["ownership_keys.gone"]
	require.Equal(t, map[string]map[string]*string{"auth": {"ownership_key": nil, "ownership_keys.gone": &key}}, left.Secrets)

	// An agent that has heard nothing from its own parent does not know whether there is a key. One at the top knows that there is none.
	s.Secrets = nil
	inner, _, _ = config(t, made(t, CatalogInput{Site: s, Agent: "father", Needs: needs}), "inner")
	require.Contains(t, inner.Secrets["auth"], "ownership_key")
	require.NotContains(t, inner.Secrets["auth"], "ownership_keys.inner")
	inner, _, _ = config(t, made(t, CatalogInput{Site: s, Agent: "father", Way: "father", Needs: needs}), "inner")
	require.NotContains(t, inner.Secrets["auth"], "ownership_key")
}

// document is a report that is good.
func (s *served) document(node string, change func(*wire.Report)) string {
	s.t.Helper()
	r := wire.Report{Version: 1, Identity: node, Agent: "1.2.3", At: time.Unix(s.now.Load(), 0).UTC(), Phase: wire.PhaseRun, Ready: true}
	if change != nil {
		change(&r)
	}
	b, err := json.Marshal(r)
	require.NoError(s.t, err)
	return string(b)
}

// status is what the holder of the read key sees.
func (s *served) status() (out serverStatus) {
	s.t.Helper()
	got := s.ask("GET", "/status", bearer(string(s.access.Read))...)
	require.Equal(s.t, 200, got.status)
	require.NoError(s.t, json.Unmarshal([]byte(got.body), &out))
	return out
}

func TestReportAuth(t *testing.T) {
	s := started(t)
	s.publish("3f2c1a9", site())
	for name, c := range map[string]struct {
		path, token, code string
		status            int
	}{
		"its token":              {"/report/own", s.mint(s.keys[0], "own"), "", 202},
		"its token, older key":   {"/report/own", s.mint(s.keys[1], "own"), "", 202},
		"its token of the site":  {"/report/own", ownToken, "", 202},
		"none":                   {"/report/own", "", "E300", 401},
		"none, though it may":    {"/report/net", "", "E300", 401},
		"of another node":        {"/report/own", s.mint(s.keys[0], "net"), "E302", 403},
		"of another, site's":     {"/report/own", netToken, "E302", 403},
		"of all nodes":           {"/report/site", tokenOfSite, "E302", 403},
		"not valid":              {"/report/own", "canary", "E301", 401},
		"the read key":           {"/report/own", string(s.access.Read), "E301", 401},
		"a node that is unknown": {"/report/other", s.mint(s.keys[0], "other"), "E200", 404},
		"a suspended node":       {"/report/cold", s.mint(s.keys[0], "cold"), "E200", 404},
		"no name":                {"/report/", "", "E101", 400},
	} {
		t.Run(name, func(t *testing.T) {
			var headers []string
			if c.token != "" {
				headers = bearer(c.token)
			}
			node := strings.TrimPrefix(c.path, "/report/")
			got := s.send("POST", c.path, strings.NewReader(s.document(node, nil)), headers...)
			require.Equal(t, c.status, got.status, got.body)
			require.Equal(t, c.code, got.code())
			if c.status == 401 {
				require.Contains(t, got.header.Get("WWW-Authenticate"), "Bearer")
			}
		})
	}
	old := s.mint(s.keys[0], "own")
	s.now.Add(4000)
	got := s.send("POST", "/report/own", strings.NewReader(s.document("own", nil)), bearer(old)...)
	require.Equal(t, 401, got.status)
	require.Equal(t, "E303", got.code())
	got = s.ask("GET", "/report/own")
	require.Equal(t, 405, got.status)
	require.Equal(t, "POST", got.header.Get("Allow"))
}

func TestReportContent(t *testing.T) {
	l := unlimited()
	l.Reports = fast
	s := serveLimits(t, l)
	s.publish("3f2c1a9", site())
	good := s.document("own", nil)
	for name, c := range map[string]struct {
		body   io.Reader
		code   string
		status int
	}{
		"empty":             {strings.NewReader(""), "E400", 422},
		"not JSON":          {strings.NewReader(`{"version":`), "E400", 422},
		"two documents":     {strings.NewReader(good + good), "E400", 422},
		"not UTF-8":         {strings.NewReader("{\"version\":1,\"agent\":\"\xff\"}"), "E400", 422},
		"of another node":   {strings.NewReader(s.document("net", nil)), "E400", 422},
		"a newer version":   {strings.NewReader(s.document("own", func(r *wire.Report) { r.Version = 2 })), "E400", 422},
		"an unknown phase":  {strings.NewReader(s.document("own", func(r *wire.Report) { r.Phase = "canary" })), "E400", 422},
		"from the future":   {strings.NewReader(s.document("own", func(r *wire.Report) { r.At = r.At.Add(time.Hour) })), "E400", 422},
		"too many findings": {strings.NewReader(s.document("own", tooMany)), "E101", 413},
		"too long":          {strings.NewReader(strings.Repeat(" ", wire.MaxReport+1)), "E101", 413},
		"too long, a leaf":  {strings.NewReader(good + strings.Repeat(" ", maxLeafReport+1-len(good))), "E101", 413},
		"too long, unknown": {io.MultiReader(strings.NewReader(good+strings.Repeat(" ", maxLeafReport-len(good))), strings.NewReader(" ")), "E101", 413},
		"as long as may be": {strings.NewReader(good + strings.Repeat(" ", maxLeafReport-len(good))), "", 202},
		"nodes of a leaf": {strings.NewReader(s.document("own", func(r *wire.Report) {
			r.Nodes = []wire.ReportNode{{Name: "net", Type: "vm", Parent: "own", Phase: wire.PhaseRun}}
		})), "E400", 422},
		"an empty leaf":       {strings.NewReader(s.document("own", func(r *wire.Report) { r.Empty = true })), "E400", 422},
		"good after all that": {strings.NewReader(good), "", 202},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.send("POST", "/report/own", c.body, bearer(ownToken)...)
			require.Equal(t, c.status, got.status, got.body)
			require.Equal(t, c.code, got.code())
		})
	}
	require.Len(t, s.status().Nodes, 1)
}

func tooMany(r *wire.Report) {
	for range 1_001 {
		r.Findings = append(r.Findings, diag.Errorf(diag.Range{}, "x", "y"))
	}
}

// A child has nodes below it to report, and so more room.
func TestReportOfAChild(t *testing.T) {
	s := serveLimits(t, unlimited())
	with := site()
	with.Manifests["web"].Nodes = append(with.Manifests["web"].Nodes, &model.Node{Name: "inner", Spec: "own", Type: "pve"})
	s.publish("a", with)
	document := s.document("inner", func(r *wire.Report) { r.Every = 600 })
	send := func(length int) int {
		return s.send("POST", "/report/inner", strings.NewReader(document+strings.Repeat(" ", length-len(document))), bearer(s.mint(s.keys[0], "inner"))...).status
	}
	require.Equal(t, 202, send(maxLeafReport+1))
	require.Equal(t, 202, send(wire.MaxReport))
	require.Equal(t, 413, send(wire.MaxReport+1))
	// It says itself how often it reports.
	s.now.Add(1800)
	require.Equal(t, 600, s.status().Nodes[0].Period)
	require.False(t, s.status().Nodes[0].Stale)
	require.Contains(t, s.metrics(), "\nhomestak_node_ready{node=\"inner\"} 1\n")
	s.now.Add(1)
	require.True(t, s.status().Nodes[0].Stale)
	require.Contains(t, s.metrics(), "\nhomestak_node_ready{node=\"inner\"} 0\n")
}

// A node that reports in a loop is stopped, and no other one.
func TestReportRate(t *testing.T) {
	l := unlimited()
	l.Reports = Rate{Every: 10 * time.Second, Burst: 2}
	s := serveLimits(t, l)
	s.publish("3f2c1a9", site())
	send := func(node, token string) answer {
		return s.send("POST", "/report/"+node, strings.NewReader(s.document(node, nil)), bearer(token)...)
	}
	require.Equal(t, 202, send("own", ownToken).status)
	require.Equal(t, 401, send("own", "x").status, "who is refused does not count")
	require.Equal(t, 202, send("own", ownToken).status)
	got := send("own", ownToken)
	require.Equal(t, 429, got.status)
	require.Equal(t, "E429", got.code())
	require.Equal(t, "10", got.header.Get("Retry-After"))
	require.Equal(t, 202, send("net", netToken).status)
	s.now.Add(10)
	require.Equal(t, 202, send("own", ownToken).status)
}

func TestStatus(t *testing.T) {
	s := started(t)
	key := bearer(string(s.access.Read))
	require.JSONEq(t, `{"commit":"3f2c1a9","at":"2027-01-15T08:00:00Z","nodes":[]}`, s.ask("GET", "/status", key...).body)

	put := func(body string) string {
		t.Helper()
		got := s.send("POST", "/report/own", strings.NewReader(body), bearer(ownToken)...)
		require.Equal(t, 202, got.status, got.body)
		return got.body
	}
	require.JSONEq(t, `{"status":"kept"}`, put(s.document("own", func(r *wire.Report) {
		r.Ready, r.Phase, r.Findings = false, wire.PhaseConfig, diag.List{diag.Errorf(diag.Range{}, "apt is <locked>", "")}
	})))
	require.JSONEq(t, `{"commit":"3f2c1a9","at":"2027-01-15T08:00:00Z","nodes":[{"identity":"own","ready":false,"phase":"config","received":"2027-01-15T08:00:00Z","period_seconds":60,"stale":false,"error":"apt is \u003clocked\u003e","commit":"","agent":"1.2.3"}]}`, s.ask("GET", "/status", key...).body)

	// Requests may overtake each other.
	require.JSONEq(t, `{"status":"there is a newer report"}`, put(s.document("own", func(r *wire.Report) { r.At = r.At.Add(-time.Second) })))
	require.False(t, s.status().Nodes[0].Ready)

	s.now.Add(10)
	put(s.document("own", nil))
	s.now.Add(180)
	require.True(t, s.status().Nodes[0].Ready)
	require.False(t, s.status().Nodes[0].Stale)
	s.now.Add(1)
	require.True(t, s.status().Nodes[0].Stale)
	require.False(t, s.status().Nodes[0].Ready)

	// A node that leaves the site leaves the status.
	without := site()
	without.Manifests["web"].Nodes = without.Manifests["web"].Nodes[:0]
	s.publish("4a3d2b1", without)
	require.Empty(t, s.status().Nodes)
}

// A node reports after each of its runs, so its own interval says when a report is stale.
func TestStaleByInterval(t *testing.T) {
	for name, c := range map[string]struct {
		trigger  string
		interval time.Duration
		after    int64
		period   int
		stale    bool
	}{
		"before":       {"schedule", 10 * time.Minute, 1800, 600, false},
		"after":        {"schedule", 10 * time.Minute, 1801, 600, true},
		"only at boot": {"manual", 0, 1 << 20, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveLimits(t, unlimited())
			with := site()
			for _, n := range with.Manifests["web"].Nodes {
				n.Mode = model.ModePull
				with.Specs[n.Spec].Run = &model.Run{Trigger: c.trigger, Interval: c.interval}
			}
			s.publish("3f2c1a9", with)
			require.Equal(t, 202, s.send("POST", "/report/own", strings.NewReader(s.document("own", nil)), bearer(ownToken)...).status)
			s.now.Add(c.after)
			got := s.status().Nodes[0]
			require.Equal(t, c.stale, got.Stale)
			require.Equal(t, c.period, got.Period)
		})
	}
}

// The first report of a new node is waited for, since the node was created or the server was asked first, until it is late.
func TestAFirstReportIsWaitedFor(t *testing.T) {
	s := started(t)
	for _, created := range []bool{false, true} {
		if created {
			s.now.Add(60)
			s.Forget("own")
		}
		began := time.Unix(s.now.Load(), 0).UTC()
		for _, passed := range []int64{0, 899} {
			s.now.Store(began.Unix() + passed)
			_, err := s.Reported("own")
			var waits *waitingError
			require.ErrorAs(t, err, &waits)
			require.True(t, waits.Waiting())
			require.EqualError(t, err, "waits for its first report since "+began.Format(time.TimeOnly+" UTC"))
		}
		s.now.Store(began.Unix() + 900)
		_, err := s.Reported("own")
		require.EqualError(t, err, "it has not reported since "+began.Format(time.TimeOnly+" UTC")+", for more than 15m0s: its console shows what it does")
		require.NotErrorAs(t, err, new(*waitingError))
		require.Equal(t, 202, s.send("POST", "/report/own", strings.NewReader(s.document("own", nil)), bearer(ownToken)...).status)
		saw, err := s.Reported("own")
		require.NoError(t, err)
		require.Contains(t, saw, "it reported that it is ready")
	}
}

// Readers get what the agent says of its past, and only operators have it suspend or resume.
func TestAskAgent(t *testing.T) {
	s := started(t)
	read, operator := string(s.access.Read), string(s.access.Operator)
	require.Equal(t, 404, s.ask("GET", "/history", bearer(read)...).status, "there is no agent")
	asked := ""
	s.o.Agent = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = r.Method + " " + r.URL.String() + " " + string(body)
		w.WriteHeader(http.StatusAccepted)
	})
	for _, to := range []string{"/history?n=3&address=vm.a", "/why/vm.a"} {
		require.Equal(t, 401, s.ask("GET", to).status)
		require.Equal(t, 202, s.ask("GET", to, bearer(read)...).status)
		require.Equal(t, "GET "+to+" ", asked)
		require.Equal(t, 202, s.ask("GET", to, bearer(operator)...).status)
	}
	for _, to := range []string{"/suspend", "/resume"} {
		asked = ""
		require.Equal(t, 401, s.send("POST", to, strings.NewReader("{}"), bearer(read)...).status)
		require.Empty(t, asked)
		require.Equal(t, 202, s.send("POST", to, strings.NewReader("{}"), bearer(operator)...).status)
		require.Equal(t, "POST "+to+" {}", asked)
	}
	require.Equal(t, 405, s.ask("POST", "/why/vm.a", bearer(operator)...).status)
}

// Which key opens which endpoint: the table of all endpoints with a key.
func TestKeys(t *testing.T) {
	s := started(t)
	read, operator := string(s.access.Read), string(s.access.Operator)
	for i, c := range []struct {
		method, path, good string
		status             int
	}{
		{"GET", "/status", read, 200},
		{"HEAD", "/status", read, 200},
		{"GET", "/metrics", read, 200},
		{"POST", "/reconcile", operator, 202},
		{"POST", "/reconcile/own", operator, 202},
		{"GET", "/operator", operator, 200},
	} {
		other := read
		if c.good == read { // an operator may read
			other = string(s.access.Repository)
			require.Equal(t, c.status, s.ask(c.method, c.path, bearer(operator)...).status)
		}
		t.Run(fmt.Sprint(i, c.path), func(t *testing.T) {
			require.Equal(t, c.status, s.ask(c.method, c.path, bearer(c.good)...).status)
			for name, x := range map[string]struct {
				headers []string
				code    string
			}{
				"none":           {nil, "E300"},
				"no bearer":      {[]string{"Authorization", "Basic " + c.good}, "E300"},
				"empty":          {[]string{"Authorization", "Bearer "}, "E300"},
				"twice":          {append(bearer(c.good), bearer(c.good)...), "E300"},
				"wrong":          {bearer("canary"), "E301"},
				"longer":         {bearer(c.good + "0"), "E301"},
				"shorter":        {bearer(c.good[:63]), "E301"},
				"the other key":  {bearer(other), "E301"},
				"the hook's":     {bearer(string(s.access.Hook("generic"))), "E301"},
				"of a node":      {bearer(s.mint(s.keys[0], "own")), "E301"},
				"of the site":    {bearer(tokenOfSite), "E301"},
				"in other cases": {bearer(strings.ToUpper(c.good)), "E301"},
			} {
				got := s.ask(c.method, c.path, x.headers...)
				require.Equal(t, 401, got.status, name)
				require.NotEmpty(t, got.header.Get("WWW-Authenticate"))
				if c.method != "HEAD" {
					require.Equal(t, x.code, got.code(), name)
				}
			}
		})
	}
	require.Len(t, s.asked, 2, "no refused request does anything")
}

func TestMetrics(t *testing.T) {
	s := started(t)
	require.Equal(t, 202, s.send("POST", "/report/own", strings.NewReader(s.document("own", nil)), bearer(ownToken)...).status)
	require.Equal(t, 202, s.send("POST", "/report/net", strings.NewReader(s.document("net", func(r *wire.Report) { r.Ready = false })), bearer(netToken)...).status)
	require.Equal(t, 401, s.ask("GET", "/spec/own", bearer("canary")...).status)
	require.Equal(t, 404, s.ask("GET", "/canary").status)
	s.now.Add(61)
	got := s.ask("GET", "/metrics", bearer(string(s.access.Read))...)
	require.Equal(t, 200, got.status)
	require.Equal(t, "text/plain; version=0.0.4; charset=utf-8", got.header.Get("Content-Type"))
	for _, line := range []string{
		`homestak_serve_requests_total{endpoint="/report/{identity}",status="202"} 2`,
		`homestak_serve_requests_total{endpoint="/spec/{identity}",status="401"} 1`,
		`homestak_serve_requests_total{endpoint="unknown",status="404"} 1`,
		`homestak_serve_refusals_total{code="E100"} 1`,
		`homestak_serve_refusals_total{code="E301"} 1`,
		`homestak_serve_request_seconds_count{endpoint="/report/{identity}"} 2`,
		`homestak_serve_info{commit="3f2c1a9",version="1.2.3"} 1`,
		`homestak_serve_start_time_seconds 1.8e+09`,
		`homestak_nodes 3`,
		`homestak_node_report_age_seconds{node="net"} 61`,
		`homestak_node_ready{node="net"} 0`,
		`homestak_node_ready{node="own"} 1`,
		`homestak_nodes_ready 1`,
	} {
		require.Contains(t, got.body, "\n"+line+"\n")
	}
	require.NotContains(t, got.body, "canary")
	s.now.Add(120)
	require.Contains(t, s.ask("GET", "/metrics", bearer(string(s.access.Read))...).body, "\nhomestak_nodes_ready 0\n")
}

// A node may wait for longer than any other request may take; shutdown ends that.
func TestWaitOnTheWire(t *testing.T) {
	t.Parallel()
	l := unlimited()
	// A handshake takes a second on a machine that is busy enough.
	l.Read, l.Write, l.Wait = 3*time.Second, 3*time.Second, 4*time.Second
	s := serveLimits(t, l)
	s.publish("3f2c1a9", site())
	for range 2 {
		began := time.Now()
		require.Equal(t, 204, s.ask("GET", "/wait/own", bearer(ownToken)...).status)
		require.GreaterOrEqual(t, time.Since(began), l.Wait)
	}

	l.Wait = time.Hour
	s = serveLimits(t, l)
	s.publish("3f2c1a9", site())
	done := make(chan answer, 1)
	go func() { done <- s.ask("GET", "/wait/own", bearer(ownToken)...) }()
	require.Eventually(t, func() bool { return strings.Contains(s.metrics(), "homestak_nodes_waiting 1\n") }, 5*time.Minute, 10*time.Millisecond)
	require.NoError(t, s.stop())
	require.Equal(t, 204, (<-done).status)
}

func (s *served) metrics() string {
	s.t.Helper()
	got := s.ask("GET", "/metrics", bearer(string(s.access.Read))...)
	require.Equal(s.t, 200, got.status)
	return got.body
}

// A spec by a provisioning token over eight connections that are kept, beside a server of net/http
// that sends the same bytes and checks nothing.
func BenchmarkSpec(b *testing.B) {
	certificate, err := keys.OpenCert(keys.CertOptions{Dir: filepath.Join(b.TempDir(), "server"), Log: slog.New(slog.DiscardHandler)})
	require.NoError(b, err)
	set, found := policy.Compile(b.Context(), policy.Options{})
	require.Empty(b, found)
	c, found := MakeCatalog(CatalogInput{Site: site(), Commit: "a", Policies: set})
	require.Empty(b, found)
	signingKeys := keys.Keys{keys.NewKey()}
	text, err := signingKeys[0].MintToken(keys.Claims{Node: "own", Spec: "base", Issued: 1})
	require.NoError(b, err)
	body, _, err := c.Node("own").Answer(Own{Pins: certificate.Pins()})
	require.NoError(b, err)

	b.Run("served", func(b *testing.B) {
		log := slog.New(slog.NewTextHandler(io.Discard, nil)) //nolint:sloglint // writing the lines is part of the work
		s := New(Options{TLS: certificate.TLS(), Log: log})
		s.Publish(View{Catalog: c, Keys: signingKeys, Pins: certificate.Pins()})
		ln := listen(b)
		ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
		done := make(chan error, 1)
		go func() { done <- s.Serve(ctx, ln) }()
		load(b, ln.Addr().String(), text, len(body))
		cancel()
		require.NoError(b, <-done)
	})
	b.Run("floor", func(b *testing.B) {
		ln := listen(b)
		s := &http.Server{TLSConfig: certificate.TLS(), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { //nolint:gosec // only this benchmark connects
			_, _ = w.Write(body)
		})}
		done := make(chan error, 1)
		go func() { done <- s.ServeTLS(ln, "", "") }()
		load(b, ln.Addr().String(), text, len(body))
		require.NoError(b, s.Close())
		require.ErrorIs(b, <-done, http.ErrServerClosed)
	})
}

func listen(b *testing.B) net.Listener {
	b.Helper()
	ln, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	require.NoError(b, err)
	return ln
}

// load asks by eight clients at once.
func load(b *testing.B, addr, token string, size int) {
	b.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 8}}
	defer client.CloseIdleConnections()
	b.SetParallelism(4) // of two processors
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "https://"+addr+"/spec/own", http.NoBody)
			if err != nil {
				b.Error(err)
				return
			}
			r.Header.Set("Authorization", "Bearer "+token)
			got, err := client.Do(r)
			if err != nil {
				b.Error(err)
				return
			}
			n, _ := io.Copy(io.Discard, got.Body)
			_ = got.Body.Close()
			if got.StatusCode != http.StatusOK || n != int64(size) {
				b.Errorf("%d, %d bytes", got.StatusCode, n)
			}
		}
	})
}
