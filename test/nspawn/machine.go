package nspawn

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long anything may take here before it counts as never: much more
// than it does on a busy machine.
const patience = 3 * time.Minute

// Machine is a Debian with systemd as its first process, in namespaces of its own: its
// network is loopback only, and what it writes is gone with it.
type Machine struct {
	t       testing.TB
	name    string
	nspawn  *exec.Cmd
	ended   chan struct{} // closed when nspawn has ended
	leader  int           // its first process, as this machine counts
	space   string        // the pid namespace of its processes
	console bytes.Buffer  // to be read after the end
	cgroups []string
	base    string // the folder that it is booted from
	binds   []Bind
	kept    string // folder of what it writes; "" if that is gone with it
}

// machines counts those of this run, for their names.
var machines atomic.Int64

// Bind shows a folder of this machine in a guest.
type Bind struct {
	From, To string
	Write    bool
}

// Boot starts a guest and waits until its systemd says that it is up. It is powered
// off when the test is over.
func (r Rootfs) Boot(t testing.TB, binds ...Bind) *Machine {
	t.Helper()
	Need(t)
	m := &Machine{t: t, base: r.Folder(t), binds: binds}
	m.boot()
	return m
}

// BootKept is Boot for a guest that PowerCycle starts again with what it has written.
func (r Rootfs) BootKept(t testing.TB, binds ...Bind) *Machine {
	t.Helper()
	Need(t)
	m := &Machine{t: t, base: r.Folder(t), binds: binds, kept: t.TempDir()}
	for _, name := range []string{"up", "work", "root"} {
		require.NoError(t, os.Mkdir(filepath.Join(m.kept, name), 0o755)) //nolint:gosec // it becomes /, which users enter
	}
	m.boot()
	return m
}

// PowerCycle kills everything in the guest at once, and boots it again. What its programs had written
// is there; unlike a real loss of power, it also takes what they had not yet synced.
func (m *Machine) PowerCycle() {
	m.t.Helper()
	require.NotEmpty(m.t, m.kept, "a guest of Boot keeps nothing")
	m.Kill()
	m.boot()
}

// AwaitRestart waits until the guest restarts itself, and boots it again with what it has written.
func (m *Machine) AwaitRestart() {
	m.t.Helper()
	require.NotEmpty(m.t, m.kept, "a guest of Boot keeps nothing")
	Await(m.t, "the guest restarts", func() bool {
		select {
		case <-m.ended:
			return true
		default:
			return false
		}
	})
	const restarts = 133 // of nspawn with --keep-unit, which leaves the start to who called it
	require.Equal(m.t, restarts, m.nspawn.ProcessState.ExitCode(), "it was not a restart:\n%s", m.console.String())
	m.boot()
}

// Kill ends everything in the guest at once, where its end is of no interest: it takes less than powering it off.
func (m *Machine) Kill() {
	_ = m.nspawn.Process.Kill() // it may have ended
	<-m.ended
}

func (m *Machine) boot() {
	m.t.Helper()
	m.name, m.ended = fmt.Sprintf("hs-%d-%d", os.Getpid(), machines.Add(1)), make(chan struct{})
	groups := ownCgroups(m.t, m.name)
	m.cgroups = groups
	m.t.Cleanup(func() { require.NoError(m.t, removeCgroups(groups)) })
	heard := listenNotify(m.t)
	m.start(heard.LocalAddr().String())
	ready := m.hear(heard)
	m.t.Cleanup(m.end)
	m.awaitReady(ready)
}

// start starts systemd-nspawn, as a child in the cgroups of the guest.
func (m *Machine) start(notify string) {
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	// nspawn keeps what it knows of its guests in /run. In cgroup.procs, 0 is who writes.
	const join = `mount -t proc proc /proc && mount -t tmpfs tmpfs /run || exit; if [ -n "$KEPT" ]; then mount -t overlay overlay -o "lowerdir=$BASE,upperdir=$KEPT/up,workdir=$KEPT/work" "$KEPT/root" || exit; fi; while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit; shift; done; shift; exec "$@"`
	args := append([]string{"-c", join, "sh"}, m.cgroups...)
	from := []string{"--directory=" + m.base, "--volatile=overlay"}
	if m.kept != "" {
		from = []string{"--directory=" + filepath.Join(m.kept, "root")}
	}
	args = append(args, "--", "systemd-nspawn", "--quiet")
	args = append(args, from...)
	args = append(args, "--machine="+m.name,
		"--register=no", "--keep-unit", "--boot", "--notify-ready=yes", "--uuid="+hex.EncodeToString(id),
		"--private-network", "--resolv-conf=off", "--timezone=off", "--console=pipe")
	for _, b := range m.binds {
		how := "--bind-ro="
		if b.Write {
			how = "--bind="
		}
		args = append(args, how+b.From+":"+b.To)
	}
	m.nspawn = exec.Command("sh", args...) //nolint:noctx // it is ended in good order, by end
	m.nspawn.Env = append(os.Environ(), "NOTIFY_SOCKET="+notify, "BASE="+m.base, "KEPT="+m.kept, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1")
	m.nspawn.Stdout, m.nspawn.Stderr = &m.console, &m.console
	// In namespaces of its own, nothing outlives it: neither processes, whose init it is,
	// nor mounts. So killing it is enough, and it is killed when this process is.
	m.nspawn.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS, Setpgid: true, Pdeathsig: syscall.SIGKILL,
	}
	require.NoError(m.t, m.nspawn.Start())
	go func() {
		defer close(m.ended)
		_ = m.nspawn.Wait() // how it ended is in its state
	}()
}

