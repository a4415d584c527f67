package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDurationsHaveDays: the interval of a job and that of a check are read as all other durations are.
func TestDurationsHaveDays(t *testing.T) {
	for text, want := range map[string]time.Duration{"1d12h": 36 * time.Hour, "7d": 7 * 24 * time.Hour, "90s": 90 * time.Second} {
		got, err := ParseDuration(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, want, (&Check{Every: text}).Period())
	}
	for _, wrong := range []string{"65535d2562047h", "1d-1h", "d", "7 d", "70000d", "1w"} {
		_, err := ParseDuration(wrong)
		require.Error(t, err, wrong)
	}
	after := time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	next := (&Job{Schedule: "every 7d"}).Next(after, "")
	require.Equal(t, next.Add(7*24*time.Hour), (&Job{Schedule: "every 7d"}).Next(next, ""))
}
