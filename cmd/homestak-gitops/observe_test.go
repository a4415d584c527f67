package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// A removal is planned on the host, on a file and on a served twin with the same plan, and carried out on the twin
// without the host noticing.
func TestARemovalOnATwin(t *testing.T) {
	t.Parallel()
	h, st := serve(t, pve.Config{}, 2)
	do := func(args ...string) string {
		t.Helper()
		e := st.start(t, append(args, "--site", st.site)...)
		require.Zero(t, e.end(), "%v: %s%s", args, e.out, e.err)
		return e.out.String()
	}
	plan := func(args ...string) (id string, removals int) {
		t.Helper()
		var doc struct {
			ID      string
			Summary struct{ Delete int }
		}
		require.NoError(t, json.Unmarshal([]byte(do(append([]string{"plan", "--json", "--allow-deletes", "2"}, args...)...)), &doc))
		return doc.ID, doc.Summary.Delete
	}
	do("apply", "--yes")
	file, hcl := filepath.Join(st.data, "host.json"), filepath.Join(st.site, "site.hcl")
	text, err := os.ReadFile(hcl)
	require.NoError(t, err)
	fewer := strings.Replace(string(text), "count      = 2", "count      = 0", 1)
	require.NoError(t, os.WriteFile(hcl, []byte(fewer), 0o600))
	live, removals := plan()
	require.Equal(t, 2, removals)
	do("observe", "--out", file)
	onFile, _ := plan("--observed", file)
	require.Equal(t, live, onFile)
	before := h.Snapshot()

	e := st.start(t, "sim", "--from", file, "--listen", "127.0.0.1:0", "--task-time", "10ms", "--json")
	e.says(e.out, "\n")
	var at sim.Simulator
	require.NoError(t, json.Unmarshal([]byte(e.out.String()), &at))
	require.Equal(t, "father", at.Node)
	lines := strings.Split(fewer, "\n")
	for i, line := range lines {
		switch key, _, _ := strings.Cut(strings.TrimSpace(line), " "); key {
		case "api":
			lines[i] = `api = "` + at.API + `"`
		case "fingerprint":
			lines[i] = `fingerprint = "` + at.Fingerprint + `"`
		}
	}
	require.NoError(t, os.WriteFile(hcl, []byte(strings.Join(lines, "\n")), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(st.site, "secrets.yaml"), []byte(secretsFor("father", at.Token)), 0o600))
	onTwin, _ := plan()
	require.Equal(t, live, onTwin)
	do("apply", "--yes", "--allow-deletes", "2")
	_, removals = plan()
	require.Zero(t, removals)
	require.Equal(t, before.Guests, h.Snapshot().Guests)
	require.Equal(t, before.Writes, h.Snapshot().Writes)

	e.signals <- syscall.SIGTERM
	require.Zero(t, e.end())
}
