// Package apply runs the steps of a plan: in parallel up to a limit, each after its dependencies, and with the
// on_error policy of its manifest when one fails.
//
// Run is a loop in the calling goroutine, which owns all state: the graph, the results, the manifests. A worker
// gets a copy of one step, calls Do, and sends one result, so nothing is shared or locked. Run returns when all
// workers have ended.
//
// This package does not know what a step does. The caller provides Do, and wraps it for more behaviour, as Retry
// does.
package apply

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Do runs one step. It is called from many goroutines at once, but never twice at a time for one
// address.
//
// A step may already be done, in part or completely: by an earlier run, or by one whose answer was
// lost. Do checks first, and treats work that is already done as success; in particular, the
// deletion of something that does not exist succeeds. After its context ended it changes nothing
// more and returns soon, because Run waits for it. It must not modify the step.
//
// To roll back a creation, Do gets a deletion whose Have is what was wanted: if the creation
// failed, less may exist, or nothing.
type Do func(ctx context.Context, s plan.Step) error

// Status is the outcome of a step.
type Status string

// The outcomes of a step.
const (
	Done       Status = "done"
	Failed     Status = "failed"
	Skipped    Status = "skipped"     // not begun; Err says why
	RolledBack Status = "rolled-back" // created, then removed again since another step failed
)

// Result is the result of one step.
type Result struct {
	Step     plan.Step
	Status   Status
	Err      error         // of what failed or was skipped
	Started  time.Time     // zero for what was skipped
	Duration time.Duration // without that of rolling back
	Tasks    []string      // ids of the host's tasks that it was done by, and rolled back by, as far as Do noted them (model.RecordTask)
}

// Values of on_error.
const (
	onErrorStop     = "stop"     // nothing new of it is started
	onErrorRollback = "rollback" // the same, and what this run created of it is removed again
	onErrorContinue = "continue" // only what depends on the step is not done
)

// Options are the options of Run. The zero value is ready for use.
type Options struct {
	Width    int                           // how many steps work at once; 10 unless set. See YieldForever
	Deadline func(plan.Step) time.Duration // how long a step may take, 0 for ever; nil: all for ever
	OnError  func(manifest string) string  // "stop", "rollback" or "continue"; nil, and every other answer: "stop"
	Stop     <-chan struct{}               // closed: start nothing new, finish what runs
	Notify   func(Event)                   // called for every event, from the goroutine of Run; it must be fast
}

const defaultWidth = 10

// NotYetError is returned by Do for a step that it did not start, because something that the step
// needs is not ready yet. The step is skipped, and what depends on it. Nothing of its manifest
// counts as failed.
type NotYetError struct{ Err error }

// Error says what is not ready yet.
func (e *NotYetError) Error() string { return e.Err.Error() }

// Unwrap returns the same.
func (e *NotYetError) Unwrap() error { return e.Err }

// Event reports progress.
type Event struct {
	What    What
	Step    plan.Step     // of Started and Finished; a roll back shows as a deletion
	Result  Result        // of Finished; for a roll back that of the removal
	Limit   time.Duration // of Started: how long the step may take, 0 for ever
	Text    string        // of Waiting and Note: one sentence
	Running int           // steps that run now
	Left    int           // steps that were not begun yet
}

// What is the type of an event.
type What string

// The sorts of events. Every step finishes once; one that is rolled back twice.
const (
	Started  What = "started"
	Finished What = "finished"
	Waiting  What = "waiting" // nothing new is started any more, but something still runs
	Note     What = "note"
)

// errStopped is the reason of steps that were not begun after Options.Stop.
var errStopped = errors.New("stopped before it started")

// Run runs steps and returns their results, in the same order. A step is skipped if one of its
// predecessors (Step.After, if it is one of the steps) did not succeed. When ctx ends, the contexts
// of workers end, and nothing new is started.
func Run(ctx context.Context, steps []plan.Step, o Options, do Do) []Result {
	if o.Width <= 0 {
		o.Width = defaultWidth
	}
	if o.Notify == nil {
		o.Notify = func(Event) {}
	}
	r := &run{
		o: o, do: do, results: make([]Result, len(steps)), manifests: map[string]*manifest{},
		answers: make(chan answer, o.Width), moves: make(chan slotRequest), left: len(steps),
	}
	r.prepare(steps)
	r.loop(ctx)
	return r.results
}

// run is the state of one Run; its goroutine owns it.
type run struct {
	o         Options
	do        Do
	tasks     []*task
	ready     []*task       // may start now, in the order in which they became so
	running   int           // steps that were begun and are not over
	yielded   int           // of these, those that have no slot; see YieldForever
	resuming  []slotRequest // who waits for one again, in the order of coming
	moves     chan slotRequest
	left      int
	closed    error // why nothing new is started any more
	answers   chan answer
	results   []Result
	manifests map[string]*manifest
}

