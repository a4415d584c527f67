package machine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Who may do what follows from owner, group and mode (path_resolution(7)).
func TestRights(t *testing.T) {
	fs := NewFS(time.Now)
	require.NoError(t, fs.MkdirAll("/d/closed", 0o755))
	require.NoError(t, fs.WriteFile("/d/f", "text", 0o640, 1, 50))
	require.NoError(t, fs.WriteFile("/d/closed/f", "text", 0o644, 0, 0))
	require.NoError(t, fs.Chmod(Cred{}, "/d/closed", 0o700))
	require.NoError(t, fs.MkdirAll("/tmp", 0o755))
	require.NoError(t, fs.Chmod(Cred{}, "/tmp", 0o1777))
	require.NoError(t, fs.WriteFile("/tmp/f", "", 0o666, 1, 1))
	owner, group, other := Cred{UID: 1, GID: 1}, Cred{UID: 2, GID: 2, Groups: []int{50}}, Cred{UID: 3, GID: 3}
	open := func(name string, flags int) func(Cred) error {
		return func(c Cred) error { _, err := fs.Open(c, name, flags, 0o644); return err }
	}
	for name, one := range map[string]struct {
		do                        func(Cred) error
		root, owner, group, other error
	}{
		"read":            {do: open("/d/f", os.O_RDONLY), other: syscall.EACCES},
		"write":           {do: open("/d/f", os.O_WRONLY), group: syscall.EACCES, other: syscall.EACCES},
		"make":            {do: open("/d/new", os.O_WRONLY|os.O_CREATE), owner: syscall.EACCES, group: syscall.EACCES, other: syscall.EACCES},
		"search":          {do: open("/d/closed/f", os.O_RDONLY), owner: syscall.EACCES, group: syscall.EACCES, other: syscall.EACCES},
		"list":            {do: func(c Cred) error { _, err := fs.ReadDir(c, "/d/closed"); return err }, owner: syscall.EACCES, group: syscall.EACCES, other: syscall.EACCES},
		"change the mode": {do: func(c Cred) error { return fs.Chmod(c, "/d/f", 0o640) }, group: syscall.EPERM, other: syscall.EPERM},
		"give away":       {do: func(c Cred) error { return fs.Chown(c, "/d/f", 1, 50, true) }, owner: syscall.EPERM, group: syscall.EPERM, other: syscall.EPERM},
		"rename when sticky": {do: func(c Cred) error {
			return errors.Join(fs.Rename(c, "/tmp/f", "/tmp/g"), fs.Rename(Cred{}, "/tmp/g", "/tmp/f"))
		}, group: syscall.EPERM, other: syscall.EPERM},
	} {
		for i, want := range []error{one.root, one.owner, one.group, one.other} {
			require.ErrorIs(t, one.do([]Cred{{}, owner, group, other}[i]), want, "%s, as %d", name, i)
		}
	}
}

// A clone and what it was made from do not see each other's changes.
func TestClone(t *testing.T) {
	fs := NewFS(time.Now)
	require.NoError(t, fs.WriteFile("/a/f", "one", 0o644, 0, 0))
	other := fs.Clone(time.Now)
	h, err := fs.Open(Cred{}, "/a/f", os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = io.Copy(h, strings.NewReader(" more"))
	require.NoError(t, err)
	require.NoError(t, other.WriteFile("/a/g", "theirs", 0o644, 0, 0))
	for text, where := range map[string]*FS{"one more": fs, "one": other} {
		got, err := where.ReadFile("/a/f")
		require.NoError(t, err)
		require.Equal(t, text, got)
	}
	_, err = fs.ReadFile("/a/g")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Links lead on, and not forever.
func TestLinks(t *testing.T) {
	fs := NewFS(time.Now)
	require.NoError(t, fs.WriteFile("/a/b/f", "text", 0o644, 0, 0))
	for i, target := range []string{"a/b", "/l0/../b/f", "l2"} {
		require.NoError(t, fs.Symlink(Cred{}, target, fmt.Sprint("/l", i)))
	}
	for name, want := range map[string]error{"/l0/f": nil, "/l1": nil, "/l2": syscall.ELOOP, "/l1/": syscall.ENOTDIR, "/l0/none": syscall.ENOENT, "/l1/x": syscall.ENOTDIR} {
		_, err := fs.Stat(Cred{}, name)
		require.ErrorIs(t, err, want, name)
	}
	name, err := fs.Real(Cred{}, "/l1")
	require.NoError(t, err)
	require.Equal(t, "/a/b/f", name)
}
