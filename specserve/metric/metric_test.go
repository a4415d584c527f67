package metric

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSampleEscapes(t *testing.T) {
	var b Text
	b.Sample("x", 1.5, "a", "\"quoted\" \\ and\nnext \xff", "b", "")
	require.Equal(t, `x{a="\"quoted\" \\ and\nnext `+"\ufffd"+`",b=""} 1.5`+"\n", b.String())
}

// Whatever a label has, a sample is one line, and its values can be read back.
func FuzzSample(f *testing.F) {
	for _, s := range []string{"", "a", "\"", "\\", "\n", "\\n", "\\\"", "\xff", "{}=,", "\r\n# HELP x"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		var b Text
		b.Sample("x", 1, "a", first, "b", second)
		line, ended := strings.CutSuffix(b.String(), "\n")
		require.True(t, ended)
		require.NotContains(t, line, "\n")
		rest, ok := strings.CutPrefix(line, `x{a="`)
		require.True(t, ok)
		gotFirst, rest := unescaped(t, rest)
		rest, ok = strings.CutPrefix(rest, `,b="`)
		require.True(t, ok)
		gotSecond, rest := unescaped(t, rest)
		require.Equal(t, "} 1", rest)
		require.Equal(t, strings.ToValidUTF8(first, "\ufffd"), gotFirst)
		require.Equal(t, strings.ToValidUTF8(second, "\ufffd"), gotSecond)
	})
}

// unescaped reads the value of a label as Prometheus does, up to its quote.
func unescaped(t *testing.T, s string) (value, rest string) {
	t.Helper()
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return b.String(), s[i+1:]
		case s[i] != '\\':
			b.WriteByte(s[i])
		default:
			i++
			require.Contains(t, `\"n`, string(s[i]))
			b.WriteString(map[byte]string{'\\': `\`, '"': `"`, 'n': "\n"}[s[i]])
		}
	}
	t.Fatal("the value has no end")
	return "", ""
}
