package main

import (
	"runtime"
	"runtime/debug"
)

// buildInfo is the document of version --json.
type buildInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"` // with the suffix -dirty if it was built from something else; "" if unknown
	Go      string `json:"go"`
}

// thisBuild is the build of the program that runs.
func thisBuild() buildInfo { return buildInfoOf(debug.ReadBuildInfo()) }

// buildInfoOf reads what the go command wrote into a binary, as debug.ReadBuildInfo returns it.
func buildInfoOf(info *debug.BuildInfo, ok bool) buildInfo {
	b := buildInfo{Version: "(unknown)", Go: runtime.Version()}
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	dirty := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if b.Commit != "" && dirty {
		b.Commit += "-dirty"
	}
	return b
}
