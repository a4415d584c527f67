package forest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A machine that gets another parent is made there, with all nodes that it has, and goes child first where it was. As long as
// what is left of it does not answer, nothing is removed there; the new one does not wait for that.
func TestAMachineMovesToAnotherParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := grown(t, nil)
		defer w.end()
		father, inner, old := w.Machine("father"), w.Machine("inner"), w.Machine("leaf")
		kept := old.Guests()["vm-3"]

		w.Network.Cut(old.Data, true)
		s.leafOn = "father"
		w.push(s, "leaf moves to father\n\nAllow-Deletes: 5")
		w.live(30 * time.Minute)
		moved := w.On(father, "leaf")
		require.NotNil(t, moved)
		require.Equal(t, []string{"vm-3"}, moved.Managed(), "the new one has its nodes")
		require.True(t, moved.Agent().Status().Healthy)
		require.Same(t, old, w.On(inner, "leaf"), "the old one cannot say that it is empty")
		require.Equal(t, kept, old.Guests()["vm-3"])
		require.Contains(t, w.says("inner"), "not deleted until nothing is left in it")
		require.Contains(t, w.says("inner"), `push a commit with the trailer "Allow-Orphans: leaf"`)
		require.Equal(t, []string{"leaf", "vm-2"}, inner.Managed())

		w.Network.Cut(old.Data, false)
		w.until(20*time.Minute, "nothing is left of it on inner", w.converged)
		require.Same(t, moved, w.Machine("leaf"))
		require.NotEqual(t, kept.Config["smbios1"], moved.Guests()["vm-3"].Config["smbios1"], "it was made there")
		require.Empty(t, w.broken)

		// It moves back, and before the one on father could empty itself that is taken back: it stays as it is.
		before := w.guests()
		w.Network.Cut(moved.Data, true)
		s.leafOn = "inner"
		w.push(s, "leaf moves to inner\n\nAllow-Deletes: 5")
		w.live(10 * time.Minute)
		require.Equal(t, []string{"vm-3"}, w.On(inner, "leaf").Managed())
		s.leafOn = "father"
		w.push(s, "leaf stays on father\n\nAllow-Deletes: 5")
		w.live(time.Minute)
		w.Network.Cut(moved.Data, false)
		w.until(time.Hour, "it is on father as before", w.converged)
		require.Equal(t, before, w.guests())
		require.Empty(t, w.broken)
	})
}
