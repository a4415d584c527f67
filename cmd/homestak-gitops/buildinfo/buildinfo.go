// Package buildinfo is what the program knows of how it was built.
package buildinfo

import (
	"runtime"
	"runtime/debug"
)

// Info is the document of version --json.
type Info struct {
	Version string `json:"version"`
	Commit  string `json:"commit"` // with the suffix -dirty if it was built from something else; "" if unknown
	Go      string `json:"go"`
}

// This is the build of the program that runs.
func This() Info { return Of(debug.ReadBuildInfo()) }

// Of reads what the go command wrote into a binary, as debug.ReadBuildInfo returns it.
func Of(info *debug.BuildInfo, ok bool) Info {
	b := Info{Version: "(unknown)", Go: runtime.Version()}
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
