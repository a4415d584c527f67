package service

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/ledger"
	specdaemon "github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/tasks"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A task that a child took before this agent started again is the child's, though no commit says yet who is reached through
// whom: it runs there, and its result is waited for.
func TestATaskStaysWithItsChildOverARestart(t *testing.T) {
	dir := t.TempDir()
	queue, err := tasks.Open(tasks.Options{Dir: dir})
	require.NoError(t, err)
	once, err := tasks.OpenOnce(filepath.Join(t.TempDir(), "once"))
	require.NoError(t, err)
	task := wire.Task{
		ID: wire.NewTaskID(), Kind: wire.TaskRun, For: "inner", Node: "leaf", Command: []string{"true"}, Timeout: 60, Expires: time.Now().Add(time.Hour), By: "ann@father",
	}
	require.NoError(t, queue.Put(task))
	_, err = queue.Answer("inner", wire.TaskResult{ID: task.ID, Outcome: wire.TaskDone, Output: "from below"})
	require.NoError(t, err)
	s := &Service{o: Options{Config: &Config{}}, server: specdaemon.NewServer(specdaemon.ServerOptions{})}
	s.o.Config.Identity = "father"
	receipts, err := ledger.Open(t.TempDir())
	require.NoError(t, err)
	c := &carrier{s: s, children: s.server, queue: queue, once: once, ledger: receipts, recorded: map[string]wire.TaskOutcome{}}
	task.For = "father"
	require.Equal(t, "from below", c.do(t.Context(), task).Output)
	task.ID = wire.NewTaskID()
	require.Equal(t, wire.TaskFailed, c.do(t.Context(), task).Outcome, "no child has it")
}
