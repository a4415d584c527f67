package proxmox_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// system is this machine as the system of every simulated VM. What belongs below /run is in a
// folder of the test.
type system struct {
	ctx     context.Context // ends what still runs
	dir     string
	running *sync.WaitGroup
}

func (s system) mapped(text string) string {
	return strings.ReplaceAll(text, "/run/homestak-gitops-", s.dir+"/")
}

func (s system) start(_ int, command []string, input string) (func() pve.Execution, bool) {
	if _, err := exec.LookPath(command[0]); err != nil {
		return nil, false
	}
	for i := range command {
		command[i] = s.mapped(command[i])
	}
	s.running.Add(1)
	return func() pve.Execution {
		defer s.running.Done()
		var out, err bytes.Buffer
		cmd := exec.CommandContext(s.ctx, command[0], command[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &err
		_ = cmd.Run()
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if status.Signaled() {
			return pve.Execution{Out: out.String(), Err: err.String(), Signal: int(status.Signal())}
		}
		return pve.Execution{Out: out.String(), Err: err.String(), Code: status.ExitStatus()}
	}, true
}

func (s system) write(_ int, file, content string) error {
	return os.WriteFile(s.mapped(file), []byte(content), 0o600)
}

// The guest agent of a simulated VM passes the suite of all ways into a machine.
func TestMachine(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s := system{ctx, t.TempDir(), &sync.WaitGroup{}}
	w := proxmoxtest.New(t, pve.Config{Speed: 10000, TaskTime: time.Second, Start: s.start, Write: s.write})
	w.Node("web-1", nil)
	w.Apply()
	open := func() guest.Machine {
		return w.Driver.Machine(model.Address{Kind: "vm", Name: "web-1"}, model.Guest{VMID: 10000, Node: "father"}, nil)
	}
	require.Eventually(t, func() bool { return open().Ping(t.Context()) == nil }, 5*time.Minute, time.Millisecond, "it boots")
	drivertest.Machine(t, func(*testing.T) guest.Machine { return open() })
	cancel()
	s.running.Wait()
	left, err := filepath.Glob(s.dir + "/*")
	require.NoError(t, err)
	require.Empty(t, left)
}
