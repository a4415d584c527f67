// Package tasks keeps what a parent asks of its children, so that each task is carried out at most once, whichever side starts
// again in between.
//
//	queue.go   the parent: one queue for each child, in a file
//	once.go    the child: which tasks it has begun, in a file
//	worker.go  the child: it takes tasks, carries them out, and answers
package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

const (
	// lateAnswer is how long after a task expired the answer of a child counts that took it before.
	lateAnswer = 7 * 24 * time.Hour
	// againAfter is after how long a task is announced again that a child took and has not answered: it may have lost the
	// list.
	againAfter = time.Minute
	// mostEntries and mostBytes bound the file of a child. Answered tasks make room for new ones.
	mostEntries = 256
	mostBytes   = 16 << 20
)

// errFull is returned for a queue that has no room.
var errFull = errors.New("the queue of this node is full: it has not taken what was asked of it before")

// entry is a task in a queue.
type entry struct {
	Task   wire.Task        `json:"task"`
	Taken  time.Time        `json:"taken"`            // when the child fetched it last; zero: never
	Result *wire.TaskResult `json:"result,omitempty"` // nil: there is none yet
	Silent bool             `json:"silent,omitempty"` // the child took it, and the result is that it has not answered
	Noted  bool             `json:"noted,omitempty"`  // Options.Ended has the result
}

// over reports whether a task has its last result. A late answer of a child replaces that there is none.
func (e *entry) over() bool { return e.Result != nil && !e.Silent }

// Options configure a Queue.
type Options struct {
	Dir string           // of the files
	Now func() time.Time // nil: time.Now
	// Clean takes out of a result what must not be stored. Nil: nothing.
	Clean func(wire.TaskResult) wire.TaskResult
	// Ended is called with each result once it is stored, before the child gets an answer. After an error or a crash it is
	// called again, perhaps for a result that it has taken. Nil: nothing does.
	Ended func(wire.Task, wire.TaskResult) error

	disk disk // nil: that of this machine
}

// Queue is the queues of a parent for its children. Its methods may be called from any goroutine.
type Queue struct {
	o Options

	mutex   sync.Mutex // for the time of a write: requests of children, of people and of the schedule meet here
	nodes   map[string][]*entry
	changed chan struct{} // closed and replaced when something has ended
}

// Open reads the queues in a folder, and makes it if it does not exist. A file that cannot be read is set aside, and the
// error names it; the queue works.
func Open(o Options) (*Queue, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Ended == nil {
		o.Ended = func(wire.Task, wire.TaskResult) error { return nil }
	}
	if o.Clean == nil {
		o.Clean = func(r wire.TaskResult) wire.TaskResult { return r }
	}
	q := &Queue{o: o, nodes: map[string][]*entry{}, changed: make(chan struct{})}
	if q.o.disk == nil {
		q.o.disk = folder{}
	}
	names, err := q.o.disk.list(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the queues: %w", err)
	}
	var errs []error
	for _, f := range names {
		child, is := strings.CutSuffix(f, ".json")
		if !is {
			continue
		}
		name := filepath.Join(o.Dir, f)
		text, err := q.o.disk.read(name)
		if err == nil {
			q.nodes[child], err = read(text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("the queue in %s cannot be read and is set aside: %w", name, err), q.o.disk.replace(name+".broken", text), q.o.disk.remove(name))
		}
		for _, e := range q.nodes[child] {
			errs = append(errs, q.note(child, e.Task.ID))
		}
	}
	return q, errors.Join(errs...)
}

// file is the document of a queue.
type file struct {
	Version int      `json:"version"` // 1
	Entries []*entry `json:"tasks"`
}

func read(text []byte) ([]*entry, error) {
	var doc file
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	if doc.Version != 1 {
		return nil, fmt.Errorf("it has version %d, this program reads 1", doc.Version)
	}
	return slices.DeleteFunc(doc.Entries, func(e *entry) bool { return e == nil || e.Task.Check() != nil }), nil
}

