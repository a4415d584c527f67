package buildinfo_test

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/buildinfo"
)

func TestOf(t *testing.T) {
	commit := func(id, modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: id}, {Key: "vcs.modified", Value: modified}}
	}
	for name, c := range map[string]struct {
		info *debug.BuildInfo
		want buildinfo.Info
	}{
		"no information":       {nil, buildinfo.Info{Version: "(unknown)"}},
		"no version":           {&debug.BuildInfo{}, buildinfo.Info{Version: "(unknown)"}},
		"a release":            {&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: commit("3f2c", "false")}, buildinfo.Info{Version: "v1.2.3", Commit: "3f2c"}},
		"changed since commit": {&debug.BuildInfo{Settings: commit("3f2c", "true")}, buildinfo.Info{Version: "(unknown)", Commit: "3f2c-dirty"}},
		"changed, no commit":   {&debug.BuildInfo{Settings: commit("", "true")}, buildinfo.Info{Version: "(unknown)"}},
	} {
		c.want.Go = runtime.Version()
		require.Equal(t, c.want, buildinfo.Of(c.info, c.info != nil), name)
	}
	require.Equal(t, runtime.Version(), buildinfo.This().Go)
}
