package specserve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Of machines that wait so many are remembered, for so long.
func TestWaitingHosts(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := New(Options{Now: func() time.Time { return now }})
	for i := range 2 * mostWaiting {
		s.waitingHosts.note(fmt.Sprintf("h-%03d", i), "192.0.2.1:1", now)
	}
	require.Len(t, s.Waiting(), mostWaiting)
	now = now.Add(20 * time.Hour)
	s.waitingHosts.note("h-003", "192.0.2.2:1", now)
	now = now.Add(5 * time.Hour)
	require.Equal(t, []WaitingHost{{Name: "h-003", From: "192.0.2.2:1", Since: now.Add(-25 * time.Hour), Last: now.Add(-5 * time.Hour)}}, s.Waiting())
	s.Publish(View{Catalog: &Catalog{nodes: map[string]*Node{"h-003": {Name: "h-003", Child: true}}}})
	require.Empty(t, s.Waiting(), "the site has it now")
}

// Only a machine that joined under a name that the site does not have waits for a commit. A host of another parent, and a nested
// child that left, get another answer.
func TestWaitingForACommit(t *testing.T) {
	s := serveLimits(t, unlimited())
	tree, needs := withChild()
	tree.Hosts = map[string]*model.Host{"branch-1": {Name: "branch-1", Parent: "mother"}, "branch-2": {Name: "branch-2"}}
	c, found := MakeCatalog(CatalogInput{Site: tree, Commit: "3f2c1a9", Policies: s.set, Agent: "father", Needs: needs})
	require.Empty(t, found)
	dir := t.TempDir()
	_, err := keys.Folder(dir).Ensure(time.Now())
	require.NoError(t, err)
	book, err := keys.Folder(dir).OpenBook()
	require.NoError(t, err)
	s.Publish(View{Catalog: c, Keys: s.keys, Access: s.access, Pins: s.pins, Book: book})
	ask := func(host string) answer {
		token := mint(t, s.keys[0], keys.Claims{Node: host, Spec: keys.ForAgent, Issued: s.now.Load(), Expires: s.now.Load() + 3600, Generation: 9})
		got := s.ask("GET", "/config/"+host, bearer(token)...)
		require.Equal(t, 404, got.status, got.body)
		return got
	}
	require.Contains(t, ask("branch-1").body, "has this host below mother")
	require.Contains(t, ask("branch-2").body, "has this host without a parent")
	require.Contains(t, ask("gone").body, "the site does not deploy this node")
	require.Empty(t, s.Waiting())

	minted, err := keys.Folder(dir).MintJoin("branch-3", time.Hour, time.Now())
	require.NoError(t, err)
	claims, err := keys.InspectToken(minted.Token)
	require.NoError(t, err)
	require.NoError(t, book.Join(claims, "key", time.Now()))
	require.Contains(t, ask("branch-3").body, "declare it: host")
	require.Len(t, s.Waiting(), 1)
}

// A host turns to this parent by its handover key, but not after its tokens were revoked: a machine that was stolen knows the key.
func TestHandOverIsRefused(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ring, err := keys.Folder(dir).Ensure(now)
	require.NoError(t, err)
	book, err := keys.Folder(dir).OpenBook()
	require.NoError(t, err)
	pin := wire.Pin{1}
	site := &model.Site{Name: "lab", Secrets: &model.Secrets{Values: map[string]map[string]string{"auth": {model.OwnershipKey: strings.Repeat("ab", 32)}}}}
	s := New(Options{Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler)})
	ask := func() *httptest.ResponseRecorder {
		join := wire.NewJoin(strings.Repeat("0", 64))
		join.Proof = wire.HandoverChild.Proof(site.Secrets.HandoverKeys("lab", "branch-7")[0], "branch-7", pin, join.Key)
		body, err := json.Marshal(join)
		require.NoError(t, err)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, wire.JoinPath.Of("branch-7"), bytes.NewReader(body)))
		return w
	}
	s.Publish(View{
		Keys: ring.Tokens(), Book: book, Pins: []string{pin.String()},
		Catalog: &Catalog{in: CatalogInput{Site: site}, nodes: map[string]*Node{"branch-7": {Name: "branch-7", Child: true, Host: true}}},
	})
	require.Equal(t, http.StatusOK, ask().Code)
	_, err = keys.Folder(dir).Revoke("branch-7", now)
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, ask().Code, "its tokens were revoked")
}
