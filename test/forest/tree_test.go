package forest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Three levels come up from nothing, and follow pushes.
func TestThreeLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		defer w.end()
		s := newSite()
		for _, on := range []string{"father", "inner", "leaf"} {
			s.add(on)
		}
		w.push(s, "begin")
		w.until(time.Hour, "the tree is there", w.converged)
		s.vms["vm-3"] = 4
		s.add("leaf")
		w.push(s, "more")
		w.until(10*time.Minute, "the tree follows", w.converged)

		// A machine that leaves the site goes after all that is in it, level by level.
		s.inner = false
		w.push(s, "inner leaves\n\nAllow-Deletes: 10")
		w.until(time.Hour, "inner is gone", w.converged)
		s.inner = true
		w.push(s, "inner is back")
		w.until(time.Hour, "the tree is there again", w.converged)
		require.Empty(t, w.broken)
		if testing.Verbose() {
			t.Log(w.why())
		}
	})
}

// What goes against the order is noticed: a machine that is destroyed with something in it.
func TestTheLawNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := grown(t, nil)
		defer w.end()
		w.deletes("inner", "leaf")
		w.live(2 * time.Second)
		require.Equal(t, []string{"gone: leaf with [vm-3] in it"}, w.broken)
		w.deletes("father", "inner")
		w.live(2 * time.Second)
		require.Len(t, w.broken, 2)
	})
}
