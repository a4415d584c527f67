package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Children have their turns in order, in the window, and for the version that the site names.
func TestChildrenKeepTheirProgram(t *testing.T) {
	s := &Site{Manifests: map[string]*Manifest{"m": {Host: "father", Nodes: []*Node{}}}}
	for _, name := range []string{"a", "b", "c", "d"} {
		s.Manifests["m"].Nodes = append(s.Manifests["m"].Nodes, &Node{Name: name, Type: PVEType})
	}
	has := map[string]string{"a": "1.0", "b": "1.0", "c": "1.0", "d": "1.0"}
	night, day := time.Date(2026, 11, 27, 1, 30, 0, 0, time.UTC), time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	keeps := func(child string, now time.Time) string {
		return s.KeepsProgram("father", child, "v1.1", "beef", func(c string) string { return has[c] }, now)
	}
	require.Empty(t, keeps("d", day), "without a block, all get it at once")

	s.Upgrade = &upgrade{Version: "1.1", SHA256: []string{"f00d", "beef"}, Window: "23:00-02:00", Canary: []string{"b", "elsewhere"}, Groups: []upgradeGroup{{Name: "first", Nodes: []string{"c"}}}}
	require.Empty(t, keeps("b", night))
	require.Equal(t, "upgrades begin in the window 23:00-02:00", keeps("b", day))
	s.Upgrade.Window = "02:00-02:00"
	require.Empty(t, keeps("b", day), "the whole day")
	for _, child := range []string{"a", "c", "d"} {
		require.Equal(t, "b is upgraded before it, and runs 1.0", keeps(child, night))
	}
	has["b"] = ""
	require.Equal(t, "b is upgraded before it, and does not report", keeps("c", night))
	has["b"] = "v1.1"
	require.Empty(t, keeps("c", night))
	require.Equal(t, "c is upgraded before it, and runs 1.0", keeps("a", night))
	has["c"] = "v1.1"
	require.Empty(t, keeps("a", night))
	require.Empty(t, keeps("d", night))

	s.Upgrade.SHA256 = []string{"f00d"}
	require.Equal(t, "the program of father has SHA-256 beef, which upgrade of the site does not list", keeps("b", night))
	s.Upgrade.Version = "1.2"
	require.Equal(t, "upgrade of the site is for version 1.2, and father runs v1.1", keeps("b", night))
}
