package diag_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
)

func at(file string, line, col, endcol int) diag.Range {
	return diag.Range{File: file, Start: diag.Pos{Line: line, Column: col}, End: diag.Pos{Line: line, Column: endcol}}
}

func TestTextUnderlinesTheMistake(t *testing.T) {
	f := diag.Errorf(at("manifests/web.hcl", 12, 14, 28), `unknown preset "vm-smal"`, "%s", diag.DidYouMean("vm-smal", []string{"vm-small", "vm-large"}))
	f.Code = "    preset = preset.vm-smal"
	f.At.Start.Column, f.At.End.Column = 14, 28
	var b strings.Builder
	diag.List{f, {Severity: diag.Warning, Summary: "host is slow"}}.Write(&b)
	require.Equal(t, `manifests/web.hcl:12:14: error: unknown preset "vm-smal"
  12 |     preset = preset.vm-smal
     |              ^^^^^^^^^^^^^^
  did you mean "vm-small"?

warning: host is slow
`, b.String())
}

func TestTextSurvivesHostileLines(t *testing.T) {
	for _, code := range []string{"\x1b[31mred\x1b[0m", strings.Repeat("x", 100_000), "ü\x00\tö", ""} {
		for _, col := range []int{0, 1, 3, 99_990, 200_000} {
			f := diag.Errorf(at("a.hcl", 1, col, col+5), "bad", "")
			f.Code = code
			var b strings.Builder
			diag.List{f}.Write(&b)
			require.NotContains(t, b.String(), "\x1b")
			for line := range strings.Lines(b.String()) {
				require.Less(t, len([]rune(line)), 400)
			}
		}
	}
}

func TestSortedByPlaceOnceEach(t *testing.T) {
	a, b, c := diag.Errorf(at("b.hcl", 1, 1, 2), "z", ""), diag.Errorf(at("a.hcl", 9, 1, 2), "y", ""), diag.Errorf(diag.Range{}, "x", "")
	got := diag.List{c, a, b, a}.Sorted()
	require.Equal(t, diag.List{b, a, c}, got)
	require.Equal(t, 3, got.Errors())
}

func TestNearest(t *testing.T) {
	names := []string{"vm-small", "vm-xsmall", "vm-large"}
	require.Equal(t, "vm-small", diag.Nearest("vm-smal", names))
	require.Equal(t, "vm-large", diag.Nearest("vm_large", names))
	require.Equal(t, "cores", diag.Nearest("coers", []string{"clone", "cores", "count"}), "two neighbours changed places")
	require.Empty(t, diag.Nearest("coxxs", []string{"clone", "cores", "count"}))
	require.Empty(t, diag.Nearest("gigantic", names))
	require.Equal(t, "known: vm-large, vm-small, vm-xsmall", diag.DidYouMean("gigantic", names))
}

func TestFindingJSON(t *testing.T) {
	b, err := json.Marshal(diag.Finding{Severity: diag.Error, Summary: "s", Source: diag.FromSite})
	require.NoError(t, err)
	require.JSONEq(t, `{"severity":"error","summary":"s","detail":"","source":"site","at":{}}`, string(b))
	b, err = json.Marshal(at("a.hcl", 3, 4, 5))
	require.NoError(t, err)
	require.JSONEq(t, `{"file":"a.hcl","line":3,"column":4}`, string(b))
}

// Long lines are broken between words, and keep their indentation.
func TestN16LinesBreakBetweenWords(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"short enough", "short enough"},
		{"one two three four five six", "one two three four\n  five six"},
		{"  one two three four five six\nnext", "  one two three four\n    five six\nnext"},
		{"error: " + strings.Repeat("x", 30) + " y", "error: " + strings.Repeat("x", 30) + "\n  y"},
		{"a    column that is too wide here", "a    column that is\n  too wide here"},
		{"on the node run `qm unlock 7` there", "on the node run\n  `qm unlock 7`\n  there"},
		{"a backtick ` alone is a word", "a backtick ` alone\n  is a word"},
		{`homestak-gitops: {"v":1}`, `homestak-gitops: {"v":1}`},
		{"größe für größere wörter", "größe für größere\n  wörter"},
		{"\x1b[1mone two three four five six\x1b[0m", "\x1b[1mone two three four\n  five six\x1b[0m"},
		{"\x1b[1mone two\x1b[0m three four", "\x1b[1mone two\x1b[0m three four"},
	} {
		require.Equal(t, c.want, diag.Wrap(c.text, 20))
		require.Equal(t, c.text, diag.Wrap(c.text, 0))
	}
	for line := range strings.SplitSeq(diag.Wrap(strings.Repeat("word ", 100), 30), "\n") {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 30)
	}
}

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
