package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
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
	require.NoError(t, handOver(ours))
	require.Zero(t, owner(state), "the folder is root's")

	require.NoError(t, os.Symlink(other, filepath.Join(ours, "link")))
	require.NoError(t, os.Link(shadow, filepath.Join(ours, "shadow")))
	require.NoError(t, os.Chown(ours, 1234, 1234))
	require.NoError(t, handOver(ours))
	require.Equal(t, 1234, owner(state))
	require.Equal(t, 1234, owner(filepath.Dir(state)))
	require.Zero(t, owner(other))
	require.Zero(t, owner(passwd))
	require.Zero(t, owner(shadow), "it has a second name, elsewhere")
	require.Error(t, handOver(filepath.Join(ours, "nowhere")))
}

// Where something in the folder is another user's, the agent does not begin without it:
// a suspension may stand there. It says what to do.
func TestFilesOfAnotherUser(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	denied, full := &os.PathError{Op: "open", Path: "state.json", Err: syscall.EACCES}, &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	require.ErrorContains(t, folderError(dir, denied), "permission denied\nsomething in it belongs to another user, as after a run of root; let root say: chown -R --reference="+dir)
	require.ErrorContains(t, folderError(dir, full), "make room")
	require.Contains(t, folderHint("/nowhere", denied), "name a folder that you may write")
	require.NoError(t, os.Chmod(dir, 0o500))
	require.Contains(t, folderHint(dir, denied), "name a folder that you may write")
	other := os.ErrExist
	require.Equal(t, other, folderError(dir, other))

	if os.Geteuid() == 0 {
		return // who may read everything
	}
	data := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(data, ledgerDir), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(data, ledgerDir, "state.json"), nil, 0))
	for _, args := range [][]string{{"agent", "--once", "--identity", "father", "--repository", "/nowhere.git"}, {"status"}} {
		_, _, stderr := runIn(t, map[string]string{"HOMESTAK_DATA_DIR": data}, args...)
		require.Contains(t, stderr, "let root say: chown -R", args)
	}
}

// A full disk keeps nobody from being the one writer.
func TestALockNeedsNoRoom(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "agent.lock")
	require.NoError(t, os.Symlink("/dev/full", name))
	release, err := lockFile(name, holder{Verb: "agent"})
	require.NoError(t, err)
	release()
}

// Two agents with two data folders do not know of each other's locks.
func TestAnotherAgentOfTheHostIsToldOf(t *testing.T) {
	t.Parallel()
	socket, _ := served(t, newFakeAgent(), "")
	state := t.TempDir()
	own := filepath.Join(state, "homestak-gitops")
	if os.Geteuid() == 0 {
		t.Skip("root's own data folder is that of the machine")
	}
	release, err := lockFile(filepath.Join(own, agentLock), holder{Verb: "agent", Socket: socket})
	require.NoError(t, err)
	defer release()
	for identity, want := range map[string]bool{"father": true, "mother": false} {
		env := map[string]string{"XDG_STATE_HOME": state, "HOMESTAK_DATA_DIR": t.TempDir()}
		_, _, stderr := runIn(t, env, "agent", "--once", "--identity", identity, "--repository", "/nowhere.git")
		require.Equal(t, want, strings.Contains(stderr, "another agent for a host father runs here"), stderr)
	}
}

// An agent of root in such a folder does so at its end.
func TestRootsAgentHandsOver(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	data := t.TempDir()
	require.NoError(t, os.Chown(data, 1234, 1234))
	code, _, stderr := runIn(t, map[string]string{"HOMESTAK_DATA_DIR": data}, "agent", "--once", "--identity", "father", "--repository", "/nowhere.git")
	require.Equal(t, exitError, code, stderr)
	info, err := os.Stat(filepath.Join(data, "ledger", "state.json"))
	if os.IsNotExist(err) {
		info, err = os.Stat(filepath.Join(data, "ledger"))
	}
	require.NoError(t, err)
	require.Equal(t, uint32(1234), info.Sys().(*syscall.Stat_t).Uid)
}
