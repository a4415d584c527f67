package tasks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// mostAtOnce is how many tasks a child carries out side by side.
const mostAtOnce = 8

// Parent gives tasks and takes results; see client.Client.
type Parent interface {
	// Tasks are those of this child. The error may come with tasks: it is about the others.
	Tasks(ctx context.Context) ([]wire.Task, error)
	// Answer takes a result. It is nil, too, where the parent does not know the task any more.
	Answer(ctx context.Context, r wire.TaskResult) error
}

// Worker takes the tasks of a child from its parent, carries them out, and answers. Its methods may be called from any
// goroutine.
type Worker struct {
	Once    *Once
	Parent  Parent
	Do      func(ctx context.Context, t wire.Task) wire.TaskResult
	Relayed func(t wire.Task) bool // reports whether another machine carries a task out; nil: none is
	Note    func(err error)

	begin func(do func()) // nil: in a goroutine; tests want an order
	slots chan struct{}
	once  sync.Once
	all   sync.WaitGroup
}

// Turn answers what is not answered, takes new tasks and begins them; it does not wait for their end. A task runs until it
// ends or ctx does.
func (w *Worker) Turn(ctx context.Context) error {
	w.once.Do(func() {
		w.slots = make(chan struct{}, mostAtOnce)
		if w.begin == nil {
			w.begin = w.all.Go
		}
	})
	results, again := w.Once.Unanswered()
	for _, t := range again {
		w.start(ctx, t, true)
	}
	for _, r := range results {
		if err := w.answer(ctx, r); err != nil {
			return err
		}
	}
	list, errs := w.Parent.Tasks(ctx)
	for _, t := range list {
		relayed := w.Relayed != nil && w.Relayed(t)
		begins, err := w.Once.Begin(t, relayed)
		if errs = errors.Join(errs, err); begins {
			w.start(ctx, t, relayed)
		}
	}
	return errs
}

// start carries out a task that was recorded.
func (w *Worker) start(ctx context.Context, t wire.Task, relayed bool) {
	w.begin(func() {
		select {
		case w.slots <- struct{}{}:
			defer func() { <-w.slots }()
		case <-ctx.Done():
		}
		var r wire.TaskResult
		if ctx.Err() == nil { // where both were ready, either may have been chosen
			r = w.Do(ctx, t)
		} else {
			r = expired(time.Now(), "the program ended before it was the turn of this task")
		}
		if relayed && ctx.Err() != nil {
			return // it goes on where it is, and the next process asks for its result
		}
		r.ID, r.Node = t.ID, t.Node
		if err := w.Once.End(r); err != nil {
			w.Note(err)
		}
		if err := w.answer(ctx, r); err != nil {
			w.Note(err) // the next turn tries again
		}
	})
}

// answer sends a result. One that the parent refuses for what it contains is sent without that, and must not keep others from
// being sent.
func (w *Worker) answer(ctx context.Context, r wire.TaskResult) error {
	err := w.Parent.Answer(ctx, r)
	if isRefused(err) {
		w.Note(err)
		err = w.Parent.Answer(ctx, wire.TaskResult{
			ID: r.ID, Node: r.Node, Outcome: r.Outcome, Code: r.Code, Began: r.Began, Seconds: r.Seconds, Cut: true,
			Error: "its output is missing, since the parent refused it",
		})
	}
	if err != nil && !isRefused(err) {
		return err
	}
	return errors.Join(err, w.Once.Answered(r.ID))
}

// isRefused reports whether a parent will never take a document.
func isRefused(err error) bool {
	code := wire.CodeOf(err)
	return err != nil && (code == wire.CodeSchema || code == wire.CodeBadRequest)
}

// Due reports whether there is something to answer that no task under way will.
func (w *Worker) Due() bool { return w.Once.due() }

// Wait waits for the tasks that run.
func (w *Worker) Wait() { w.all.Wait() }

