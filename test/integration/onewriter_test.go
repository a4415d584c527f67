package integration_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

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
	require.Len(t, s.ours(), 3)
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
	made := s.ours()
	require.NotEmpty(t, made)
	require.Less(t, len(made), vms)
	for name, g := range made {
		require.True(t, g.Running, "%s was begun and not finished", name)
	}

	s.says(0, "apply", "--yes")
	require.Len(t, s.ours(), vms)
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
	p.Env = append(os.Environ(), "HOMESTAK_LISTEN=none", "HOMESTAK_DATA_DIR="+filepath.Join(filepath.Dir(s.dir), "data"), "HOMESTAK_PVE_ROOT="+s.root)
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
