package engine

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A clock that is set back, as at boot on a machine whose own one was wrong, must not
// make the agent wait until that time comes again.
func TestNobodyWaitsByAClockThatCanBeSet(t *testing.T) {
	a := &Agent{o: AgentOptions{Poll: time.Minute, Drift: time.Hour, Log: slog.New(slog.DiscardHandler)}}
	a.desk.status.Last = &PassStatus{}
	for _, ask := range []func(){a.answered, func() { a.unanswered(errors.New("no route")) }} {
		ask()
		a.schedule()
		look, full, _ := a.timers()
		require.Contains(t, look.String(), " m=", "the monotonic clock")
		require.Contains(t, full.String(), " m=", "the monotonic clock")
		require.Equal(t, time.UTC, a.desk.status.NextLook.Location())
		require.WithinDuration(t, look, *a.desk.status.NextLook, 0)
		require.WithinDuration(t, full, *a.desk.status.NextFull, 0)
	}
}
