package proxmox

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	firstPoll = 100 * time.Millisecond
	minPoll   = 200 * time.Millisecond
	maxPoll   = 25 * time.Second
)

// taskError is a task that ended badly. Status is PVE's exit status.
type taskError struct{ UPID, Type, Status string }

// Error says which task ended how, and where its log is.
func (e *taskError) Error() string {
	return fmt.Sprintf("task %s ended with: %s (log: `pvenode task log %s`)", e.Type, e.Status, e.UPID)
}

// class reads the exit status, which is the text that the task died with.
func (e *taskError) class() class {
	switch {
	case e.Status == "unexpected status" || e.Status == "":
		return classUnknown // killed, or its host went down: how far it came is open
	default:
		return (&apiError{Status: 500, Message: e.Status}).class()
	}
}

// tasks waits for PVE's tasks. Several waits on one node share one poll of the
// node's list of active tasks; a single one asks for its own status.
//
// The mutex guards the fields of the pollers: they are made and joined by
// whichever steps wait at the moment, and nobody outlives them.
type tasks struct {
	c       *client
	mu      sync.Mutex
	pollers map[string]*poller // by node
}

// poller is the shared poll of one node. There is no goroutine of its own: one of
// those that wait leads, by holding the only place in lead, and polls for all;
// when its own task is over the next one takes the lead.
type poller struct {
	waiting map[*waiter]bool
	lead    chan struct{}
	bell    chan struct{} // of length 1: somebody began to wait
}

type waiter struct {
	upid  string
	since time.Time
	over  chan struct{} // closed when the task is no longer among the active ones
}

// wait returns when the task has ended: nil for OK and for WARNINGS, a taskError
// otherwise. A task that nobody knows any more is an error of classUnknown, since
// some tasks die without a trace (seen in creates of a loaded host). An empty
// UPID is work that was done at once.
func (t *tasks) wait(ctx context.Context, upid string) error {
	if upid == "" {
		return nil
	}
	parts := strings.Split(upid, ":")
	if len(parts) < 8 {
		return fmt.Errorf("the API answered %q where the id of a task was expected", upid)
	}
	node, kind := parts[1], parts[5]
	began := time.Now()
	if err := wait(ctx, firstPoll); err != nil {
		return stillRuns(upid, err)
	}
	for {
		status, exit, err := t.status(ctx, node, upid)
		switch {
		case ctx.Err() != nil:
			return stillRuns(upid, ctx.Err())
		case err != nil && classOf(err) != classUnknown:
			return &taskError{UPID: upid, Type: kind, Status: ""}
		case err == nil && status == "stopped":
			if exit == "OK" || strings.HasPrefix(exit, "WARNINGS: ") {
				return nil
			}
			return &taskError{UPID: upid, Type: kind, Status: exit}
		}
		if err := t.next(ctx, node, upid, began); err != nil {
			return stillRuns(upid, err)
		}
	}
}

// status asks for one task. PVE knows no 404: an unknown task is a 400.
func (t *tasks) status(ctx context.Context, node, upid string) (status, exit string, err error) {
	var doc struct{ Status, ExitStatus string }
	err = t.c.get(ctx, seg("nodes", node, "tasks", upid, "status"), &doc)
	return doc.Status, doc.ExitStatus, err
}

func stillRuns(upid string, err error) error {
	return fmt.Errorf("waiting for %s, which goes on: %w", upid, err)
}

// pollAfter is the pause until the next look at a task that runs for age: short
// while it is young, later a part of its age, so that the end is noticed soon
// and a long one costs few requests.
func pollAfter(age time.Duration, shared bool) time.Duration {
	part := age / 5
	if shared {
		part = age / 8
	}
	return min(max(part, minPoll), maxPoll)
}

// next returns when it is worth asking for the status again: after a pause where
// this is the only task that is waited for on the node, else when the shared
// list no longer shows it as running.
func (t *tasks) next(ctx context.Context, node, upid string, since time.Time) error {
	w := &waiter{upid: upid, since: since, over: make(chan struct{})}
	p := t.join(node, w)
	defer t.leave(p, w)
	select {
	case p.bell <- struct{}{}:
	default:
	}
	select {
	case p.lead <- struct{}{}:
		defer func() { <-p.lead }()
		return t.lead(ctx, node, p, w)
	case <-w.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
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

// lead waits for w and, while others wait on the same node, polls for all of them.
func (t *tasks) lead(ctx context.Context, node string, p *poller, w *waiter) error {
	for {
		pause, shared := t.pause(p)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-p.bell:
			timer.Stop()
			continue
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		if !shared {
			return nil
		}
		running, err := t.active(ctx, node)
		if err != nil || t.release(p, w, running) {
			return nil //nolint:nilerr // the status of the single task, asked for next, tells what is wrong
		}
	}
}

// pause is how long the leader sleeps: the youngest task decides, it is the likeliest to end next.
func (t *tasks) pause(p *poller) (pause time.Duration, shared bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	shared = len(p.waiting) > 1
	pause = maxPoll
	for w := range p.waiting {
		pause = min(pause, pollAfter(time.Since(w.since), shared))
	}
	return pause, shared
}

// release wakes all whose task is no longer running, and reports whether the leader's own is one of them.
func (t *tasks) release(p *poller, leader *waiter, running map[string]bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := range p.waiting {
		if !running[w.upid] && w != leader {
			delete(p.waiting, w)
			close(w.over)
		}
	}
	return !running[leader.upid]
}

// active lists the UPIDs of a node's running tasks.
func (t *tasks) active(ctx context.Context, node string) (map[string]bool, error) {
	var list []struct {
		UPID    string          `json:"upid"`
		EndTime json.RawMessage `json:"endtime"`
		Status  string          `json:"status"`
	}
	if err := t.c.get(ctx, seg("nodes", node, "tasks")+"?source=active&limit=500", &list); err != nil {
		return nil, err
	}
	running := make(map[string]bool, len(list))
	for _, e := range list {
		if e.EndTime == nil && (e.Status == "" || e.Status == "RUNNING" || e.Status == "running") {
			running[e.UPID] = true
		}
	}
	return running, nil
}
