package debian_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nothing of a simulated machine is on the machine that it runs on: no file, no process, no program of
// that. What the machine does not have is not found.
func TestNothingOfTheHost(t *testing.T) {
	m := begin(t)
	dir := t.TempDir()
	marker := filepath.Join(dir, "made")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "program"), []byte("#!/bin/sh\ntouch "+marker+"\n"), 0o755))
	t.Setenv("PATH", dir)
	for _, line := range []string{dir + "/program", "program", "cat " + dir + "/program", "ls " + dir, "cd " + dir, ". " + dir + "/program", "go version", "git --version", "python3 -c 1", "[ -e " + dir + " ]", "echo x >" + marker + "/y", "cat ~nobody2/x"} {
		out, err := m.Exec([]string{"sh", "-c", line}, nil)
		require.NoError(t, err)
		require.NotZero(t, out.Code, line)
	}
	m.sh(t, "mkdir -p "+dir+" && touch "+marker+" /work-of-the-machine")
	_, err := os.Stat(marker)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = os.Stat("/work-of-the-machine")
	require.ErrorIs(t, err, os.ErrNotExist)

	out, err := m.Exec([]string{"sh", "-c", "no-such-program --flag"}, nil)
	require.NoError(t, err)
	require.Equal(t, 127, out.Code)
	require.Contains(t, out.Err, "no-such-program: not found")
}

// The packages of the simulated machine use nothing of the host but its clock and its random numbers.
func TestNoPackageCallsTheHost(t *testing.T) {
	for _, dir := range []string{"machine", "machine/userland", "debian", "."} {
		names, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, names, dir)
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			for _, call := range []string{"os/exec", "os/user", "os.Open", "os.Read", "os.Write", "os.Stat", "os.Lstat", "os.Create", "os.Mkdir", "os.Remove", "os.Getenv", "os.Environ", "os.Pipe", "os.Getpid", "syscall.Kill", "net.Listen(", "net.ListenConfig", "net.Dial(", "mvdan.cc/sh/v3/interp"} {
				require.NotContains(t, string(text), call, name)
			}
		}
	}
}
