package control_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/model"
)

// What root's own agent makes in the folder of an agent that is not root, that agent
// can read; and nothing outside of the folder changes hands.
func TestRootHandsOver(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	ours, other := t.TempDir(), t.TempDir()
	write := func(name string) string {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, nil, 0o600))
		return name
	}
	owner := func(name string) int {
		info, err := os.Lstat(name)
		require.NoError(t, err)
		return int(info.Sys().(*syscall.Stat_t).Uid)
	}
	state, shadow, passwd := write(filepath.Join(ours, "ledger", "state.json")), write(filepath.Join(other, "shadow")), write(filepath.Join(other, "passwd"))
	require.NoError(t, control.HandOver(ours))
	require.Zero(t, owner(state), "the folder is root's")

	require.NoError(t, os.Symlink(other, filepath.Join(ours, "link")))
	require.NoError(t, os.Link(shadow, filepath.Join(ours, "shadow")))
	require.NoError(t, os.Chown(ours, 1234, 1234))
	require.NoError(t, control.HandOver(ours))
	require.Equal(t, 1234, owner(state))
	require.Equal(t, 1234, owner(filepath.Dir(state)))
	require.Zero(t, owner(other))
	require.Zero(t, owner(passwd))
	require.Zero(t, owner(shadow), "it has a second name, elsewhere")
	require.Error(t, control.HandOver(filepath.Join(ours, "nowhere")))
}

// An error about the folder says what to do.
func TestFolderErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	denied, full := &os.PathError{Op: "open", Path: "state.json", Err: syscall.EACCES}, &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	require.ErrorContains(t, control.FolderError(dir, denied), "permission denied\nsomething in it belongs to another user, as after a run of root; let root say: chown -R --reference="+dir)
	require.ErrorContains(t, control.FolderError(dir, full), "make room")
	require.Contains(t, control.FolderHint("/nowhere", denied), "name a folder that you may write")
	require.NoError(t, os.Chmod(dir, 0o500))
	require.Contains(t, control.FolderHint(dir, denied), "name a folder that you may write")
	other := os.ErrExist
	require.Equal(t, other, control.FolderError(dir, other))
}

// A full disk keeps nobody from being the one writer.
func TestALockNeedsNoRoom(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "agent.lock")
	require.NoError(t, os.Symlink("/dev/full", name))
	release, err := control.LockFile(name, control.Holder{Verb: "agent"})
	require.NoError(t, err)
	release()
}

// What root makes in the folder of an agent that is not root belongs to the agent.
func TestLocksBelongToTheDataFolder(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chown(dir, 1234, 1234))
	release, err := control.LockHost(dir, &model.Host{Name: "father"}, "apply")
	require.NoError(t, err)
	defer release()
	files, err := filepath.Glob(filepath.Join(dir, "locks", "*"))
	require.NoError(t, err)
	for _, name := range append(files, filepath.Join(dir, "locks")) {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, uint32(1234), info.Sys().(*syscall.Stat_t).Uid, name)
	}
	_, err = control.LockHost(dir, &model.Host{Name: "father"}, "agent")
	require.ErrorContains(t, err, fmt.Sprintf("host father is being changed by %s: pid %d, apply, since ", control.Whoami(), os.Getpid()))
}
