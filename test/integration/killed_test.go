package integration_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// upheaval brings a host to where every kind of step is due, of VMs and of containers:
// one to make, one to change, one to start, one to remove. It leaves an agent that has
// not looked yet.
func upheaval(t *testing.T) *followed {
	t.Helper()
	f := follow(t, pve.Config{TaskTime: 5 * time.Millisecond}, byFile())
	f.write("template.hcl", ctTemplate)
	f.deploy("web", vm("changes")+vm("goes")+vm("sleeps")+ct("ct-changes")+ct("ct-goes")+ct("ct-sleeps"))
	f.push("Six")
	f.says(0, "agent", "--once", "--config", f.config)
	require.Equal(t, []string{"changes", "ct-changes", "ct-goes", "ct-sleeps", "goes", "sleeps"}, f.names())
	f.deploy("web", vm("changes", "tags = [\"new\"]", "cores = 1")+vm("comes")+vm("sleeps")+
		ct("ct-changes", "tags = [\"new\"]", "disk = 12")+ct("ct-comes")+ct("ct-sleeps"))
	f.push("Much at once")
	sleeps, ctSleeps := f.vmidOf("sleeps"), f.vmidOf("ct-sleeps")
	f.byHand(func(e *pve.Edit) { e.Stop(sleeps); e.Stop(ctSleeps) })
	return f
}

// settled requires that the host is as the last push says, with nothing doubled and
// nothing left over, and that the agent agrees.
func (f *followed) settled() {
	f.t.Helper()
	require.Equal(f.t, []string{"changes", "comes", "ct-changes", "ct-comes", "ct-sleeps", "sleeps"}, f.names())
	for name, g := range f.ours() {
		require.True(f.t, g.Running, name)
		require.Empty(f.t, g.Config["lock"], name)
	}
	require.Equal(f.t, "homestak;new", f.guest("changes").Config["tags"])
	require.Equal(f.t, "homestak;new", f.guest("ct-changes").Config["tags"])
	require.Contains(f.t, f.guest("ct-changes").Config["rootfs"], "size=12G")
	f.quietly(func() { f.says(0, "agent", "--once", "--config", f.config) })
}

// ST-14: the agent is killed (-9) at each write of a pass, as the request arrives and
// its effect is still to come, so that the answer reaches nobody. Started again, it
// converges.
func TestKilledAtEveryStep(t *testing.T) {
	whole := upheaval(t)
	before := whole.writes()
	whole.says(0, "agent", "--once", "--config", whole.config)
	steps := whole.writes() - before
	whole.settled()
	require.Greater(t, steps, 10, "there is too little to kill")

	for n := 1; n <= steps; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			f := upheaval(t)
			f.killedAt(n)
			f.begins()
			f.converged(f.git("rev-parse", "HEAD"))
			f.ends()
			f.settled()
			r := f.says(0, "history", "verify", "--config", f.config)
			require.NotContains(t, r.out+r.err, "broken")
		})
	}
}

// killedAt runs a pass of the agent that dies at its write number n.
func (f *followed) killedAt(n int) {
	f.t.Helper()
	reached, dead := make(chan struct{}), make(chan struct{})
	left := make(chan int, 1)
	left <- n
	hold := func(r *http.Request) (int, bool) {
		if r.Method == http.MethodGet {
			return 0, false
		}
		still := <-left - 1
		left <- still
		if still == 0 {
			close(reached)
		}
		if still <= 0 {
			<-dead // and whatever arrived beside it comes to its effect after that, too
		}
		return 0, false
	}
	f.fault.Store(&hold)
	p := f.starts("agent", "--once", "--config", f.config)
	select {
	case <-reached:
	case <-p.ended:
		close(dead)
		require.Fail(f.t, "the pass ended before that write", p.said())
	}
	require.NoError(f.t, p.Process.Signal(syscall.SIGKILL))
	_ = p.Wait()
	var exit *exec.ExitError
	require.ErrorAs(f.t, p.err, &exit)
	require.Equal(f.t, -1, exit.ExitCode(), "it was not killed: %s", p.said())
	close(dead)
	f.heals()
}
