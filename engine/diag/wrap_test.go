package diag_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
)

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
