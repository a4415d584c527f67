package tasks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// mostBegun bounds the tasks that a child remembers. Those that have expired make room: they cannot be requested again.
const mostBegun = 512

// errManyBegun keeps a child from beginning more than it can remember.
var errManyBegun = errors.New("too many tasks are not over yet: this one is not begun")

// begun is a task that was begun.
type begun struct {
	ID       string           `json:"id"`
	Node     string           `json:"node"`
	Expires  time.Time        `json:"expires"`
	Began    time.Time        `json:"began"`
	Task     *wire.Task       `json:"task,omitempty"`   // nil after the answer
	Relayed  bool             `json:"again,omitempty"`  // it is carried out by a child of this one, which remembers it: it may be begun again
	Result   *wire.TaskResult `json:"result,omitempty"` // nil: it runs, or was interrupted; none is kept after the answer
	Answered bool             `json:"answered,omitempty"`
}

// Once remembers which tasks were begun, in a file. A task is recorded there before it begins: after a crash it is not
// known how it ended, and it is not begun again. One process uses the file at a time, and its methods may be called from
// any goroutine.
type Once struct {
	name    string
	now     func() time.Time
	disk    disk
	mutex   sync.Mutex // for the time of a write
	all     []begun
	running map[string]bool // by this process
}

// OpenOnce reads the file. One that cannot be read is an error: what was begun is not known, so nothing may begin.
func OpenOnce(name string) (*Once, error) { return openOnce(name, time.Now, folder{}) }

func openOnce(name string, now func() time.Time, d disk) (*Once, error) {
	o := &Once{name: name, now: now, disk: d, running: map[string]bool{}}
	text, err := d.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	var doc struct {
		Version int     `json:"version"` // 1
		Tasks   []begun `json:"tasks"`
	}
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	if err == nil && doc.Version != 1 {
		err = fmt.Errorf("it has version %d, this program reads 1", doc.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("no task is begun, since %s cannot be read: %w", name, err)
	}
	o.all = doc.Tasks
	return o, nil
}

// store replaces the file. The caller has the mutex.
func (o *Once) store(all []begun) error {
	text, err := json.Marshal(struct {
		Version int     `json:"version"`
		Tasks   []begun `json:"tasks"`
	}{1, all})
	if err == nil {
		err = o.disk.replace(o.name, text)
	}
	if err != nil {
		return fmt.Errorf("remember a task: %w", err)
	}
	o.all = all
	return nil
}

// Begin records that a task begins. It is false for one that was begun before, or has expired. A relayed task is carried
// out by another machine, which sees to it that it happens once.
func (o *Once) Begin(t wire.Task, relayed bool) (bool, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	now := o.now()
	if !now.Before(t.Expires) || slices.ContainsFunc(o.all, func(b begun) bool { return b.ID == t.ID }) {
		return false, nil
	}
	all := slices.Clone(o.all)
	for i := 0; len(all) >= mostBegun && i < len(all); {
		if b := all[i]; b.Answered && now.After(b.Expires) {
			all = slices.Delete(all, i, i+1)
		} else {
			i++
		}
	}
	if len(all) >= mostBegun {
		return false, errManyBegun
	}
	b := begun{ID: t.ID, Node: t.Node, Expires: t.Expires, Began: now.UTC(), Task: &t, Relayed: relayed}
	if err := o.store(append(all, b)); err != nil {
		return false, err
	}
	o.running[t.ID] = true
	return true, nil
}

// End records the result of a task that this process began.
func (o *Once) End(r wire.TaskResult) error {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	defer delete(o.running, r.ID)
	return o.change(r.ID, func(b *begun) { b.Result = &r })
}

// change changes what is known of a task. The caller has the mutex.
func (o *Once) change(id string, do func(*begun)) error {
	i := slices.IndexFunc(o.all, func(b begun) bool { return b.ID == id })
	if i < 0 {
		return nil
	}
	all := slices.Clone(o.all)
	do(&all[i])
	return o.store(all)
}

// Task is a task as it was begun; zero if it was answered, or was not begun.
func (o *Once) Task(id string) (t wire.Task) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if i := slices.IndexFunc(o.all, func(b begun) bool { return b.ID == id && b.Task != nil }); i >= 0 {
		t = *o.all[i].Task
	}
	return t
}

// Answered records that the parent has the result of a task.
func (o *Once) Answered(id string) error {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.change(id, func(b *begun) { b.Answered, b.Result, b.Task = true, nil, nil })
}

// due reports whether Unanswered has something.
func (o *Once) due() bool {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return slices.ContainsFunc(o.all, func(b begun) bool { return !b.Answered && !o.running[b.ID] })
}

// Unanswered are the results that the parent does not have. Tasks that an earlier process began and did not end have the
// outcome wire.TaskUnknown. Again are those that may be carried on.
func (o *Once) Unanswered() (results []wire.TaskResult, again []wire.Task) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	for _, b := range o.all {
		switch {
		case b.Answered || o.running[b.ID]:
		case b.Result != nil:
			results = append(results, *b.Result)
		case b.Relayed && b.Task != nil:
			o.running[b.ID] = true
			again = append(again, *b.Task)
		default:
			results = append(results, wire.TaskResult{
				ID: b.ID, Node: b.Node, Outcome: wire.TaskUnknown, Code: -1, Began: b.Began,
				Error: "it was begun, and the program ended before the task did; it is not run again",
			})
		}
	}
	return results, again
}
