package integration_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// loses deletes the agent's data folder with all that is in it: its copy of the
// repository, its receipts, what it remembers of suspensions and grants.
func (f *followed) loses() {
	f.t.Helper()
	require.Nil(f.t, f.agent, "an agent still works in it")
	require.DirExists(f.t, f.data)
	require.NoError(f.t, os.RemoveAll(f.data))
}

// ST-21: the data folder of an agent is lost. What is ours is written on the guests,
// so the agent finds the same ones again, writes nothing, and goes on from there.
func TestALostDataFolder(t *testing.T) {
	f := follow(t, pve.Config{TaskTime: 5 * time.Millisecond}, byFile())
	f.deploy("web", vm("web-1")+vm("web-2", "tags = [\"front\"]")+vm("web-3"))
	f.write("template.hcl", ctTemplate)
	f.deploy("golden", ct("copy"))
	f.push("Four")
	f.says(0, "agent", "--once", "--config", f.config)
	before := f.managed()
	require.Len(t, before, 4)

	f.loses()
	f.quietly(func() { f.says(0, "agent", "--once", "--config", f.config) })
	require.Equal(t, before, f.managed(), "the same guests, and none doubled")
	require.NotContains(t, f.says(0, "history", "verify", "--config", f.config).err, "broken", "a new chain of receipts has begun")

	// Guests that left the files meanwhile are still recognized as managed, and removed; new ones are created.
	f.loses()
	f.edit("manifests/web.hcl", "node \"web-3\"", "node \"web-4\"")
	f.push("Another one in its place")
	f.says(0, "agent", "--once", "--config", f.config)
	require.Equal(t, []string{"copy", "web-1", "web-2", "web-4"}, f.names())
	for _, name := range []string{"copy", "web-1", "web-2"} {
		require.Equal(t, before[name], f.managed()[name], name)
	}

	// A cap is not forgotten with the folder: it counts what is on the host.
	f.loses()
	f.remove("manifests/web.hcl")
	f.edit("site.hcl", "site \"home\" {", "site \"home\" {\n  max_deletes = 2")
	f.push("All of them away")
	r := f.says(4, "agent", "--once", "--config", f.config)
	require.Contains(t, r.out+r.err, "3", "how many it would have removed")
	require.Equal(t, []string{"copy", "web-1", "web-2", "web-4"}, f.names(), "nothing went")
}

// ST-21 with ST-14: the agent is killed in the middle of a pass, and its folder is
// lost beside. What was half done is finished, once.
func TestALostDataFolderInTheMiddle(t *testing.T) {
	whole := upheaval(t)
	before := whole.writes()
	whole.says(0, "agent", "--once", "--config", whole.config)
	steps := whole.writes() - before
	require.Greater(t, steps, 10)
	for n := everySecond(); n <= steps; n += everySecond() {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			f := upheaval(t)
			kept := f.managed()["changes"]
			f.killedAt(n)
			f.loses()
			f.begins()
			f.converged(f.git("rev-parse", "HEAD"))
			f.ends()
			f.settled()
			require.Equal(t, kept.VMID, f.managed()["changes"].VMID)
			require.Len(t, slices.Compact(slices.Sorted(slices.Values(f.everyName()))), len(f.everyName()), "one of each name")
		})
	}
}

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
	for name, g := range f.managed() {
		require.True(f.t, g.Running, name)
		require.Empty(f.t, g.Config["lock"], name)
	}
	require.Equal(f.t, "homestak;new", f.guest("changes").Config["tags"])
	require.Equal(f.t, "homestak;new", f.guest("ct-changes").Config["tags"])
	require.Contains(f.t, f.guest("ct-changes").Config["rootfs"], "size=12G")
	f.quietly(func() { f.says(0, "agent", "--once", "--config", f.config) })
}

// everySecond is the distance of the writes at which something breaks; HOMESTAK_FAULTS=all breaks each.
func everySecond() int {
	if os.Getenv("HOMESTAK_FAULTS") == "all" {
		return 1
	}
	return 2
}

