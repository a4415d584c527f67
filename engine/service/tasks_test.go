package service

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
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

// slow is a machine whose commands begin, and end when they are let.
type slow struct {
	guest.Machine
	begun, end chan struct{}
}

func (m slow) Run(context.Context, guest.Command) (guest.Output, error) {
	m.begun <- struct{}{}
	<-m.end
	return guest.Output{}, nil
}

// Another program that is installed does not end the agent while a command runs, which would end with it.
func TestACommandKeepsTheProgram(t *testing.T) {
	m := slow{begun: make(chan struct{}), end: make(chan struct{})}
	s := &Service{o: Options{Config: &Config{}, Machine: m, Log: slog.New(slog.DiscardHandler)}}
	s.o.Config.Identity, s.o.Config.DataDir = "father", t.TempDir()
	c, err := newCarrier(s, nil, nil)
	require.NoError(t, err)
	replaced := c.whenIdle(func() bool { return true })
	require.True(t, replaced())
	result := make(chan wire.TaskResult)
	go func() {
		result <- c.do(t.Context(), wire.Task{
			ID: wire.NewTaskID(), Kind: wire.TaskRun, For: "father", Node: "father", Command: []string{"true"}, Timeout: 60, Expires: time.Now().Add(time.Hour), By: "ann",
		})
	}()
	<-m.begun
	require.False(t, replaced())
	close(m.end)
	require.Equal(t, wire.TaskDone, (<-result).Outcome)
	require.True(t, replaced())
}
