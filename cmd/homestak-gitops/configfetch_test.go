package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A node fetches from its parent, as node.json says or as somebody writes it; the token is never shown.
func TestConfigFetchFromAParent(t *testing.T) {
	const canary = "canary-token"
	status := http.StatusOK
	var shown string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		if r.URL.Path != "/spec/web-1" || r.Header.Get("Authorization") != "Bearer "+canary {
			return
		}
		fmt.Fprintf(w, `{"version":1,"node":"web-1","spec":"base","pins":[%q]}`, shown)
	}))
	defer server.Close()
	own := wire.PinOf(server.Certificate())
	shown = own.String()
	dir := t.TempDir()
	file, state, token := filepath.Join(dir, "node.json"), filepath.Join(dir, "state"), filepath.Join(dir, "token")
	require.NoError(t, wire.Parent{Identity: "web-1", Server: server.URL, Pins: []wire.Pin{own}, Token: canary}.Save(file))
	require.NoError(t, os.WriteFile(token, []byte(canary), 0o600))
	do := func(args ...string) (int, string) {
		e := stage{}.start(t, append([]string{"config", "fetch", "--state", state, "-v"}, args...)...)
		code := e.end()
		text := e.out.String() + e.err.String()
		require.NotContains(t, text, canary)
		return code, text
	}

	code, text := do("--parent", file)
	require.Zero(t, code, text)
	require.Contains(t, text, "spec base of node web-1 is in "+state)
	code, text = do("--server", server.URL, "--pin", own.String(), "--token-file", token, "web-1")
	require.Zero(t, code, text)
	require.Contains(t, text, "is unchanged")

	code, text = do("--server", server.URL, "--pin", wire.Pin{1}.String(), "--token-file", token, "web-1")
	require.Equal(t, 1, code)
	require.Contains(t, text, "error: E501: fetching the spec of web-1 from "+server.URL+": the server has the key "+own.String())
	status = http.StatusForbidden
	code, text = do("--parent", file)
	require.Equal(t, 6, code)
	require.Contains(t, text, "E302")
	require.FileExists(t, filepath.Join(state, "config-failed.json"))
}