// listenNotify opens the socket on which nspawn tells of its guest, see sd_notify(3).
func listenNotify(t testing.TB) *net.UnixConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "hs-") // a short name: sockets have no long ones
	require.NoError(t, err)
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return c
}

// hear reads the messages of nspawn until the test is over: nspawn would stop at a socket without a reader. The channel is closed
// when the guest is up.
func (m *Machine) hear(heard *net.UnixConn) <-chan struct{} {
	ready, drained := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(drained)
		up := false
		for buf := make([]byte, 4096); ; {
			n, err := heard.Read(buf)
			if err != nil {
				return // it was closed
			}
			if !up && slices.Contains(strings.Split(string(buf[:n]), "\n"), "READY=1") {
				up = true
				close(ready)
			}
		}
	}()
	m.t.Cleanup(func() {
		require.NoError(m.t, heard.Close())
		<-drained
	})
	return ready
}

// awaitReady waits until the guest is up, and finds its processes.
func (m *Machine) awaitReady(ready <-chan struct{}) {
	m.t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-ready:
	case <-m.ended:
		m.t.Fatalf("the guest ended before it was up:\n%s", &m.console)
	case <-late.C:
		m.t.Fatal("the guest does not come up")
	}
	m.leader = childOf(m.t, m.nspawn.Process.Pid)
	var err error
	m.space, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", m.leader))
	require.NoError(m.t, err)
}

// childOf finds the one child of nspawn that is the first process of its namespace. What
// nspawn itself tells of it is a number of another namespace.
func childOf(t testing.TB, parent int) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/status")
	require.NoError(t, err)
	for _, name := range all {
		text, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(text, fmt.Appendf(nil, "\nPPid:\t%d\n", parent)) {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if as := strings.Fields(line); as[0] == "NSpid:" && as[len(as)-1] == "1" {
				pid, err := strconv.Atoi(as[1])
				require.NoError(t, err)
				return pid
			}
		}
	}
	t.Fatalf("process %d has no guest", parent)
	return 0
}

// end powers the guest off, and sees to it that it is gone.
func (m *Machine) end() {
	_ = m.nspawn.Process.Signal(syscall.SIGTERM) // nspawn tells the guest to power off
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-m.ended:
	case <-late.C:
		m.t.Errorf("%s did not power off: it is killed", m.name)
		m.Kill()
	}
	m.t.Logf("console of %s:\n%s", m.name, &m.console)
	m.console.Reset()
}

// processesIn finds the processes of a pid namespace.
func processesIn(t testing.TB, space string) []int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	require.NoError(t, err)
	var in []int
	for _, name := range all {
		if of, err := os.Readlink(name); err != nil || of != space {
			continue // another one, or gone meanwhile
		}
		pid, err := strconv.Atoi(strings.Split(name, "/")[2])
		require.NoError(t, err)
		in = append(in, pid)
	}
	return in
}

// Command is a command in the guest, as root.
func (m *Machine) Command(args ...string) *exec.Cmd {
	enter := []string{"--target=" + strconv.Itoa(m.leader), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"}
	cmd := exec.Command("nsenter", append(enter, args...)...) //nolint:noctx // it ends with the guest
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LC_ALL=C.UTF-8", "SYSTEMD_COLORS=0", "HOME=/root"}
	return cmd
}

// Network is the network namespace of the guest: nsenter --net=FILE runs a program of this machine in it.
func (m *Machine) Network() string { return fmt.Sprintf("/proc/%d/ns/net", m.leader) }

// Try runs a command in the guest, and gives what it said and its exit code.
func (m *Machine) Try(args ...string) (said string, code int) {
	m.t.Helper()
	text, err := m.Command(args...).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return string(text), exit.ExitCode()
	case err != nil:
		require.NoError(m.t, err, "%v in the guest", args)
	}
	return string(text), 0
}

// Run runs a command in the guest, and requires that it goes well.
func (m *Machine) Run(args ...string) string {
	m.t.Helper()
	said, code := m.Try(args...)
	require.Zero(m.t, code, "%v in the guest:\n%s", args, said)
	return strings.TrimSuffix(said, "\n")
}

// Write makes a file in the guest, with the mode and root as its owner.
func (m *Machine) Write(name string, perm os.FileMode, text string) {
	m.t.Helper()
	name = fmt.Sprintf("/proc/%d/root%s", m.leader, name)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(m.t, os.WriteFile(name, []byte(text), perm))
	require.NoError(m.t, os.Chmod(name, perm))
}

// Until waits for something to be true of the guest.
func (m *Machine) Until(what string, holds func() bool) {
	m.t.Helper()
	Await(m.t, what, func() bool {
		select {
		case <-m.ended:
			m.t.Fatalf("the guest ended; waited for: %s", what)
		default:
		}
		return holds()
	})
}

// Await waits for something to be true: it looks again and again, but not for ever.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	late := time.NewTimer(patience)
	defer late.Stop()
	for !holds() {
		select {
		case <-again.C:
		case <-late.C:
			t.Fatalf("it never came to be: %s", what)
		}
	}
}
