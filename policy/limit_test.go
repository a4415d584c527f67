package policy_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/policy"
)

func TestWhatStopsWhenToldIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := policy.Limited(5 * time.Second)
		began := time.Now()
		_, err := s.Within(t.Context(), func(ctx context.Context, _ topdown.Cancel) (string, error) {
			<-ctx.Done()
			return "", errors.New("stopped at rule x")
		})
		require.EqualError(t, err, "it did not finish within 1m0s\nstopped at rule x")
		require.Less(t, time.Since(began), 61*time.Second)
		got, err := s.Within(t.Context(), func(context.Context, topdown.Cancel) (string, error) { return "fine", nil })
		require.NoError(t, err)
		require.Equal(t, "fine", got)
	})
}

// A call that never looks whether it was stopped is left behind, so that the caller has
// its answer; until it has ended, nothing further is begun.
func TestWhatDoesNotStopIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := policy.Limited(5 * time.Second)
		deaf := make(chan struct{})
		began := time.Now()
		_, err := s.Within(t.Context(), func(context.Context, topdown.Cancel) (string, error) {
			<-deaf
			return "too late", nil
		})
		require.EqualError(t, err, "it did not finish within 1m0s")
		require.Less(t, time.Since(began), 65*time.Second)

		quick := func(context.Context, topdown.Cancel) (string, error) { return "fine", nil }
		_, err = s.Within(t.Context(), quick)
		require.EqualError(t, err, "a policy that was stopped still runs; nothing is checked until it ends")

		close(deaf)
		synctest.Wait()
		got, err := s.Within(t.Context(), quick)
		require.NoError(t, err)
		require.Equal(t, "fine", got)
	})
}

func TestACallerWhoGoesIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		_, err := policy.Limited(time.Hour).Within(ctx, func(ctx context.Context, stop topdown.Cancel) (string, error) {
			<-ctx.Done()
			require.True(t, stop.Cancelled())
			return "", errors.New("stopped")
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, time.Second, time.Since(began).Truncate(time.Second))
	})
}

func TestAPanicIsAnError(t *testing.T) {
	_, err := policy.Limited(time.Hour).Within(t.Context(), func(context.Context, topdown.Cancel) (string, error) { panic("a mistake of OPA") })
	require.ErrorContains(t, err, "internal error of the policy engine: a mistake of OPA")
}
