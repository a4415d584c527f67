package guest_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The timer makes a pass now and then. A bad commit makes the unit fail, says why, and
// changes nothing; the next good one is converged by the next pass.
func TestTheTimerMakesPasses(t *testing.T) {
	w := begin(t)
	w.Write("/etc/systemd/system/"+timer+".d/soon.conf", 0o644, "[Timer]\nOnCalendar=\nOnCalendar=*:*:*\nAccuracySec=100ms\nRandomizedDelaySec=0\n")
	w.Run("systemctl", "daemon-reload")
	w.Run("systemctl", "enable", "--now", timer)
	w.has("web-1")
	w.Until("the pass ended well", func() bool { return w.show(once, "Result") == "success" && w.show(once, "ExecMainStatus") == "0" })

	w.push("bad.hcl", bad)
	w.Until("the unit failed", func() bool { return w.show(once, "ExecMainStatus") == "3" })
	w.Until("it says where", func() bool { return w.finding(once, "bad.hcl:6") != nil })
	require.Equal(t, "active", w.show(timer, "ActiveState"), "the timer goes on")
	require.Len(t, w.host.Snapshot().Guests, 2+1)

	w.push("bad.hcl", node("good-1"))
	w.has("good-1")
	w.Until("the unit is well again", func() bool { return w.show(once, "ExecMainStatus") == "0" && w.show(once, "Result") == "success" })
	require.Empty(t, w.Run("systemctl", "list-units", "--failed", "--no-legend", "homestak-gitops*"))
}

// Agent and timer exclude each other: the one that is started ends the other.
func TestAgentAndTimerExcludeEachOther(t *testing.T) {
	w := begin(t)
	w.Run("systemctl", "start", service)
	w.Run("systemctl", "start", timer)
	w.Until("the agent has ended", func() bool { return w.show(service, "ActiveState") == "inactive" })
	require.Equal(t, "success", w.show(service, "Result"))
	require.Equal(t, "active", w.show(timer, "ActiveState"))
	w.Run("systemctl", "start", once) // what the timer does, now
	w.Run("systemctl", "start", service)
	require.Equal(t, "inactive", w.show(timer, "ActiveState"))
	require.Equal(t, "inactive", w.show(once, "ActiveState"))
	w.has("web-1")
}
