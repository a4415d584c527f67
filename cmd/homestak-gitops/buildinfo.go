package main

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// release is the version of a release; its build sets it: -ldflags "-X main.release=1.2.3".
var release string //nolint:gochecknoglobals // the linker sets no other

// buildInfo is the document of version --json.
type buildInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"` // with the suffix -dirty if it was built from something else; "" if unknown
	Go      string `json:"go"`
}

// thisBuild is the build of the program that runs.
func thisBuild() buildInfo {
	b := buildInfoOf(debug.ReadBuildInfo())
	b.Version = cmp.Or(release, b.Version)
	return b
}

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
