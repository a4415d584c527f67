package build_test

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/build"
)

func TestOf(t *testing.T) {
	commit := func(id, modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: id}, {Key: "vcs.modified", Value: modified}}
	}
	for name, c := range map[string]struct {
		info *debug.BuildInfo
		want build.Info
	}{
		"no information":       {nil, build.Info{Version: "(unknown)"}},
		"no version":           {&debug.BuildInfo{}, build.Info{Version: "(unknown)"}},
		"a release":            {&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: commit("3f2c", "false")}, build.Info{Version: "v1.2.3", Commit: "3f2c"}},
		"changed since commit": {&debug.BuildInfo{Settings: commit("3f2c", "true")}, build.Info{Version: "(unknown)", Commit: "3f2c-dirty"}},
		"changed, no commit":   {&debug.BuildInfo{Settings: commit("", "true")}, build.Info{Version: "(unknown)"}},
	} {
		c.want.Go = runtime.Version()
		require.Equal(t, c.want, build.Of(c.info, c.info != nil), name)
	}
	require.Equal(t, runtime.Version(), build.This().Go)
}