// ST-14: the agent is killed (-9) at each write of a pass, when the request arrives and before its effect, so that the answer is
// lost. Started again, it converges. The even writes are those of TestALostDataFolderInTheMiddle, unless HOMESTAK_FAULTS=all is
// set.
func TestKilledAtEveryStep(t *testing.T) {
	whole := upheaval(t)
	before := whole.writes()
	whole.says(0, "agent", "--once", "--config", whole.config)
	steps := whole.writes() - before
	whole.settled()
	require.Greater(t, steps, 10, "there is too little to kill")

	for n := 1; n <= steps; n += everySecond() {
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

// One process at a time changes a host; a second one says who does, and leaves it.
func TestOneWriter(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("web", vm("web", "count = 3"))
	gate := s.gate(http.MethodPost, "/nodes/father/qemu")
	first := s.starts("apply", "--yes")
	gate.reached(first)

	second := s.says(4, "apply", "--yes")
	require.Contains(t, second.err, "father")
	require.Contains(t, second.err, fmt.Sprint(first.Process.Pid))
	require.Contains(t, s.says(4, "destroy", "-M", "web", "--yes").err, "father")
	s.says(0, "plan")

	gate.open()
	require.NoError(t, first.Wait(), first.said())
	require.Len(t, s.managed(), 3)
	s.says(0, "apply", "--yes")
}

// Ctrl-C, once: nothing new is started, what runs is finished. The next apply does
// the rest.
func TestInterrupted(t *testing.T) {
	const vms = 40
	s := begin(t, pve.Config{})
	s.deploy("web", vm("web", fmt.Sprintf("count = %d", vms)))
	gate := s.gate(http.MethodPost, "/nodes/father/qemu")
	first := s.starts("apply", "--yes")
	gate.reached(first)
	require.NoError(t, first.Process.Signal(os.Interrupt))
	first.says("nothing new is started")
	gate.open()

	require.Error(t, first.Wait())
	require.Equal(t, 130, first.ProcessState.ExitCode(), first.said())
	made := s.managed()
	require.NotEmpty(t, made)
	require.Less(t, len(made), vms)
	for name, g := range made {
		require.True(t, g.Running, "%s was begun and not finished", name)
	}

	s.says(0, "apply", "--yes")
	require.Len(t, s.managed(), vms)
	for name, g := range made {
		require.Equal(t, g, s.guest(name), "%s was done already", name)
	}
}

// gate holds all requests of a kind until it is opened.
type gate struct {
	came, opened chan struct{}
	open         func()
}

// reached waits for the first request of a process.
func (g *gate) reached(p *process) {
	p.t.Helper()
	select {
	case <-g.came:
	case <-p.ended:
		require.Fail(p.t, "it ended before its first request", "%v\n%s", p.err, p.said())
	}
}

func (s *story) gate(method, path string) *gate {
	g := &gate{came: make(chan struct{}), opened: make(chan struct{})}
	first := sync.OnceFunc(func() { close(g.came) })
	g.open = sync.OnceFunc(func() { close(g.opened) })
	s.t.Cleanup(g.open)
	hold := func(r *http.Request) (int, bool) {
		if r.Method == method && strings.TrimPrefix(r.URL.Path, "/api2/json") == path {
			first()
			select {
			case <-g.opened:
			case <-r.Context().Done():
			}
		}
		return 0, false
	}
	s.fault.Store(&hold)
	return g
}

// process is a run of the binary that goes on.
type process struct {
	*exec.Cmd
	t *testing.T
	// mu guards text: it is written by the goroutine that reads the process's output.
	mu    sync.Mutex
	text  bytes.Buffer
	wrote chan struct{} // of length 1: text has grown

	ended chan struct{} // closed when it has, and then:
	err   error
}

// starts runs a verb in the folder of the site, without waiting for its end.
func (s *story) starts(args ...string) *process {
	s.t.Helper()
	p := &process{Cmd: exec.CommandContext(s.t.Context(), program(s.t), args...), t: s.t, wrote: make(chan struct{}, 1), ended: make(chan struct{})}
	p.Dir, p.Stdout, p.Stderr = s.dir, p, p
	p.Env = append(os.Environ(), "GOGC=100", "HOMESTAK_LISTEN=none", "HOMESTAK_DATA_DIR="+filepath.Join(filepath.Dir(s.dir), "data"), "HOMESTAK_PVE_ROOT="+s.root)
	require.NoError(s.t, p.Start())
	go func() {
		p.err = p.Cmd.Wait()
		close(p.ended)
	}()
	s.t.Cleanup(func() { <-p.ended }) // its context ended before
	return p
}

// Wait waits for its end.
func (p *process) Wait() error {
	<-p.ended
	return p.err
}

// Write takes in what the process prints.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case p.wrote <- struct{}{}:
	default:
	}
	return p.text.Write(b)
}

