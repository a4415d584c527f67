package node

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A command that expired while it waited for its turn does not begin: the person who asked for it has that answer already.
func TestExpiredCommandDoesNotBegin(t *testing.T) {
	f := Folder{Path: t.TempDir()}
	r := Run{Folder: f.Path, Machine: broken{errors.New("it was asked")}, Note: func(string, ...any) {}}
	task := wire.Task{ID: wire.NewTaskID(), Kind: wire.TaskRun, For: "web-1", Node: "web-1", Command: []string{"reboot"}, Timeout: 60, Expires: time.Now().Add(time.Hour)}
	require.Equal(t, "it was asked", r.carryOut(t.Context(), f, task).Error)
	task.Expires = time.Now()
	got := r.carryOut(t.Context(), f, task)
	require.Equal(t, wire.TaskExpired, got.Outcome)
	require.Contains(t, got.Error, "it expired while")
}

// A parent that is older has no queue, which is not worth a line after each run. Other failures are.
func TestTasksOfAnOlderParent(t *testing.T) {
	for status, noted := range map[int]int{http.StatusNotFound: 0, http.StatusUnauthorized: 1} {
		s := serve(t)
		from, _ := s.node(t)
		s.status = status
		notes := 0
		r := Run{Folder: t.TempDir(), Note: func(string, ...any) { notes++ }}
		r.takeTasks(t.Context(), Source{File: from.File})
		require.Equal(t, noted, notes, status)
		require.Len(t, s.tokens, 1, "it is asked")
	}
}
