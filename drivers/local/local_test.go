package local

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	"github.com/homestak/homestak-gitops/engine/guest"
)

func TestMachine(t *testing.T) {
	drivertest.Machine(t, func(*testing.T) guest.Machine { return New() })
}

func TestAddress(t *testing.T) {
	at, err := New().Address(t.Context())
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", at.IP.String())
	require.True(t, at.Declared)
}

// The environment of the program has sockets and credentials of the service manager.
func TestEnvironmentIsNotInherited(t *testing.T) {
	t.Setenv("CREDENTIALS_DIRECTORY", "/run/credentials/x")
	t.Setenv("SUDO_USER", "")
	out, err := New().Run(t.Context(), guest.Command{Args: []string{"env"}})
	require.NoError(t, err)
	require.Equal(t, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nHOME=/root\n", out.Out)
}

// fifo makes a pipe that a test waits at: reading it ends when the last process that has it
// open to write has ended.
func fifo(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(name, 0o600))
	return name
}

// A context that ends ends all of a command: what it has started, and what ignores SIGTERM.
func TestCancelEndsTheProcessGroup(t *testing.T) {
	for name, script := range map[string]string{
		"children":        `sleep 600 & echo begun >&3; wait`,
		"ignores SIGTERM": `trap '' TERM; echo begun >&3; while :; do sleep 600; done`,
		"left behind":     `(trap '' TERM; exec sleep 600) & echo begun >&3; wait`,
	} {
		t.Run(name, func(t *testing.T) {
			pipe := fifo(t)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := NewWithGrace(1).Run(ctx, guest.Command{Args: []string{"/bin/sh", "-c", `exec 3>"$1"; ` + script, "sh", pipe}})
				done <- err
			}()
			f, err := os.Open(pipe)
			require.NoError(t, err)
			defer func() { require.NoError(t, f.Close()) }()
			buf := make([]byte, 100)
			n, err := f.Read(buf)
			require.NoError(t, err)
			require.Equal(t, "begun\n", string(buf[:n]))
			cancel()
			require.ErrorIs(t, <-done, guest.ErrOutcomeLost)
			n, _ = f.Read(buf)
			require.Zero(t, n, "no process has the pipe open any more")
		})
	}
}

// A service that a command has started keeps its outputs open: the command has ended all the
// same.
func TestOutputThatStaysOpen(t *testing.T) {
	out, err := NewWithGrace(time.Second).Run(t.Context(), guest.Command{Args: []string{"/bin/sh", "-c", `sleep 600 & echo $!; exit 3`}})
	require.NoError(t, err)
	require.Equal(t, 3, out.Code)
	_, err = New().Run(t.Context(), guest.Command{Args: []string{"kill", strings.TrimSpace(out.Out)}})
	require.NoError(t, err)
}
