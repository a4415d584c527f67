package main

import (
	"runtime"
	"runtime/debug"
)

// BuildInfo is the document of version --json.
type BuildInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"` // with the suffix -dirty if it was built from something else; "" if unknown
	Go      string `json:"go"`
}

// ThisBuild is the build of the program that runs.
func ThisBuild() BuildInfo { return BuildInfoOf(debug.ReadBuildInfo()) }

// BuildInfoOf reads what the go command wrote into a binary, as debug.ReadBuildInfo returns it.
func BuildInfoOf(info *debug.BuildInfo, ok bool) BuildInfo {
	b := BuildInfo{Version: "(unknown)", Go: runtime.Version()}
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