// store makes a list the queue of a child, first on disk. The caller has the mutex.
func (q *Queue) store(child string, list []*entry) error {
	name := filepath.Join(q.o.Dir, child+".json")
	if len(list) == 0 {
		if err := q.o.disk.remove(name); err != nil {
			return fmt.Errorf("store the queue of %s: %w", child, err)
		}
		delete(q.nodes, child)
		return nil
	}
	var text []byte
	for {
		var err error
		if text, err = json.Marshal(file{1, list}); err != nil {
			return fmt.Errorf("store the queue of %s: %w", child, err)
		}
		if len(text) <= mostBytes && len(list) <= mostEntries {
			break
		}
		i := slices.IndexFunc(list, (*entry).over)
		if i < 0 {
			return errFull
		}
		list = slices.Delete(slices.Clone(list), i, i+1)
	}
	if err := q.o.disk.replace(name, text); err != nil {
		return fmt.Errorf("store the queue of %s: %w", child, err)
	}
	q.nodes[child] = list
	return nil
}

// with is the queue of a child with another entry in place of one. The entries themselves are never changed.
func (q *Queue) with(child string, i int, e entry) error {
	list := slices.Clone(q.nodes[child])
	list[i] = &e
	return q.store(child, list)
}

func (q *Queue) find(child, id string) int {
	return slices.IndexFunc(q.nodes[child], func(e *entry) bool { return e.Task.ID == id })
}

// Child is the child in whose queue a task is; "" for a task that is in none.
func (q *Queue) Child(id string) string {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	for child := range q.nodes {
		if q.find(child, id) >= 0 {
			return child
		}
	}
	return ""
}

// Put adds a task to the queue of the child that it is for. A task that is there already, or was answered, is not added
// again.
func (q *Queue) Put(t wire.Task) error {
	t.Expires = t.Expires.UTC()
	if err := t.Check(); err != nil {
		return err
	}
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if q.find(t.For, t.ID) >= 0 {
		return nil
	}
	waiting := 0
	for _, e := range q.nodes[t.For] {
		if e.Result == nil {
			waiting++
		}
	}
	if waiting >= wire.MaxTasks {
		return errFull
	}
	return q.store(t.For, append(slices.Clone(q.nodes[t.For]), &entry{Task: t}))
}

// open reports whether a child may still begin a task.
func (e *entry) open(now time.Time) bool { return e.Result == nil && now.Before(e.Task.Expires) }

// News reports whether there is a task for a child that it has not taken, or took long ago without an answer.
func (q *Queue) News(child string) bool {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	now := q.o.Now()
	return slices.ContainsFunc(q.nodes[child], func(e *entry) bool {
		return e.open(now) && (e.Taken.IsZero() || now.Sub(e.Taken) >= againAfter)
	})
}

// Take returns the tasks of a child that have no result, oldest first.
func (q *Queue) Take(child string) ([]wire.Task, error) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	now := q.o.Now().UTC()
	var out []wire.Task
	list := slices.Clone(q.nodes[child])
	for i, e := range list {
		if e.open(now) {
			out = append(out, e.Task)
			list[i] = &entry{Task: e.Task, Taken: now}
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, q.store(child, list)
}

// Answer takes the result of a task of a child. known is false for a task that is not in its queue. A second answer
// changes nothing.
func (q *Queue) Answer(child string, r wire.TaskResult) (known bool, err error) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	i := q.find(child, r.ID)
	if i < 0 {
		return false, nil
	}
	return true, q.end(child, i, r, false)
}

// end gives a task its result; silent: that its child has not answered. The caller has the mutex.
func (q *Queue) end(child string, i int, r wire.TaskResult, silent bool) error {
	e := *q.nodes[child][i]
	if !e.over() {
		r.ID, r.Node = e.Task.ID, e.Task.Node
		if now := q.o.Now(); r.Began.After(now) { // by the clock of the child, or as it pleases
			r.Began = now.UTC()
		}
		r = q.o.Clean(r)
		e.Result, e.Silent, e.Noted = &r, silent, false
		if err := q.with(child, i, e); err != nil {
			return err
		}
		close(q.changed)
		q.changed = make(chan struct{})
	}
	return q.note(child, e.Task.ID)
}

