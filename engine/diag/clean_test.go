package diag_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// hostile is text that drives a terminal, reorders or hides: by name.
func hostile() map[string]string {
	return map[string]string{
		"CSI": "a\x1b[2Jb", "CSI of C1": "a\u009b2Jb", "OSC": "a\x1b]0;title\x07b", "DEL": "a\x7fb", "backspace": "a\bb", "NUL": "a\x00b",
		"override": "a\u202eb", "isolate": "a\u2066b\u2069", "mark": "a\u200fb", "Arabic mark": "a\u061cb", "line separator": "a\u2028b",
		"zero width": "a\u200bb", "tag": "a\U000e0041b", "not UTF-8": "a\xff\xfeb", "byte of C1": "a\x9b2Jb", "byte order mark": "\ufeffa",
	}
}

func TestS7Clean(t *testing.T) {
	for name, text := range hostile() {
		t.Run(name, func(t *testing.T) {
			for _, clean := range []string{diag.Clean(text), diag.Line(text), diag.Escape(text)} {
				require.Equal(t, clean, diag.Clean(clean))
				require.NotEqual(t, text, clean)
				for _, r := range clean {
					require.True(t, r >= ' ' && r < 0x7f, "%q", clean)
				}
			}
			var screen bytes.Buffer
			n, err := diag.Screen(&screen).Write([]byte(text))
			require.NoError(t, err)
			require.Equal(t, len(text), n)
			if name != "CSI" { // the program's own
				require.Equal(t, screen.String(), diag.Clean(screen.String()))
			}
			document, err := json.Marshal(text)
			require.NoError(t, err)
			shown := diag.JSON(document)
			require.Equal(t, string(shown), diag.Clean(string(shown)))
			var before, after string
			require.NoError(t, json.Unmarshal(document, &before))
			require.NoError(t, json.Unmarshal(shown, &after))
			require.Equal(t, before, after, "it says the same")
		})
	}
	for _, text := range []string{"", "plain", "Grüße 👩\u200d🚒 日本語 שלום\nsecond\tline"} {
		require.Equal(t, text, diag.Clean(text))
	}
	require.Equal(t, "a b c", diag.Line("a\r\n b\t c\n"))
	require.Equal(t, `a\nb"`, diag.Escape("a\nb\""))
	var out strings.Builder
	_, err := diag.Screen(&out).Write([]byte("\x1b[31;1mred\x1b[0m\r\x1b[K\x1b]8;;http://x\x07"))
	require.NoError(t, err)
	require.Equal(t, "\x1b[31;1mred\x1b[0m\r\x1b[K?]8;;http://x?", out.String())
}
