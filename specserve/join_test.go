package specserve

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Of machines that wait so many are remembered, for so long.
func TestWaitingHosts(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := New(Options{Now: func() time.Time { return now }})
	for i := range 2 * mostWaiting {
		s.waitingHosts.note(fmt.Sprintf("h-%03d", i), "192.0.2.1:1", now)
	}
	require.Len(t, s.Waiting(), mostWaiting)
	now = now.Add(20 * time.Hour)
	s.waitingHosts.note("h-003", "192.0.2.2:1", now)
	now = now.Add(5 * time.Hour)
	require.Equal(t, []WaitingHost{{Name: "h-003", From: "192.0.2.2:1", Since: now.Add(-25 * time.Hour), Last: now.Add(-5 * time.Hour)}}, s.Waiting())
	s.Publish(View{Catalog: &Catalog{nodes: map[string]*Node{"h-003": {Name: "h-003", Child: true}}}})
	require.Empty(t, s.Waiting(), "the site has it now")
}
