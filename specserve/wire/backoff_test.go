package wire_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

func TestBackoff(t *testing.T) {
	near := func(want, got time.Duration) {
		t.Helper()
		require.InDelta(t, want, got, float64(want)/5)
	}
	b := wire.Backoff{Most: 2 * time.Minute}
	for range 2 {
		for _, want := range []time.Duration{5, 10, 20, 40, 80, 120, 120} {
			near(want*time.Second, b.Next())
		}
		b.Reset()
	}
	first := b.Next()
	require.Eventually(t, func() bool { b.Reset(); return b.Next() != first }, time.Minute, time.Nanosecond, "clients do not come together")
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.True(t, wire.Sleep(t.Context(), time.Hour, nil))
		require.Equal(t, time.Hour, time.Since(began))
		before := make(chan struct{}, 1)
		before <- struct{}{}
		require.True(t, wire.Sleep(t.Context(), time.Hour, before))
		ended, end := context.WithCancel(t.Context())
		end()
		require.False(t, wire.Sleep(ended, time.Hour, nil))
		require.Equal(t, time.Hour, time.Since(began))
	})
}
