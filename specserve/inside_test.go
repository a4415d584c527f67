package specserve

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/policy"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func textLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// tinyCatalog has one node, own, and the token that it is asked for.
func tinyCatalog(t testing.TB) (c *Catalog, token string) {
	t.Helper()
	token = strings.Repeat("ab", 16)
	set, found := policy.Compile(t.Context(), policy.Options{})
	require.Empty(t, found)
	c, found = MakeCatalog(CatalogInput{Policies: set, Site: &model.Site{
		Postures:  map[string]*model.Posture{"prod": {Name: "prod", Auth: &model.Auth{Method: "node_token"}}},
		Specs:     map[string]*model.Spec{"base": {Name: "base", Access: &model.Access{Posture: "prod"}}},
		Manifests: map[string]*model.Manifest{"web": {Name: "web", Host: "father", Nodes: []*model.Node{{Name: "own", Mode: model.ModePull, Spec: "base"}}}},
		Secrets:   &model.Secrets{Values: map[string]map[string]string{"auth": {"node_tokens.own": token}}},
	}})
	require.Empty(t, found)
	return c, token
}

// What goes wrong in the program is answered and logged, and the server goes on.
func TestPanic(t *testing.T) {
	log := &strings.Builder{}
	s := New(Options{Log: textLog(log)})
	s.table = append(s.table, endpoint{method: http.MethodGet, path: "/broken", early: true, do: func(*request) error { panic("canary") }})
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/broken", http.NoBody))
	require.Equal(t, 500, w.Code)
	require.JSONEq(t, `{"error":{"code":"E500","message":"internal error","hint":"the log of the program says more"}}`, w.Body.String())
	require.Contains(t, log.String(), "a request ended in a panic")
}

// An answer that cannot be completed ends the connection: the client must not take it for all.
func TestCut(t *testing.T) {
	log := &strings.Builder{}
	s := New(Options{Log: textLog(log)})
	s.table = append(s.table, endpoint{method: http.MethodGet, path: "/cut", early: true, do: func(x *request) error {
		_, _ = recorder{x.w, x}.Write(make([]byte, 64<<10))
		return fmt.Errorf("%w: the disk is gone", serve.ErrCut)
	}})
	at := httptest.NewServer(s)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at.URL+"/cut", http.NoBody)
	require.NoError(t, err)
	got, err := at.Client().Do(r)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, got.Body)
	require.Error(t, err)
	require.NoError(t, got.Body.Close())
	at.Close()
	require.Contains(t, log.String(), "status=200 bytes=65536")
	require.Contains(t, log.String(), "the disk is gone")
}
