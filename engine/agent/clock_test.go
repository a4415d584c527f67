package agent

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A clock that is set back, as at boot on a machine whose own one was wrong, must not
// make the agent wait until that time comes again.
func TestWaitsUseTheMonotonicClock(t *testing.T) {
	l := &loop{o: Options{Poll: time.Minute, Drift: time.Hour}, upstream: upstream{log: slog.New(slog.DiscardHandler)}}
	l.status.Last = &PassStatus{}
	for _, err := range []error{nil, errors.New("no route")} {
		l.upstream.answered(err)
		l.scheduleFetch()
		l.schedule(engine.Report{})
		require.Contains(t, l.nextFetch.String(), " m=", "the monotonic clock")
		require.Contains(t, l.nextCheck.String(), " m=", "the monotonic clock")
		require.Equal(t, time.UTC, l.status.NextCheck.Location())
		require.WithinDuration(t, l.nextFetch, *l.status.NextCheck, 0)
		require.WithinDuration(t, l.nextCheck, *l.status.NextFull, 0)
	}
}

// A pass about a few guests sees no child, and takes none for gone.
func TestAPassAboutSomeGuestsForgetsNoChild(t *testing.T) {
	want := &model.Want{Host: &model.Host{}, State: model.State{}}
	before := []string{"inner"}
	require.Equal(t, before, removedChildren(want, model.Observed{Only: true}, before))
	require.Empty(t, removedChildren(want, model.Observed{}, before))
}
