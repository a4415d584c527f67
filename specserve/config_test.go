package specserve_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// withChild has a child of type pve with a node below it.
func withChild() (*model.Site, specserve.Needs) {
	s := site()
	m := *s.Manifests["web"]
	m.Nodes = append(slices.Clip(m.Nodes), &model.Node{Name: "inner", Type: "pve", Spec: "own"}, &model.Node{Name: "app", Type: "vm", Parent: "inner"})
	s.Manifests["web"] = &m
	s.Secrets.Values["passwords"] = map[string]string{"app": "canary-of-app", "own": "canary-of-own"}
	return s, specserve.Needs{"app": {"passwords.app"}, "own": {"passwords.own"}}
}

func (s *served) publishTree(leaving map[string]bool) {
	s.t.Helper()
	tree, needs := withChild()
	c, found := specserve.MakeCatalog(specserve.CatalogInput{Site: tree, Commit: "3f2c1a9", Policies: s.set, Agent: "father", Needs: needs})
	require.Empty(s.t, found)
	s.Publish(specserve.View{Catalog: c, Keys: s.keys, Access: s.access, Pins: s.pins, Removed: leaving})
}

func TestConfig(t *testing.T) {
	s := serve(t, unlimited())
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
		"of all nodes":        {"/config/inner", siteToken, "E302", 403},
		"a vm":                {"/config/own", s.mint(s.keys[0], "own"), "E200", 404},
		"a node of the child": {"/config/app", s.mint(s.keys[0], "app"), "E200", 404},
		"nobody":              {"/config/gone", s.mint(s.keys[0], "gone"), "E200", 404},
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

// A child that has left the site stays known as long as it is on the host: it gets to know that it leaves,
// and may report that it is empty. There is no spec for it any more.
func TestLeavingChild(t *testing.T) {
	s := serve(t, unlimited())
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
	s := serveOptions(t, unlimited(), nil, func(o *specserve.Options) {
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
		require.Equal(t, "E301", s.ask("GET", path, bearer(string(s.access.Operator))...).code())
		require.Equal(t, "E301", s.ask("GET", path, bearer(s.mint(s.keys[0], "inner"))...).code())
	}
	require.JSONEq(t, `{"identity":"father"}`, s.ask("GET", "/status", bearer(string(s.access.Read))...).body)
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
	require.Equal(t, "E200", s.ask("POST", "/reconcile/app", operator...).code(), "nobody has reported it")
	document, err := json.Marshal(map[string]any{
		"version": 1, "identity": "inner", "at": "2027-01-15T08:00:00Z", "phase": "run", "nodes": []map[string]any{{"name": "app", "type": "vm", "parent": "inner", "phase": "run"}},
	})
	require.NoError(t, err)
	require.Equal(t, 202, s.send("POST", "/report/inner", strings.NewReader(string(document)), bearer(s.mint(s.keys[0], "inner"))...).status)
	require.Equal(t, 202, s.ask("POST", "/reconcile/app", operator...).status)
	<-s.asked

	plain := start(t)
	require.Equal(t, "E100", plain.ask("GET", "/events", bearer(string(plain.access.Read))...).code())
}
