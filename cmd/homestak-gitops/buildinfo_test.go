package main_test

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops"
)

func TestBuildInfoOf(t *testing.T) {
	commit := func(id, modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: id}, {Key: "vcs.modified", Value: modified}}
	}
	for name, c := range map[string]struct {
		info *debug.BuildInfo
		want main.BuildInfo
	}{
		"no information":       {nil, main.BuildInfo{Version: "(unknown)"}},
		"no version":           {&debug.BuildInfo{}, main.BuildInfo{Version: "(unknown)"}},
		"a release":            {&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: commit("3f2c", "false")}, main.BuildInfo{Version: "v1.2.3", Commit: "3f2c"}},
		"changed since commit": {&debug.BuildInfo{Settings: commit("3f2c", "true")}, main.BuildInfo{Version: "(unknown)", Commit: "3f2c-dirty"}},
		"changed, no commit":   {&debug.BuildInfo{Settings: commit("", "true")}, main.BuildInfo{Version: "(unknown)"}},
	} {
		c.want.Go = runtime.Version()
		require.Equal(t, c.want, main.BuildInfoOf(c.info, c.info != nil), name)
	}
	require.Equal(t, runtime.Version(), main.ThisBuild().Go)
}