// note hands over the result of a task, if that was not done. The caller has the mutex.
func (q *Queue) note(child, id string) error {
	i := q.find(child, id)
	if i < 0 {
		return nil
	}
	e := *q.nodes[child][i]
	if e.Result == nil || e.Noted {
		return nil
	}
	if err := q.o.Ended(e.Task, *e.Result); err != nil {
		return fmt.Errorf("keep the result of a task of %s: %w", child, err)
	}
	e.Noted = true
	list := slices.Clone(q.nodes[child])
	list[i] = &e
	q.nodes[child] = list // it is stored with the next change
	return nil
}

// Cancel ends a task that its child has not taken; false if it has, or there is none.
func (q *Queue) Cancel(child, id string) (bool, error) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	i := q.find(child, id)
	if i < 0 || q.nodes[child][i].Result != nil || !q.nodes[child][i].Taken.IsZero() {
		return false, nil
	}
	return true, q.end(child, i, expired(q.o.Now(), "it was taken back before the node began it"), false)
}

func expired(now time.Time, why string) wire.TaskResult {
	return wire.TaskResult{Outcome: wire.TaskExpired, Code: -1, Error: why, Began: now.UTC()}
}

// Sweep ends the tasks that have expired, and those of children that are served no more, and forgets what was answered long
// ago. It returns when the next one expires; zero: none does.
func (q *Queue) Sweep(served func(child string) bool) (next time.Time, err error) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	now := q.o.Now()
	var errs []error
	for child, list := range q.nodes {
		for _, e := range list {
			if r, ends := e.swept(now, served(child)); ends {
				errs = append(errs, q.end(child, q.find(child, e.Task.ID), r, !e.Taken.IsZero()))
			}
		}
		rest := slices.DeleteFunc(slices.Clone(q.nodes[child]), func(e *entry) bool {
			return e.Result != nil && (now.After(e.Task.Expires.Add(lateAnswer)) || !served(child))
		})
		if len(rest) != len(q.nodes[child]) {
			errs = append(errs, q.store(child, rest))
		}
		for _, e := range rest {
			if at := e.last(); e.Result == nil && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next, errors.Join(errs...)
}

// last is the time at which a task without a result is given up.
func (e *entry) last() time.Time {
	if e.Taken.IsZero() {
		return e.Task.Expires
	}
	return e.Task.Expires.Add(time.Duration(e.Task.Timeout)*time.Second + lateness)
}

// lateness is how long a child may take to answer, beside the time of the command.
const lateness = time.Minute

// swept is the result of a task that is given up; false if it is not.
func (e *entry) swept(now time.Time, served bool) (r wire.TaskResult, ends bool) {
	switch {
	case e.Result != nil || served && now.Before(e.last()):
		return r, false
	case !e.Taken.IsZero():
		r = expired(now, "the node took it at "+e.Taken.Format(time.RFC3339)+" and has not answered; its answer still counts")
		r.Outcome = wire.TaskUnknown
		return r, true
	case !served:
		return expired(now, "the node is not served any more"), true
	default:
		return expired(now, "the node did not take it in time"), true
	}
}

// Await waits for the result of a task. The error is that of ctx, or says that there is no such task.
func (q *Queue) Await(ctx context.Context, child, id string) (wire.TaskResult, error) {
	for {
		q.mutex.Lock()
		i, changed := q.find(child, id), q.changed
		var r *wire.TaskResult
		if i >= 0 {
			r = q.nodes[child][i].Result
		}
		q.mutex.Unlock()
		switch {
		case i < 0:
			return wire.TaskResult{}, fmt.Errorf("there is no task %s for %s", id, child)
		case r != nil:
			return *r, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return wire.TaskResult{}, context.Cause(ctx)
		}
	}
}