// machine is where a command runs; see guest.Machine.
type machine interface {
	Run(ctx context.Context, c guest.Command) (guest.Output, error)
}

// Run runs the command of a task on a machine. When ctx ends, so does the command. The result has the end of its output,
// clean to show.
func Run(ctx context.Context, m machine, t wire.Task) wire.TaskResult {
	began, limit := time.Now(), time.Duration(t.Timeout)*time.Second
	r := wire.TaskResult{ID: t.ID, Node: t.Node, Code: -1, Began: began.UTC()}
	running, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit+2*killAfter, errTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		ending, done := context.WithTimeout(running, killAfter)
		defer done()
		_, _ = m.Run(ending, guest.Command{Args: []string{"sh", "-c", ender, "sh", t.ID}}) // if that fails, its time ends it
		time.AfterFunc(2*killAfter, cancel)
	})
	defer stop()
	out, err := m.Run(running, guest.Command{Args: append([]string{"sh", "-c", runner, "sh", t.ID, fmt.Sprint(t.Timeout)}, t.Command...)})
	r.Seconds = time.Since(began).Seconds()
	ended := fmt.Sprintf("it was ended after %s", limit)
	switch {
	case ctx.Err() != nil:
		r.Outcome, r.Error = wire.TaskUnknown, "it was interrupted: "+context.Cause(ctx).Error()
	case errors.Is(context.Cause(running), errTime):
		r.Outcome, r.Error = wire.TaskTimeout, ended
	case errors.Is(err, guest.ErrOutcomeLost):
		r.Outcome, r.Error = wire.TaskUnknown, diag.Clean(err.Error())
	case err != nil:
		r.Outcome, r.Error = wire.TaskFailed, diag.Clean(err.Error())
	case out.Signal != 0:
		r.Outcome, r.Code = wire.TaskFailed, 128+out.Signal // as shells have it
	case (out.Code == codeTime || out.Code == codeKilled) && time.Since(began) >= limit:
		r.Outcome, r.Code, r.Error = wire.TaskTimeout, out.Code, ended
	case out.Code != 0:
		r.Outcome, r.Code = wire.TaskFailed, out.Code
	default:
		r.Outcome, r.Code = wire.TaskDone, 0
	}
	r.Output, r.Cut = Tail(out.Out + out.Err)
	r.Cut = r.Cut || out.Cut
	return r
}

var errTime = errors.New("its time is over")

// killAfter is how long a command that has to end may take to clean up; runner has it, too.
const killAfter = 5 * time.Second

// Exit codes of timeout(1): the time is over, and the command had to be killed.
const (
	codeTime   = 124
	codeKilled = 137
)

// runner is a script that runs a command: its ID, its time in seconds, the command. The machine itself ends the command,
// since the end of a connection does not end what root runs (see ssh.Machine.Run). ender does so before.
const (
	runner = `f=/run/homestak-gitops-task-$1
shift
timeout -k 5 "$@" </dev/null &
p=$!
{ echo "$p" >"$f"; } 2>/dev/null
wait "$p"
code=$?
rm -f "$f"
exit "$code"`
	ender = `p=$(cat "/run/homestak-gitops-task-$1") && kill "$p"`
)

// mostPartial is how much of a line is left out whose begin is cut off, in bytes. A secret has no more.
const mostPartial = 4 << 10

// Tail is the end of an output, clean to show, and as long as a result may have it. It begins with a whole line if that
// line is shorter than mostPartial, and later in the line otherwise: the rest of a secret could not be masked.
func Tail(text string) (end string, cut bool) {
	text = diag.Clean(strings.ReplaceAll(text, "\r\n", "\n"))
	if len(text) <= wire.MaxTaskOutput {
		return text, false
	}
	end = text[len(text)-wire.MaxTaskOutput:]
	if i := strings.IndexByte(end[:mostPartial], '\n'); i >= 0 {
		return end[i+1:], true
	}
	return strings.ToValidUTF8(end[mostPartial:], ""), true
}