// said is all that it has printed so far.
func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// says waits until it has printed a text.
func (p *process) says(text string) {
	p.t.Helper()
	for !strings.Contains(p.said(), text) {
		select {
		case <-p.wrote:
		case <-p.ended:
			require.Fail(p.t, "it did not say so", "%q in:\n%s", text, p.said())
		}
	}
}

// While a colleague's clone works for an hour, a pass does all of its own work and ends as done, and the next plan is in
// sync. A create in our range holds back what it may become, and the pass says so.
func TestAColleaguesHourLongTask(t *testing.T) {
	s := begin(t, pve.Config{TaskTimes: map[string]time.Duration{"qmclone": time.Hour, "qmrestore": time.Hour}})
	var token struct{ Value string }
	require.NoError(t, json.Unmarshal(s.call(http.MethodPost, "/access/users/root@pam/token/agent", map[string]string{"privsep": "0"}), &token))
	s.edit("secrets.yaml", s.host.Token(), "root@pam!agent="+token.Value)
	s.deploy("web", vm("leaves")+vm("stays"))
	s.apply()
	node := "/nodes/" + s.host.Node()
	s.call(http.MethodPost, node+"/qemu", map[string]string{"vmid": "60000", "name": "hers", "scsi0": "local-lvm:1"})
	s.call(http.MethodPost, node+"/vzdump", map[string]string{"vmid": "60000", "storage": "local"})
	require.Eventually(t, func() bool { return guestIn(s.host.Snapshot(), 60000).Lock == "" && backupOf(s) != "" }, 5*time.Minute, 5*time.Millisecond)
	s.call(http.MethodPost, node+"/qemu/60000/clone", map[string]string{"newid": "69997", "full": "1"})
	require.Eventually(t, func() bool { return guestIn(s.host.Snapshot(), 69997) != nil }, 5*time.Minute, 5*time.Millisecond, "its worker has begun")
	s.strangers = nil // one of them is under way

	s.deploy("web", vm("stays", "onboot = true")+vm("comes"))
	p := s.apply()
	require.ElementsMatch(t, []string{"delete vm.leaves", "update vm.stays: onboot", "create vm.comes"}, steps(p))
	require.Contains(t, why(p, 69997), "is being created by task qmclone of root@pam!sim")
	p = s.plan()
	require.True(t, p.InSync())
	require.Empty(t, p.Unknown)

	s.call(http.MethodPost, node+"/qemu", map[string]string{"vmid": "10050", "archive": backupOf(s), "storage": "local-lvm"})
	require.Eventually(t, func() bool { g := guestIn(s.host.Snapshot(), 10050); return g != nil && g.Lock == "create" }, 5*time.Minute, 5*time.Millisecond)
	require.Equal(t, engine.Done, s.try().Outcome, "nothing of ours is still to be created")
	s.deploy("web", vm("stays", "onboot = true", "memory = 4096")+vm("comes")+vm("more"))
	r := s.try()
	require.Equal(t, engine.Partly, r.Outcome, describe(r))
	require.ErrorContains(t, r.Err, "vm 10050: is being created by task qmrestore of root@pam!sim (holds back vm.more)")
	require.Equal(t, []string{"update vm.stays: memory"}, steps(r.Plan))
}

func backupOf(s *story) string {
	for _, v := range s.host.Snapshot().Volumes["local"] {
		if v.Content == "backup" {
			return v.ID
		}
	}
	return ""
}
