package machines_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/pull"
	"github.com/homestak/homestak-gitops/specserve/parent"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// program builds the program, for machines that apply their spec themselves.
func program(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "homestak-gitops"), "../../cmd/homestak-gitops")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// A spec that is pushed, and the same one that the machine fetches from its parent and applies
// itself, make the same machine. The second time nothing is written, the machine is read by one
// command, and nothing of it is shown to others.
func TestST01ST02PushAndPullAreEqual(t *testing.T) {
	nspawn.Need(t)
	dir := program(t)
	pushed, pulled := begin(t), begin(t, nspawn.Bind{From: dir, To: "/opt/homestak"})
	s := pushed.whole()
	s.Config.Repositories = nil // each machine has its own, with a key of its own
	pushed.apply(s)

	document, err := json.Marshal(s)
	require.NoError(t, err)
	pulled.Write("/root/spec.json", 0o600, string(document))
	const apply = "/opt/homestak/homestak-gitops config apply"
	require.Contains(t, pulled.Run0(apply+" --spec /root/spec.json --dry-run"), "~ guest edge")
	require.Empty(t, pulled.Run0("ls -A "+pull.DefaultFolder+" 2>/dev/null || true"), "a dry run keeps nothing")
	p := newServer(t, s, dir)
	p.start(pulled.Machine)
	pulled.Write(parent.File, 0o600, string(p.child().Document()))
	require.Contains(t, pulled.Run0(apply+" --fetch 2>&1"), "spec test is applied to edge")
	require.Equal(t, []string{"/spec/edge 200"}, p.requests())

	same(t, withoutPull(pushed), withoutPull(pulled), "pulled beside pushed")
	require.Equal(t, "600 root root", pulled.Run0("stat -c '%a %U %G' "+pull.DefaultFolder+"/*.json | sort -u"))

	pulled.touchedNothing(apply)
	pulled.touchedNothing(apply + " --fetch")
	require.Equal(t, []string{"/spec/edge 304"}, p.requests())
	before := pulled.runs
	changed, err := pull.Node{Folder: pull.Folder{Path: t.TempDir()}, Machine: way{pulled}}.Apply(t.Context(), s)
	require.NoError(t, err)
	require.Zero(t, changed)
	require.Equal(t, 1, pulled.runs-before)
	var done pull.Complete
	require.NoError(t, json.Unmarshal([]byte(pulled.Run0("cat "+pull.DefaultFolder+"/config-complete.json")), &done))
	require.Equal(t, "edge", done.Node)
	require.Positive(t, done.Changed)
}
