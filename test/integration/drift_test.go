package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// ST-10: what somebody changes on the host is found by the next pass, called by its
// name, and put back.
func TestDriftIsPutBack(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.deploy("web", vm("changed", "restart = \"allowed\"")+vm("deleted")+vm("stopped")+vm("untouched"))
	s.apply()
	before := s.ours()

	s.byHand(func(e *pve.Edit) {
		id := before["changed"].VMID
		e.Set(id, "memory", "512")
		e.Set(id, "tags", "homestak;mine")
		e.Set(id, "name", "renamed")
		e.Delete(before["deleted"].VMID)
		e.Stop(before["stopped"].VMID)
	})

	p := s.plan()
	require.ElementsMatch(t, []string{
		"update vm.changed: memory, name, tags",
		"create vm.deleted",
		"update vm.stopped: power",
	}, steps(p))

	s.apply()
	require.Equal(t, []string{"changed", "deleted", "stopped", "untouched"}, s.names())
	changed := s.guest("changed")
	require.Equal(t, "2048", changed.Config["memory"])
	require.Empty(t, changed.Pending)
	require.Equal(t, "homestak", changed.Config["tags"])
	require.Equal(t, before["deleted"].VMID, s.guest("deleted").VMID, "its VMID was free and is the lowest")
	require.True(t, s.guest("stopped").Running)
	require.Equal(t, before["untouched"], s.guest("untouched"))
	s.inSync()
}

// ST-10, where a policy says so: the same is found and told, and left as it is.
func TestDriftMayOnlyBeReported(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.deploy("web", vm("web-1", "drift = \"report\"")+vm("web-2", "drift = \"report\""))
	s.apply()
	first, second := s.vmidOf("web-1"), s.vmidOf("web-2")
	s.byHand(func(e *pve.Edit) {
		e.Set(first, "cores", "8")
		e.Stop(second)
	})
	left := s.ours()

	s.quietly(func() {
		r := s.try()
		require.Empty(t, steps(r.Plan))
		requireFinding(t, r.Findings, "vm.web-1", "drift", "cores")
		requireFinding(t, r.Findings, "vm.web-2", "drift", "power")
	})
	require.Equal(t, left, s.ours())
	s.says(2, "plan", "--detailed-exitcode")
	s.says(0, "apply", "--yes")
	require.Equal(t, left, s.ours())
}
