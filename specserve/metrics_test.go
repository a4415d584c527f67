package specserve

import (
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
	text, err := NewRegistry(c.requests, c.refusals, c.took).Text()
	require.NoError(t, err)
	require.Equal(t, `# HELP homestak_serve_refusals_total Requests that were answered with an error, by its code.
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
# HELP homestak_serve_requests_total Requests that were answered.
# TYPE homestak_serve_requests_total counter
homestak_serve_requests_total{endpoint="/health",status="200"} 1
homestak_serve_requests_total{endpoint="/spec/{identity}",status="200"} 2
homestak_serve_requests_total{endpoint="/spec/{identity}",status="401"} 1
`, string(text))
}
