package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDue: in the window by the clock of the site, a while after the last success, and not twice in a window after a failure.
func TestDue(t *testing.T) {
	at := time.Date(2026, 11, 27, 2, 30, 0, 0, time.UTC) // 03:30 in Berlin
	b := &Backup{Verify: "restore", Window: "03:00-05:00", zone: "Europe/Berlin"}
	require.True(t, b.Due(Restored{}, at))
	require.False(t, b.Due(Restored{}, at.Add(2*time.Hour)), "the window is over")
	require.False(t, b.Due(Restored{Tried: at.Add(-time.Hour), Error: "torn"}, at))
	require.True(t, b.Due(Restored{Tried: at.Add(-24 * time.Hour), Error: "torn"}, at))
	proved := at.Add(-29 * 24 * time.Hour)
	require.False(t, b.Due(Restored{Tried: proved, Proved: proved}, at))
	proved = at.Add(-30 * 24 * time.Hour)
	require.True(t, b.Due(Restored{Tried: proved, Proved: proved}, at))
	wrong := at.Add(10 * 365 * 24 * time.Hour)
	require.True(t, b.Due(Restored{Tried: wrong, Proved: wrong}, at), "a clock was wrong once")
	b.VerifyEvery = time.Hour
	require.True(t, b.Due(Restored{Tried: at.Add(-time.Hour), Proved: at.Add(-time.Hour)}, at))
	b.Verify = ""
	require.False(t, b.Due(Restored{}, at))
}
