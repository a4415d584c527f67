package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
)

// Where something in the folder is another user's, the agent does not begin without it:
// a suspension may stand there. It says what to do.
func TestFilesOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	data := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(data, control.LedgerDir), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(data, control.LedgerDir, "state.json"), nil, 0))
	for _, args := range [][]string{{"agent", "--once", "--identity", "father", "--repository", "/nowhere.git"}, {"status"}} {
		_, _, stderr := runIn(t, map[string]string{"HOMESTAK_DATA_DIR": data}, args...)
		require.Contains(t, stderr, "let root say: chown -R", args)
	}
}

// Two agents with two data folders do not know of each other's locks.
func TestAnotherAgentOfTheHostIsToldOf(t *testing.T) {
	t.Parallel()
	socket, _ := controltest.Serve(t, controltest.New(), "")
	state := t.TempDir()
	own := filepath.Join(state, "homestak-gitops")
	if os.Geteuid() == 0 {
		t.Skip("root's own data folder is that of the machine")
	}
	release, err := control.LockFile(filepath.Join(own, control.AgentLock), control.Holder{Verb: "agent", Socket: socket})
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
	require.Equal(t, ui.ExitFailed, code, stderr)
	info, err := os.Stat(filepath.Join(data, "ledger", "state.json"))
	if os.IsNotExist(err) {
		info, err = os.Stat(filepath.Join(data, "ledger"))
	}
	require.NoError(t, err)
	require.Equal(t, uint32(1234), info.Sys().(*syscall.Stat_t).Uid)
}
