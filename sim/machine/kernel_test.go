package machine

import (
	"bytes"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// begin is a machine with programs at /bin.
func begin(t *testing.T, programs map[string]Program) *Kernel {
	t.Helper()
	fs := NewFS(time.Now)
	for name := range programs {
		require.NoError(t, fs.WriteFile("/bin/"+name, Executable(name), 0o755, 0, 0))
	}
	return NewKernel(fs, Clock{}, programs)
}

// Who waits for something is ended by a signal, and by the end of the machine; who ignores the signal is not.
func TestSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := begin(t, map[string]Program{
			"sleep": func(p *Process) int { p.Sleep(time.Hour); return 3 },
			"deaf":  func(p *Process) int { p.Ignore(syscall.SIGTERM, true); p.Sleep(time.Hour); return 4 },
		})
		start := func(name string) *Process {
			p, err := k.Start(Start{Args: []string{name}})
			require.NoError(t, err)
			synctest.Wait()
			return p
		}
		slept, killed, deaf := start("sleep"), start("sleep"), start("deaf")
		killed.Signal(syscall.SIGTERM)
		deaf.Signal(syscall.SIGTERM)
		require.Equal(t, 128+int(syscall.SIGTERM), killed.Wait())
		require.Equal(t, 4, deaf.Wait())
		require.Equal(t, 3, slept.Wait())
		last := start("deaf")
		k.Halt()
		_, signal := last.Ended()
		require.Equal(t, syscall.SIGKILL, signal)
		_, err := k.Start(Start{Args: []string{"sleep"}})
		require.ErrorIs(t, err, errHalted)
	})
}

// A pipe has a buffer, keeps the order, and kills a writer without a reader.
func TestPipes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := strings.Repeat("0123456789", 20000) // more than a pipe holds
		over := make(chan struct{})
		k := begin(t, map[string]Program{
			"write": func(p *Process) int { _, _ = io.WriteString(p.Out(), long); return 0 },
			"none":  func(*Process) int { return 0 },
			"stay":  func(*Process) int { <-over; return 0 }, // a process forks while it runs
		})
		defer k.Halt()
		defer close(over)
		var out bytes.Buffer
		for _, reader := range []string{"read", "none"} {
			parent, err := k.Start(Start{Args: []string{"stay"}, Out: &out})
			require.NoError(t, err)
			r, w := k.Pipe()
			left, right := parent.Fork(), parent.Fork()
			left.SetFD(1, w)
			right.SetFD(0, r)
			if reader == "read" {
				right.Go(func(p *Process) int { _, _ = io.Copy(&out, p.In()); return 0 })
			} else {
				require.NoError(t, right.Launch([]string{"/bin/none"}))
			}
			require.NoError(t, left.Launch([]string{"/bin/write"}))
			right.Wait()
			code, signal := left.Ended()
			if reader == "read" {
				require.Zero(t, code)
				require.Equal(t, long, out.String())
			} else {
				require.Equal(t, syscall.SIGPIPE, signal)
			}
		}
	})
}

// A program is what a file names, or what the first line of a script says; else the error of execve(2).
func TestPrograms(t *testing.T) {
	var args []string
	k := begin(t, map[string]Program{"show": func(p *Process) int { args = p.Args; return 0 }})
	defer k.Halt()
	for name, text := range map[string]string{"/script": "#!/bin/show -x\n", "/twice": "#!/script\n", "/loop": "#!/loop\n", "/text": "echo\n", "/gone": Executable("gone")} {
		require.NoError(t, k.FS.WriteFile(name, text, 0o755, 0, 0))
	}
	require.NoError(t, k.FS.WriteFile("/plain", "", 0o644, 0, 0))
	for name, want := range map[string][]string{"show": {"show", "a"}, "/script": {"/bin/show", "-x", "/script", "a"}, "/twice": {"/bin/show", "-x", "/script", "/twice", "a"}} {
		p, err := k.Start(Start{Args: []string{name, "a"}, Env: []string{"PATH=/none:/bin"}})
		require.NoError(t, err)
		require.Zero(t, p.Wait())
		require.Equal(t, want, args)
	}
	for name, want := range map[string]error{"none": syscall.ENOENT, "/none": syscall.ENOENT, "/plain": syscall.EACCES, "/bin": syscall.EACCES, "/text": syscall.ENOEXEC, "/gone": syscall.ENOEXEC, "/loop": syscall.ELOOP} {
		_, err := k.Start(Start{Args: []string{name}})
		require.ErrorIs(t, err, want, name)
	}
}
