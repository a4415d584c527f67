package keys

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A clock that is set while the server runs is noticed, the time that passes is not.
func TestS7ClockIsSetWhileServing(t *testing.T) {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	right := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	lapsed := func(c *clock, end, now time.Time) bool { return !c.spared(end, now) }

	var passes clock
	for now := right; now.Before(right.Add(90 * day)); now = now.Add(40 * day) {
		passes.tick(now, 40*day)
		require.True(t, lapsed(&passes, right, now))
	}

	// It is a year behind, and put right in two steps.
	var behind clock
	behind.tick(right.Add(-year), 0)
	end := right.Add(day - year) // of a token that was minted then
	behind.tick(right.Add(2*day-year), 2*day)
	require.True(t, lapsed(&behind, end, right.Add(2*day-year)), "nothing was missed yet")
	behind.tick(right.Add(-2*day), time.Minute)
	behind.tick(right, time.Minute)
	require.False(t, lapsed(&behind, end, right))
	require.True(t, lapsed(&behind, right.Add(-year-lapse), right), "it had lapsed before")
	require.False(t, lapsed(&behind, end, right.Add(lapse-1)))
	require.True(t, lapsed(&behind, end, right.Add(lapse)), "the nodes had time")

	// It is a year ahead, and put right.
	var ahead clock
	ahead.tick(right, 0)
	ahead.tick(right.Add(year), time.Minute)
	require.False(t, lapsed(&ahead, right.Add(day), right.Add(year)))
	ahead.tick(right, time.Minute)
	require.True(t, lapsed(&ahead, right.Add(day), right.Add(day+lapse)))

	// A server that is off at each weekend spares a token for the usual time only.
	var weekly clock
	weekly.tick(right, 0)
	now := right
	for range 10 {
		now = now.Add(5 * day)
		weekly.tick(now, 5*day)
		now = now.Add(2 * day)
		weekly.tick(now, 0)
	}
	require.True(t, lapsed(&weekly, right.Add(6*day), now))

	// Between two requests the time passes by the clock that cannot be set.
	b, err := Folder(t.TempDir()).OpenBook()
	require.NoError(t, err)
	require.NoError(t, b.Admit(Claims{Node: "web", Expires: time.Now().Add(day).Unix()}, time.Now()))
	require.Contains(t, b.clock.Seen.String(), " m=+")
}
