package transfer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNextRun: a Saturday morning, and what comes next.
func TestNextRun(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 7, 30, 0, time.UTC)
	for schedule, want := range map[string]string{
		"daily": "22 00:00", "hourly": "21 11:00", "weekly": "23 00:00", "03:30": "22 03:30", "*/15": "21 10:15", "*:0/30": "21 10:30",
		"mon..fri 02:00": "23 02:00", "sun": "22 00:00", "8..17,22:30": "21 10:30", "sat,tue 9:00": "24 09:00", "fri..mon 10:07": "22 10:07",
	} {
		at, ok := nextRun(schedule, now)
		require.True(t, ok, schedule)
		require.Equal(t, want, at.Format("02 15:04"), schedule)
	}
	for _, schedule := range []string{"", "someday", "25:00", "2026-12-01 00:00", "*/0", "1..99:00", "mon..never 1:00"} {
		_, ok := nextRun(schedule, now)
		require.False(t, ok, schedule)
	}
}
