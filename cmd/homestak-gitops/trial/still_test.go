package trial

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A tree is stuck when no agent works. On a slow machine agents work for long before anything changes.
func TestN5ATreeThatIsWorkedOnIsNotStuck(t *testing.T) {
	ticks := func(s *stillness, working bool) (n time.Duration) {
		for n++; !s.tick(false, working); n++ {
			continue
		}
		return n
	}
	s := stillness{limit: 40 * every}
	require.EqualValues(t, 41, ticks(&s, false))
	require.False(t, s.tick(true, false), "a change resets the count")
	require.EqualValues(t, 41, ticks(&s, false))
	require.False(t, s.tick(true, true))
	require.EqualValues(t, 12*40+1, ticks(&s, true), "an agent that works for ever is stuck, too")
	require.False(t, s.tick(true, true))
	for range 100 {
		require.False(t, s.tick(false, true))
	}
	require.EqualValues(t, 41, ticks(&s, false), "work before it does not count")
}
