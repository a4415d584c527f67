package model

import (
	"context"
	"slices"
	"sync"
)

// Tasks collects the ids of what a host does on behalf of one step, such as the
// UPIDs of PVE, for the receipt. The lock is needed since a step may start its
// tasks from several goroutines.
type Tasks struct {
	mu  sync.Mutex
	ids []string
}

type tasksKey struct{}

// With returns a context in which RecordTask writes here.
func (t *Tasks) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, tasksKey{}, t)
}

// IDs returns what was noted so far, each once, in the order in which it came.
func (t *Tasks) IDs() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.ids)
}

// RecordTask notes for the receipt that the work of this context started or awaits a task, or created something
// permanent, such as the volume of a final backup. It does nothing without a recorder.
func RecordTask(ctx context.Context, id string) {
	t, ok := ctx.Value(tasksKey{}).(*Tasks)
	if !ok || id == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.ids, id) {
		t.ids = append(t.ids, id)
	}
}
