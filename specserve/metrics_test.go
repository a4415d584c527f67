package specserve

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCounts(t *testing.T) {
	c := newCounts()
	c.add("/spec/{identity}", 200, "", time.Millisecond)
	c.add("/spec/{identity}", 200, "", 1500*time.Millisecond)
	c.add("/spec/{identity}", 401, "E301", 2*time.Minute)
	c.add("/health", 200, "", 0)
	var b strings.Builder
	c.write(&b)
	require.Equal(t, `# HELP homestak_serve_requests_total Requests that were answered.
# TYPE homestak_serve_requests_total counter
homestak_serve_requests_total{endpoint="/health",status="200"} 1
homestak_serve_requests_total{endpoint="/spec/{identity}",status="200"} 2
homestak_serve_requests_total{endpoint="/spec/{identity}",status="401"} 1
# HELP homestak_serve_refusals_total Requests that were answered with an error, by its code.
# TYPE homestak_serve_refusals_total counter
homestak_serve_refusals_total{code="E301"} 1
# HELP homestak_serve_request_seconds How long requests took.
# TYPE homestak_serve_request_seconds histogram
homestak_serve_request_seconds_bucket{endpoint="/health",le="0.001"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="0.005"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="0.025"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="0.1"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="0.5"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="2.5"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="10"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="60"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="+Inf"} 1
homestak_serve_request_seconds_sum{endpoint="/health"} 0
homestak_serve_request_seconds_count{endpoint="/health"} 1
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="0.001"} 1
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="0.005"} 1
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="0.025"} 1
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="0.1"} 1
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="0.5"} 1
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="2.5"} 2
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="10"} 2
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="60"} 2
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="+Inf"} 3
homestak_serve_request_seconds_sum{endpoint="/spec/{identity}"} 121.501
homestak_serve_request_seconds_count{endpoint="/spec/{identity}"} 3
`, b.String())
}

func TestSampleEscapes(t *testing.T) {
	var b strings.Builder
	sample(&b, "x", 1.5, "a", "\"quoted\" \\ and\nnext \xff", "b", "")
	require.Equal(t, `x{a="\"quoted\" \\ and\nnext `+"\ufffd"+`",b=""} 1.5`+"\n", b.String())
}

// Whatever a label has, a sample is one line, and its values can be read back.
func FuzzSample(f *testing.F) {
	for _, s := range []string{"", "a", "\"", "\\", "\n", "\\n", "\\\"", "\xff", "{}=,", "\r\n# HELP x"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		var b strings.Builder
		sample(&b, "x", 1, "a", first, "b", second)
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
