package ssh_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	driver "github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine/guest"
)

// programs makes a folder of shell scripts for a server whose user is not root.
func programs(t *testing.T, s *server, cfg *driver.Config, sudo string) {
	t.Helper()
	dir := t.TempDir()
	cfg.User = "web"
	for name, text := range map[string]string{"id": "echo 1000", "sudo": sudo} {
		if text != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
		}
	}
	s.env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
	if sudo == "" { // not the one of this machine
		for _, name := range []string{"true", "sh"} {
			require.NoError(t, os.Symlink("/bin/"+name, filepath.Join(dir, name)))
		}
		s.env = []string{"PATH=" + dir}
	}
}

const goodSudo = `[ "$1" = -n ] && shift; [ "$1" = -- ] && shift; exec /usr/bin/env AS=root "$@"`

func TestMachineBySudo(t *testing.T) {
	drivertest.Machine(t, func(t *testing.T) guest.Machine {
		t.Helper()
		s, cfg := newServer(t)
		programs(t, s, &cfg, goodSudo)
		m := open(t, cfg)
		out, err := m.Run(t.Context(), guest.Command{Args: []string{"/bin/sh", "-c", "echo $AS"}})
		require.NoError(t, err)
		require.Equal(t, "root\n", out.Out)
		return m
	})
}

func TestUserWhoCannotBecomeRoot(t *testing.T) {
	for _, v := range []struct{ sudo, want string }{
		{"", "ssh to web@192.0.2.7:22: this user is not root, and sudo is not installed: install it, or log in as root"},
		{"echo 'sudo: a password is required' >&2; exit 1", "ssh to web@192.0.2.7:22: this user cannot become root: sudo: a password is required; add `USER ALL=(ALL) NOPASSWD: ALL` to a file in /etc/sudoers.d, or log in as root"},
		{"exit 1", "ssh to web@192.0.2.7:22: this user cannot become root: sudo fails with exit code 1; add `USER ALL=(ALL) NOPASSWD: ALL` to a file in /etc/sudoers.d, or log in as root"},
	} {
		s, cfg := newServer(t)
		programs(t, s, &cfg, v.sudo)
		_, err := open(t, cfg).Run(t.Context(), yes)
		require.EqualError(t, err, v.want)
		drivertest.Hopeless(t, err, false)
	}
}

// A user whose id is that of root needs no sudo.
func TestRootByAnotherName(t *testing.T) {
	s, cfg := newServer(t)
	programs(t, s, &cfg, "exit 1")
	dir, _, _ := strings.Cut(strings.TrimPrefix(s.env[0], "PATH="), ":")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "id"), []byte("#!/bin/sh\necho 0\n"), 0o755))
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.NoError(t, err)
}

// A connection that is lost while the user becomes root costs no outcome: the command for
// which it was made has not begun.
func TestConnectionIsLostBeforeSudo(t *testing.T) {
	s, cfg := newServer(t)
	cfg.User = "web"
	s.run = func(_ string, ch ssh.Channel, signals <-chan string) any {
		begun(ch)
		s.dropAll()
		for range signals { // until the connection ends
		}
		return nil
	}
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "ssh to web@192.0.2.7:22: checking whether this user is root: ")
	require.NotErrorIs(t, err, guest.ErrOutcomeLost)
	drivertest.Hopeless(t, err, false)
}
