package integration_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ST-21 at a child: its data folder is lost, with its clone, its certificate and its signing keys. It finds its guests again, enters
// them by the key that they know, and its own child gets to know its new keys.
func TestST21AChildThatLostItsDataFolder(t *testing.T) {
	t.Parallel()
	l := grow(t)
	files := tiered(machine("inner", "pve", ""), machine("deep", "pve", "inner"), machine("app", "vm", "inner"), machine("low", "vm", "deep"))
	const want = "inner below father, deep below inner, low below deep, app below inner"
	l.push(files, "three levels", want)
	made := l.history.List()
	m := l.inside("father", "inner")
	shell := func(line string) string {
		t.Helper()
		out, code := m.Shell(line)
		require.Zero(t, code, "%s: %s", line, out)
		return strings.TrimSpace(out)
	}
	pins := l.world.Running("inner").Status().Server.Pins
	shell("systemctl stop homestak-gitops && rm -rf /var/lib/homestak-gitops && systemctl start homestak-gitops")
	l.until("it has new keys", func() bool {
		s := l.world.Running("inner")
		return s != nil && s.Status().Server != nil && len(s.Status().Server.Pins) > 0
	})
	require.NotEqual(t, pins, l.world.Running("inner").Status().Server.Pins)

	// Whatever is done in its guests from now on needs its key.
	files["site.hcl"] = strings.Replace(levelsSite, `["htop"]`, `["htop", "jq"]`, 1)
	l.push(files, "one more package", want)
	require.Equal(t, made, l.history.List(), "the same guests, and none doubled")
	for host, guest := range map[string]string{"inner": "app", "deep": "low"} {
		out, code := l.inside(host, guest).Shell("command -v jq")
		require.Zero(t, code, "%s: %s", guest, out)
	}
	l.remove()
	require.Empty(t, l.father.Tree().Nodes)
}

// ST-21 at a host whose child leaves the site at the same time: the child gets to know the new keys although no file has it any more, hears
// that it left, and goes when it is empty.
func TestST21AParentThatLostItsDataFolderAndAChildThatLeaves(t *testing.T) {
	t.Parallel()
	l := grow(t)
	stay := machine("stay", "vm", "")
	l.push(tiered(stay, machine("inner", "pve", ""), machine("app", "vm", "inner")), "two levels", "inner below father, app below inner, stay below father")
	l.stop()
	require.NoError(t, os.RemoveAll(l.data))
	l.repo.Commit(tiered(stay), "Farewell\n\nAllow-Deletes: 2")
	l.drift = "5s"
	l.start()
	l.until("the child is gone", func() bool { return len(l.world.Hosts["father"].Snapshot().Guests) == 1 })
	require.Equal(t, []string{"-inner", "-father"}, l.history.List()[3:])
}

// ST-11 and ST-21: a child without nodes lost its data folder, and leaves the site at the same time. No commit is known there that had it,
// but nothing is on it, and nobody has to let it go.
func TestST21AChildWithoutNodesThatLostItsDataFolderLeaves(t *testing.T) {
	t.Parallel()
	l := grow(t)
	stay := machine("stay", "vm", "")
	l.push(tiered(stay, machine("inner", "pve", "")), "one level", "inner below father, stay below father")
	m := l.inside("father", "inner")
	out, code := m.Shell("systemctl stop homestak-gitops && rm -rf /var/lib/homestak-gitops")
	require.Zero(t, code, out)
	l.repo.Commit(tiered(stay), "Farewell")
	l.father.Agent.CheckNow()
	l.until("the parent waits for its child", func() bool {
		return l.father.Status().Last.Commit != "" && len(l.father.Tree().Nodes) == 2 && l.father.Tree().Nodes[0].Phase == "destroy"
	})
	out, code = m.Shell("systemctl start homestak-gitops")
	require.Zero(t, code, out)
	l.until("the child is gone", func() bool { return len(l.world.Hosts["father"].Snapshot().Guests) == 1 })
}
