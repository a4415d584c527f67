package nspawn

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestTheMirrorIsThatOfTheMachine(t *testing.T) {
	for _, c := range []struct {
		name, file, text, want string
	}{
		{"one line", "sources.list", "# deb http://old.example/debian bookworm main\ndeb http://a.example/debian bookworm main\n", "http://a.example/debian"},
		{"options", "sources.list.d/x.list", "deb [arch=amd64 signed-by=/k.gpg] http://a.example/debian bookworm main\n", "http://a.example/debian"},
		{"another suite", "sources.list", "deb http://a.example/debian-security trixie-security main\ndeb http://a.example/debian trixie main\n", "http://a.example/debian"},
		{"sources of programs only", "sources.list", "deb https://a.example/program stable main\ndeb-src http://a.example/debian bookworm main\ndeb cdrom:[x] bookworm main\n", ""},
		{"stanza", "sources.list.d/debian.sources", "Types: deb\n# a comment: of it\nURIs: https://a.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\n", "https://a.example/debian"},
		{"the stanza that names it", "sources.list.d/debian.sources", "Types: deb\nURIs: http://a.example/debian\nSuites: trixie\n\nTypes: deb\nURIs: http://b.example/d\nSuites: bookworm\n", "http://b.example/d"},
		{"stanza that is off", "sources.list.d/debian.sources", "Enabled: no\nTypes: deb\nURIs: http://a.example/debian\nSuites: bookworm\n", ""},
		{"nothing", "sources.list", "deb\ndeb [x\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			apt := fstest.MapFS{c.file: &fstest.MapFile{Data: []byte(c.text)}}
			require.Equal(t, c.want, mirrorOf(apt, "bookworm"))
		})
	}
}
