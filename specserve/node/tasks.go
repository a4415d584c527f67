package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/specserve/tasks"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// tasksLock is locked by the process that takes the tasks of this machine.
const tasksLock = tasksFile + ".lock"

// parentOf is the parent as it is known by now, for tasks.
type parentOf struct{ open func() (Server, error) }

// Tasks is as tasks.Parent wants it.
func (p parentOf) Tasks(ctx context.Context) ([]wire.Task, error) {
	s, err := p.open()
	if err != nil {
		return nil, err
	}
	return s.Client.Tasks(ctx)
}

// Answer is as tasks.Parent wants it.
func (p parentOf) Answer(ctx context.Context, r wire.TaskResult) error {
	s, err := p.open()
	if err != nil {
		return err
	}
	return s.Client.Answer(ctx, r)
}

// worker takes the tasks of this machine; nil if another process does.
func (r Run) worker(from Source) (w *tasks.Worker, unlock func(), err error) {
	f := Folder{Path: r.Folder}
	unlock, err = durable.TryLock(f.file(tasksLock))
	if errors.Is(err, durable.ErrLocked) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("taking tasks: %w", err)
	}
	once, err := tasks.OpenOnce(f.file(tasksFile))
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return &tasks.Worker{
		Once: once, Parent: parentOf{func() (Server, error) { return r.open(from) }}, Note: func(err error) { r.Note("%s", err) },
		Do: func(ctx context.Context, t wire.Task) wire.TaskResult { return r.carryOut(ctx, f, t) },
	}, unlock, nil
}

// carryOut runs the command of a task. A run that changes the machine is waited for; one that begins later does not wait for
// the command.
func (r Run) carryOut(ctx context.Context, f Folder, t wire.Task) wire.TaskResult {
	if t.Kind != wire.TaskRun || t.Node != t.For {
		return wire.TaskResult{Outcome: wire.TaskFailed, Code: -1, Began: time.Now().UTC(), Error: "this machine manages no nodes, so it only runs commands of its own"}
	}
	unlock, err := f.Lock(ctx, nil)
	if err != nil {
		return wire.TaskResult{Outcome: wire.TaskFailed, Code: -1, Began: time.Now().UTC(), Error: err.Error()}
	}
	unlock()
	if now := time.Now(); !now.Before(t.Expires) {
		return wire.TaskResult{Outcome: wire.TaskExpired, Code: -1, Began: now.UTC(), Error: "it expired while something else ran on this machine"}
	}
	r.Note("running a command that %s asks for", t.By)
	return tasks.Run(ctx, r.machine(), t)
}

// takeTasks takes the tasks of this machine, and waits for their end. If that fails the next run does it.
func (r Run) takeTasks(ctx context.Context, from Source) {
	if s, err := r.open(from); err != nil || s.Client.Parent.Token == "" {
		return // no tasks without a token; a failed read was reported before
	}
	w, unlock, err := r.worker(from)
	if w != nil {
		defer unlock()
		err = w.Turn(ctx)
		w.Wait()
	}
	if err != nil && ctx.Err() == nil && wire.CodeOf(err) != wire.CodeNoEndpoint { // an older parent has no tasks
		r.Note("the tasks of this machine are not taken: %s", err)
	}
}