// task is a step on its way, or the removal of what one created.
type task struct {
	step    plan.Step
	index   int  // of the result it writes to
	undo    bool // rolls that result back
	state   state
	yielded bool // begun, and without a slot
	aside   bool // and nothing else of its manifest waits to see how it ends
	started time.Time
	tasks   []string // of the host, once it is over
	waits   int      // predecessors that are not over
	then    []*task  // successors
	before  []*task  // predecessors
}

type state int

const (
	waiting state = iota
	inWork
	over
)

// answer is the message of a worker, sent once.
type answer struct {
	task  *task
	err   error
	tasks []string
}

func (r *run) prepare(steps []plan.Step) {
	by := make(map[model.Address][]*task, len(steps))
	for i, s := range steps {
		t := &task{step: s, index: i}
		r.tasks = append(r.tasks, t)
		by[s.Address] = append(by[s.Address], t)
		if r.manifests[s.Manifest] == nil {
			r.manifests[s.Manifest] = &manifest{name: s.Manifest}
		}
	}
	for _, t := range r.tasks {
		for _, a := range t.step.After {
			for _, b := range by[a] {
				b.then = append(b.then, t)
				t.before = append(t.before, b)
				t.waits++
			}
		}
	}
	for _, t := range r.tasks {
		if t.waits == 0 {
			r.ready = append(r.ready, t)
		}
	}
}

// loop starts ready steps and handles answers until nothing runs and nothing can be started.
func (r *run) loop(ctx context.Context) {
	ended, stop := ctx.Done(), r.o.Stop
	heed := func() { // before anything new, even where an answer waits as well
		select {
		case <-ended:
			ended = nil
			r.close(ctx.Err())
		case <-stop:
			stop = nil
			r.close(errStopped)
		default:
		}
	}
	for {
		heed()
		r.grantSlots()
		for r.closed == nil && r.running-r.yielded < r.o.Width {
			t := r.next()
			if t == nil {
				break
			}
			r.start(ctx, t)
		}
		if r.running == 0 {
			break
		}
		select {
		case m := <-r.moves:
			r.moved(m)
		case a := <-r.answers:
			heed() // it may be the answer to that, and then nothing is rolled back
			r.take(a)
		case <-ended:
			ended = nil
			r.close(ctx.Err())
		case <-stop:
			stop = nil
			r.close(errStopped)
		}
	}
	why := r.closed
	if why == nil {
		why = errors.New("it depends on itself") // package plan makes no such step
	}
	for _, t := range r.tasks {
		r.skip(t, why)
	}
}

// close makes the run start nothing new; only the first reason counts.
func (r *run) close(why error) {
	if r.closed != nil {
		return
	}
	r.closed = why
	if r.running > 0 {
		r.notify(Event{What: Waiting, Text: fmt.Sprintf("nothing new is started, %d still running", r.running)})
	}
}

func (r *run) start(ctx context.Context, t *task) {
	if t.state != waiting {
		return // skipped while it was ready
	}
	t.state = inWork
	r.running++
	r.manifests[t.step.Manifest].running++
	t.started = time.Now()
	if !t.undo {
		r.left--
	}
	var limit time.Duration
	if r.o.Deadline != nil {
		limit = r.o.Deadline(t.step)
	}
	r.notify(Event{What: Started, Step: t.step, Limit: limit})
	go func() {
		// Stands if Do ends its goroutine (runtime.Goexit), as a failed test does.
		a := answer{task: t, err: fmt.Errorf("%s: ended without an answer", t.step.Address)}
		var tasks model.Tasks
		defer func() { a.tasks = tasks.IDs(); r.answers <- a }()
		a.err = redact(t.step, attempt(r.withSlots(tasks.With(ctx), t), limit, r.do, t.step))
	}()
}

// attempt calls do within its deadline; a panic comes back as an error.
func attempt(ctx context.Context, limit time.Duration, do Do, s plan.Step) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{s.Address, v, debug.Stack()}
		}
	}()
	if limit <= 0 {
		return do(ctx, s)
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = do(within, s)
	if err != nil && ctx.Err() == nil && within.Err() != nil {
		return fmt.Errorf("gave up after %s: %w", limit, err)
	}
	return err
}

// panicError is a panic of Do: a defect of this program, not of the host.
type panicError struct {
	Address model.Address
	Value   any
	Stack   []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("%s: panic: %v", e.Address, e.Value) }

// Unwrap returns the value if it was an error.
func (e *panicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

func (r *run) notify(e Event) {
	e.Running, e.Left = r.running, r.left
	r.o.Notify(e)
}
