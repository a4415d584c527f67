package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A site is served to a node that knows the pin and has a token, as a person does it by hand: serve,
// token mint, config fetch, token rotate. The server ends at SIGTERM.
func TestServe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script, err := os.ReadFile("testdata/script/token.txtar")
	require.NoError(t, err)
	_, text, _ := strings.Cut(string(script), "-- site/site.hcl --\n")
	site, data, state, tokenFile := filepath.Join(dir, "site"), filepath.Join(dir, "data"), filepath.Join(dir, "state"), filepath.Join(dir, "token")
	require.NoError(t, os.Mkdir(site, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(site, "site.hcl"), []byte(text), 0o600))

	e := stage{}.start(t, "serve", "--site", site, "--data-dir", data, "--listen", "127.0.0.1:0", "--json")
	e.says(e.out, "\n")
	var at map[string]string
	require.NoError(t, json.Unmarshal([]byte(e.out.String()), &at))
	require.Len(t, at, 3)
	require.Regexp(t, `^https://127\.0\.0\.1:\d+$`, at["url"])
	require.Regexp(t, `^sha256:[0-9a-f]{64}$`, at["pin"])
	require.Contains(t, at, "commit")

	verb := func(code ui.Exit, args ...string) string {
		t.Helper()
		var out, stderr bytes.Buffer
		got := run(t.Context(), args, ui.Process{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &stderr, Env: func(string) string { return "" }})
		require.Equal(t, code, got, "%s%s", &out, &stderr)
		return out.String() + stderr.String()
	}
	fetch := []string{"config", "fetch", "--server", at["url"], "--pin", at["pin"], "--token-file", tokenFile, "--state", state, "own"}
	mint := func() {
		t.Helper()
		require.Equal(t, "the token of node own is in "+tokenFile+"\n", verb(0, "token", "mint", "--site", site, "--data-dir", data, "--out", tokenFile, "own"))
	}
	mint()
	require.Contains(t, verb(0, fetch...), "spec base of node own is in "+state)
	require.Contains(t, verb(0, fetch...), "is unchanged")

	verb(0, "token", "rotate", "--data-dir", data)
	verb(0, "token", "rotate", "--drop-old", "--data-dir", data)
	e.says(e.err, " valid=1") // of the two changes the second
	require.Contains(t, verb(6, fetch...), "E301")
	mint()
	require.Contains(t, verb(0, fetch...), "is unchanged")
	require.Contains(t, verb(1, append(fetch[:5:5], append([]string{"sha256:" + strings.Repeat("0", 64)}, fetch[6:]...)...)...), "E501")

	e.signals <- syscall.SIGTERM
	require.Equal(t, ui.ExitDone, e.end())
	require.Equal(t, 1, strings.Count(e.out.String(), "\n"), "one line and nothing else")
}

// A token in a file that token mint wrote can be used as it is, also where the umask lets everybody read new files and
// where such a file was there before.
func TestN9MintWritesAFileThatFetchAccepts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "web-1.token")
	require.NoError(t, os.WriteFile(name, []byte("old"), 0o644))
	require.NoError(t, os.Chmod(name, 0o644))
	script, err := os.ReadFile("testdata/script/token.txtar")
	require.NoError(t, err)
	_, text, _ := strings.Cut(string(script), "-- site/site.hcl --\n")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "site.hcl"), []byte(text), 0o600))
	_, err = keys.Folder(filepath.Join(dir, "server")).Ensure(time.Now())
	require.NoError(t, err)
	var out bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"token", "mint", "--site", dir, "--data-dir", dir, "--out", name, "own"}, ui.Process{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, Env: func(string) string { return "" }}), &out)
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	p, err := wire.ParentByHand("own", "https://192.0.2.1:44443", name, []string{"sha256:" + strings.Repeat("0", 64)})
	require.NoError(t, err)
	require.NotContains(t, out.String(), p.Token)
	page, err := os.ReadFile("../../docs/server.md")
	require.NoError(t, err)
	require.NotRegexp(t, `token mint[^\n]*>`, string(page), "the page shows a way that works")
}

// A node fetches from the parent of node.json, or of the flags; the token is never shown.
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
	do := func(args ...string) (ui.Exit, string) {
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
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, text, "error: E501: fetching the spec of web-1 from "+server.URL+": the server has the key "+own.String())
	status = http.StatusForbidden
	code, text = do("--parent", file)
	require.Equal(t, ui.ExitDenied, code)
	require.Contains(t, text, "E302")
	require.FileExists(t, filepath.Join(state, "config-failed.json"))
}
