package specserve_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve"
)

func TestText(t *testing.T) {
	passes := specserve.NewCounter("passes_total", "Passes.", "outcome")
	took := specserve.NewHistogram("took_seconds", "How long.", []float64{0.1, 2.5})
	r := specserve.NewRegistry(took, passes, specserve.CurrentFigures(func(add func(string, string, float64, ...string)) {
		add("ready", "Whether.", 0, "node", "\"quoted\" \\ and\nnext \xff")
		add("ready", "Whether.", 1.5, "node", "a")
	}))
	passes.WithLabelValues("done").Inc()
	took.WithLabelValues().Observe(2.5)
	took.WithLabelValues().Observe(3)
	text, err := r.Text()
	require.NoError(t, err)
	require.Equal(t, `# HELP passes_total Passes.
# TYPE passes_total counter
passes_total{outcome="done"} 1
# HELP ready Whether.
# TYPE ready gauge
ready{node="\"quoted\" \\ and\nnext ?"} 0
ready{node="a"} 1.5
# HELP took_seconds How long.
# TYPE took_seconds histogram
took_seconds_bucket{le="0.1"} 0
took_seconds_bucket{le="2.5"} 1
took_seconds_bucket{le="+Inf"} 2
took_seconds_sum 5.5
took_seconds_count 2
`, string(text))

	other, err := specserve.NewRegistry().Text()
	require.NoError(t, err)
	require.Empty(t, other, "registries share nothing")
}

// A figure that contradicts another one is an error, and no text that Prometheus would refuse.
func TestContradictions(t *testing.T) {
	for name, now := range map[string]specserve.CurrentFigures{
		"twice":        func(add func(string, string, float64, ...string)) { add("x", "X.", 1); add("x", "X.", 2) },
		"other labels": func(add func(string, string, float64, ...string)) { add("x", "X.", 1, "a", "b"); add("x", "X.", 2) },
	} {
		_, err := specserve.NewRegistry(now).Text()
		require.Error(t, err, name)
	}
	require.Panics(t, func() { specserve.NewRegistry(specserve.NewCounter("x", "X."), specserve.NewCounter("x", "X.")) })
}
