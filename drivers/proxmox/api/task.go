package api

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

const (
	// mostSilence is the time without an answer of the host after which a wait fails.
	mostSilence = time.Minute
	minPoll     = 150 * time.Millisecond
	nearPoll    = 100 * time.Millisecond // when a task is about to end
	maxPoll     = 25 * time.Second
)

// TaskError is a failed task. Status is PVE's exit status.
type TaskError struct {
	UPID, Type, Status string
	Cause              string // what it said last, where the status does not say why
	Err                error  // why its end could not be seen; nil if it was
}

// Error says which task ended how, and where its log is: quoted, since a shell takes the
// name of the token behind its ! for an earlier command.
func (e *TaskError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("the result of task %s is unknown: %v (log: `pvenode task log '%s'`)", e.Type, e.Err, e.UPID)
	}
	why := ""
	if e.Cause != "" {
		why = ": " + e.Cause
	}
	return fmt.Sprintf("task %s ended with: %s%s (log: `pvenode task log '%s'`)", e.Type, e.Status, why, e.UPID)
}

// Temporary is that of the text the task died with.
func (e *TaskError) Temporary() bool { return e.Class() == Busy }

// OutcomeUnknown reports that how far it came can only be seen by observing the host; see
// apply.Repeat.
func (e *TaskError) OutcomeUnknown() bool { return e.Class() == OutcomeUnknown }

// Class reads the exit status, which is the text that the task died with.
func (e *TaskError) Class() Class {
	switch e.Status {
	case "unexpected status", "":
		return OutcomeUnknown // killed, or its host went down: the outcome is unknown
	default:
		return (&Error{Status: 500, Message: e.Status}).Class()
	}
}

// tasks waits for PVE's tasks. Several waits on one node share one poll of the
// node's list of tasks, which also says how each ended; a single one asks for its
// own status.
//
// The mutex guards the fields of the pollers, which are made and joined by whichever
// steps wait at the moment, and what is known of how long tasks take.
type tasks struct {
	c       *Client
	mu      sync.Mutex
	pollers map[string]*poller       // by node
	usual   map[string]time.Duration // by type of task: how long those took that went well, the last ones counting most
}

// poller is the shared poll of one node. It has no goroutine: one of the waiting goroutines takes
// the only slot in lead, and polls for all; when its own task is over the next one takes over.
type poller struct {
	waiting map[*waiter]bool
	lead    chan struct{}
	bell    chan struct{} // of length 1: signals a new waiter
}

type waiter struct {
	upid  string
	kind  string // type of the task
	since time.Time
	over  chan taskState // of length 1: filled when the shared list knows more
}

// taskState is PVE's status of one task.
type taskState struct {
	ended bool   // else: ask for its status
	exit  string // PVE's exit status
}

// Wait returns when the task has ended: nil for OK and for WARNINGS, a TaskError otherwise. An unknown task is an
// error of class OutcomeUnknown, since some tasks die without a trace (seen in creates of a loaded host). An empty
// UPID stands for work that was done synchronously.
func (t *tasks) Wait(ctx context.Context, upid string) error {
	if upid == "" {
		return nil
	}
	model.RecordTask(ctx, upid)
	id := ParseUPID(upid)
	node, kind := id.Node, id.Type
	if node == "" {
		return fmt.Errorf("the API answered %q where the id of a task was expected", upid)
	}
	w := &waiter{upid: upid, kind: kind, since: time.Now(), over: make(chan taskState, 1)}
	seen := time.Now()
	for {
		v, err := t.next(ctx, node, w)
		if err == nil && !v.ended {
			v, err = t.status(ctx, node, upid)
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("waiting for %s, which continues: %w", upid, ctx.Err())
		case err != nil && ClassOf(err) == OutcomeUnknown && time.Since(seen) > mostSilence:
			return fmt.Errorf("the host has not answered for %s; task %s may still run there: %w", time.Since(seen).Round(time.Second), upid, err)
		case err != nil && ClassOf(err) == OutcomeUnknown:
			continue
		case err != nil:
			return &TaskError{UPID: upid, Type: kind, Err: err}
		case !v.ended:
			seen = time.Now()
		case v.exit == "OK" || strings.HasPrefix(v.exit, "WARNINGS: "):
			t.recordDuration(kind, time.Since(w.since))
			return nil
		default:
			return &TaskError{UPID: upid, Type: kind, Status: v.exit, Cause: t.cause(ctx, node, upid, v.exit)}
		}
	}
}

// status asks for one task. PVE knows no 404: an unknown task is a 400.
func (t *tasks) status(ctx context.Context, node, upid string) (taskState, error) {
	var doc struct{ Status, ExitStatus string }
	err := t.c.Get(ctx, Path("nodes", node, "tasks", upid, "status"), &doc)
	return taskState{ended: doc.Status == "stopped", exit: doc.ExitStatus}, err
}

// recordDuration records the duration of a successful task.
func (t *tasks) recordDuration(kind string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.usual[kind]; old > 0 {
		took = (old + took) / 2
	}
	t.usual[kind] = took
}

