package machines_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/node"
	"github.com/homestak/homestak-gitops/specserve/wire"
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
	pushed := begin(t)
	pulled := pushed.sibling(t, nspawn.Boot, nspawn.Bind{From: dir, To: "/mnt/homestak"})
	s := pushed.whole()
	pushed.over = pushed.login() // as a push enters it
	pushed.apply(s)

	document, err := json.Marshal(s)
	require.NoError(t, err)
	pulled.Write("/mnt/spec.json", 0o600, string(document))
	const apply = "/mnt/homestak/homestak-gitops config apply"
	require.Contains(t, pulled.Run0(apply+" --spec /mnt/spec.json --dry-run"), "~ guest edge")
	require.Empty(t, pulled.Run0("ls -A "+node.DefaultFolder+" 2>/dev/null || true"), "a dry run keeps nothing")
	p := newServer(t, s, dir)
	p.start(pulled.Machine)
	pulled.Write(wire.ParentFile, 0o600, string(p.child().Document()))
	require.Contains(t, pulled.Run0(apply+" --fetch 2>&1"), "spec test is applied to edge")
	require.Equal(t, []string{"/spec/edge 200", "/report/edge 202"}, p.requests())

	// Without the user that a push enters as, and the files of pull.
	facts := func(w *world) string {
		return regexp.MustCompile(`(?m)^.*(deploy|session-).*\n`).ReplaceAllString(withoutPull(w), "")
	}
	same(t, facts(pushed), facts(pulled), "pulled beside pushed")
	for _, part := range []string{
		"package hs-tool", "unit hs-daemon.service", "ann:/home/ann:/bin/bash", "ops:ann", "shadow bob !", "/home/ann/.ssh/authorized_keys: " + keyA,
		"ann ALL=(ALL:ALL) NOPASSWD: ALL", "sshd port 2222", "net/ipv4/ip_forward:1", "name edge edge.home.example", "Europe/Berlin", "Jail list:", "/etc/homestak-test/app.conf f 640 root video",
	} {
		require.Contains(t, facts(pushed), part, "the comparison misses something")
	}
	if pushed.key != "" {
		require.Contains(t, facts(pushed), "homestak-extra.sources: URIs: file:/srv/apt/extra")
	}
	require.Equal(t, "600 root root", pulled.Run0("stat -c '%a %U %G' "+node.DefaultFolder+"/*.json | sort -u"))

	pulled.touchedNothing(apply)
	pulled.touchedNothing(apply + " --fetch")
	require.Equal(t, []string{"/spec/edge 304", "/report/edge 202"}, p.requests())
	before := pulled.runs
	changed, err := node.Node{Folder: node.Folder{Path: t.TempDir()}, Machine: way{pulled}}.Apply(t.Context(), s)
	require.NoError(t, err)
	require.Zero(t, changed)
	require.Equal(t, 1, pulled.runs-before)
	var done node.Complete
	require.NoError(t, json.Unmarshal([]byte(pulled.Run0("cat "+node.DefaultFolder+"/config-complete.json")), &done))
	require.Equal(t, "edge", done.Node)
	require.Positive(t, done.Changed)
}