// pollAfter is the pause until the next poll of a task that runs for age: short at first, later a part of its age,
// so that the end is noticed soon and a long task costs few requests. If the usual time of its type is known, most
// polls are around that time: earlier ends are mostly failures.
func pollAfter(age, usual time.Duration, shared bool) time.Duration {
	part := age / 5
	if shared {
		part = age / 8
	}
	part = max(part, minPoll)
	switch soon := usual - usual/10; {
	case age < soon:
		part = min(max(soon-age, nearPoll), max(age/2, minPoll))
	case age < usual+usual/4:
		part = min(part, max(usual/20, nearPoll))
	}
	return min(part, maxPoll)
}

// next returns when something can be said of a task: after a pause where this is
// the only one that is waited for on the node, else when the shared list shows it
// as ended, or not at all.
func (t *tasks) next(ctx context.Context, node string, w *waiter) (taskState, error) {
	p := t.join(node, w)
	defer t.leave(p, w)
	select {
	case p.bell <- struct{}{}:
	default:
	}
	select {
	case v := <-w.over:
		return v, nil
	case <-ctx.Done():
		return taskState{}, ctx.Err()
	case p.lead <- struct{}{}:
		defer func() { <-p.lead }()
		return t.lead(ctx, node, p, w)
	}
}

func (t *tasks) join(node string, w *waiter) *poller {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pollers[node]
	if p == nil {
		p = &poller{waiting: map[*waiter]bool{}, lead: make(chan struct{}, 1), bell: make(chan struct{}, 1)}
		t.pollers[node] = p
	}
	p.waiting[w] = true
	return p
}

func (t *tasks) leave(p *poller, w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(p.waiting, w)
}

// lead waits for w and, while others wait on the same node, polls for them, too.
func (t *tasks) lead(ctx context.Context, node string, p *poller, w *waiter) (taskState, error) {
	polled := time.Now()
	for {
		pause, shared := t.pause(p)
		timer := time.NewTimer(time.Until(polled.Add(pause))) // counted from the last poll, however often the bell rings
		select {
		case <-timer.C:
		case <-p.bell:
			timer.Stop()
			continue
		case v := <-w.over: // the leader before us saw it end
			timer.Stop()
			return v, nil
		case <-ctx.Done():
			timer.Stop()
			return taskState{}, ctx.Err()
		}
		if !shared {
			return taskState{}, nil
		}
		if err := t.poll(ctx, node, p); err != nil {
			return taskState{}, err
		}
		polled = time.Now()
	}
}

// pause returns the time that the leader sleeps: the youngest task decides, it is the likeliest to end next.
func (t *tasks) pause(p *poller) (pause time.Duration, shared bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	shared = len(p.waiting) > 1
	pause = maxPoll
	for w := range p.waiting {
		pause = min(pause, pollAfter(time.Since(w.since), t.usual[w.kind], shared))
	}
	return pause, shared
}

// poll reads the node's list of tasks and notifies each waiter whose task
// does not run any more, or is not in the list.
func (t *tasks) poll(ctx context.Context, node string, p *poller) error {
	list, err := t.list(ctx, node, "all")
	if err != nil {
		return err
	}
	byID := make(map[string]TaskEntry, len(list))
	for _, e := range list {
		if old, twice := byID[e.UPID]; !twice || old.EndTime == nil {
			byID[e.UPID] = e // right after its end a task may stand among both the active and the archived
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := range p.waiting {
		e, known := byID[w.upid]
		if known && e.Running() {
			continue
		}
		delete(p.waiting, w)
		w.over <- taskState{ended: known, exit: e.Status}
	}
	return nil
}

// TaskID is a parsed task ID.
type TaskID struct{ Node, Type, Object, User string } // Object: mostly the VMID that it is about

// ParseUPID reads an id, UPID:node:pid:pstart:starttime:type:id:user: (PVE/Tools.pm);
// nothing of what is none.
func ParseUPID(upid string) TaskID {
	if p := strings.Split(upid, ":"); len(p) > 7 {
		return TaskID{p[1], p[5], p[6], p[7]}
	}
	return TaskID{}
}

// TaskType reads the type of a task from its id; "" if it is not one.
func TaskType(upid string) string { return ParseUPID(upid).Type }

// TaskEntry is a task in a node's list.
type TaskEntry struct {
	UPID    string          `json:"upid"`
	EndTime json.RawMessage `json:"endtime"`
	Status  string          `json:"status"`
}

// Running reports whether the task runs: of such a one PVE shows no end, and as status nothing or RUNNING.
func (e TaskEntry) Running() bool {
	return e.EndTime == nil && (e.Status == "" || strings.EqualFold(e.Status, "running"))
}

// list reads a node's tasks: active for those that run, all for the finished too.
func (t *tasks) list(ctx context.Context, node, source string) ([]TaskEntry, error) {
	var list []TaskEntry
	err := ReadList(ctx, t.c, Path("nodes", node, "tasks")+"?limit=500&source="+source, &list)
	return list, err
}

// Active lists the UPIDs of a node's running tasks.
func (t *tasks) Active(ctx context.Context, node string) (map[string]bool, error) {
	list, err := t.list(ctx, node, "active")
	running := make(map[string]bool, len(list))
	for _, e := range list {
		if e.Running() {
			running[e.UPID] = true
		}
	}
	return running, err
}
