package converge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// Options configure how a spec is applied.
type Options struct {
	// Confirm proves from outside that the machine can still be reached after a step that
	// could lock us out: by a fresh connection, not by one that is open already. It may try
	// again until ctx ends. After a step that changes the address, further commands must go over
	// the new one. Nil: a further command over the same machine suffices, and the Check of the step.
	Confirm func(ctx context.Context, want *spec.Spec, step aspect.Step) error
	// Parent requests a response from the parent over a fresh connection. If the machine applies its own spec, a
	// change of its network is kept only if there is one. Nil: it has no parent.
	Parent func(ctx context.Context) error
	// ConfirmWithin limits the time of that; a minute unless set. The machine restores its
	// old state after twice that time.
	ConfirmWithin time.Duration
	// Started is called before each step. May be nil.
	Started func(step aspect.Step)
	// Progress is called while a step takes long, with what it waits for or how far it is, each time that this
	// changes. It is called from another goroutine, but never twice at once. May be nil.
	Progress func(step aspect.Step, state string)
	// ProgressEvery is the interval at which a step is asked for its progress; five seconds unless set.
	ProgressEvery time.Duration
	// Stop is closed when the apply is to end before its next step, with ErrStopped. May be nil.
	Stop <-chan struct{}
	// WaitFor is the time that a step waits; five minutes unless set.
	WaitFor time.Duration
}

// ErrStopped ends an apply by Options.Stop. Applying again goes on.
var ErrStopped = errors.New("stopped before this step")

func (o *Options) stopped() error {
	select {
	case <-o.Stop:
		return ErrStopped
	default:
		return nil
	}
}

// rounds is the number of times that the machine is read and changed before what is still different
// counts as failed: a package that is installed in the first may start a service that
// shall not run.
const rounds = 3

// Apply makes the machine what the spec says, and reads it to see that it is. It gives
// the last observation. After an error some steps may be done; applying again goes on.
func Apply(ctx context.Context, m Machine, want *spec.Spec, o Options) (*State, error) {
	s, err := Observe(ctx, m, want)
	if err != nil {
		return nil, err
	}
	return s.Converge(ctx, m, o)
}

// Converge is Apply for a machine that was just observed.
func (s *State) Converge(ctx context.Context, m Machine, o Options) (*State, error) {
	for round := 1; ; round++ {
		steps := s.Steps()
		if len(steps) == 0 {
			return s, s.finished()
		}
		if round > rounds {
			return s, fmt.Errorf("applying the spec to %s had no effect on %s", s.Want.Node, s.Changes()[0])
		}
		if err := s.Apply(ctx, m, steps, o); err != nil && (round == rounds || !errors.As(err, new(*staleError))) {
			return s, err
		}
		var err error
		if s, err = Observe(ctx, m, s.Want); err != nil {
			return nil, err
		}
	}
}

// finished reports what an apply leaves undone.
func (s *State) finished() error {
	if changes := s.Changes(); len(changes) > 0 {
		return fmt.Errorf("no step changes %s on %s", changes[0], s.Want.Node)
	}
	if len(s.Unknown) > 0 {
		return fmt.Errorf("%s of %s could not be read: %s", s.Unknown[0].Aspect, s.Want.Node, s.Unknown[0].Why)
	}
	return nil
}

// Apply runs steps of this state one after the other, and stops at the first failure. If packages could not be
// fetched, steps that do not need them continue; if a user of the machine blocks a step, all others do. See aside.
func (s *State) Apply(ctx context.Context, m Machine, steps []aspect.Step, o Options) error {
	r := runner{m: m, o: o, want: s.Want, now: s.Record, sum: s.sum}
	var a aside
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := o.stopped(); err != nil {
			return errors.Join(r.flush(ctx), fmt.Errorf("%s: %s: %w", s.Want.Node, step.Text, err))
		}
		waits, err := a.waits(ctx, &r, step)
		if err == nil && !waits {
			if o.Started != nil {
				o.Started(step)
			}
			err = r.step(ctx, step)
		}
		if err != nil && a.takes(step, err) {
			err = r.reread(ctx)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", s.Want.Node, step.Text, err)
		}
	}
	if err := r.flush(ctx); err != nil {
		return err
	}
	return a.result(s.Want.Node)
}

// runner runs the steps of one apply. now is what the record should be, and sum that of
// the file on the machine.
type runner struct {
	m    Machine
	o    Options
	want *spec.Spec
	now  *guest.Record
	sum  string
	next *guest.Record // what the record is instead if the script of a step that failed got so far; nil before any

	state string // that a step reported last; see watched
}

// reread finds out what a step that failed has left of the record.
func (r *runner) reread(ctx context.Context) error {
	out, err := r.run(ctx, "sum "+guest.RecordFile)
	if err != nil {
		return err
	}
	switch sum := strings.TrimSpace(out); {
	case r.next != nil && sum == guest.ContentSum(r.next.Text()):
		r.now, r.sum = r.next, sum
	case sum != r.sum:
		return &staleError{guest.RecordFile + " has changed since it was read"}
	}
	return nil
}

// await waits until nothing is in the way of a step.
func (r *runner) await(ctx context.Context, s aspect.Step) error {
	most := cmp.Or(r.o.WaitFor, 5*time.Minute)
	for began := time.Now(); ; {
		_, err := r.run(ctx, s.Wait)
		var busy *busyError
		if !errors.As(err, &busy) {
			return err
		}
		if err := r.o.stopped(); err != nil {
			return err
		}
		if r.o.Progress != nil {
			r.o.Progress(s, "waiting, since "+busy.text)
		}
		if waited := time.Since(began); waited >= most {
			return fmt.Errorf("%w, for more than %s: wait until it ends, or stop it, and apply again", err, most)
		}
	}
}

func (r *runner) step(ctx context.Context, s aspect.Step) error {
	if s.Wait != "" {
		if err := r.await(ctx, s); err != nil {
			return err
		}
	}
	if s.Ask != "" {
		out, err := r.watched(ctx, s, "set -e\n"+guest.Lock+s.Ask)
		if err != nil {
			return err
		}
		if s.Learn != nil {
			s.Learn(out, &s)
		}
	}
	before := r.now.With(s.Keep)
	r.next = before
	after := before.Without(s.Drop).With(s.After)
	body := "set -e\n" + guest.Lock + staleCheck(r.sum) + writeRecord(before, r.sum)
	if s.Restore != "" {
		body += r.arm(s)
	}
	body += s.Script
	if s.Change != "" {
		body += launch(s)
	}
	if s.Restore != "" {
		after = before // the rest is recorded once it is confirmed
	} else {
		body += s.Finish + writeRecord(after, guest.ContentSum(before.Text()))
	}
	out, err := r.watched(ctx, s, body)
	if s.Change != "" && errors.Is(err, guest.ErrOutcomeLost) && ctx.Err() == nil {
		err = nil // it cuts the connection; whether it began is read with how it ended
	}
	if err != nil {
		return err
	}
	r.now, r.sum = after, guest.ContentSum(after.Text())
	if s.Done != nil {
		s.Done(out, &s)
		r.now = r.now.Without(s.Drop).With(s.After)
	}
	if s.Restore != "" {
		return r.confirm(ctx, s)
	}
	return nil
}

// flush writes what the record has learned since it was written.
func (r *runner) flush(ctx context.Context) error {
	text := writeRecord(r.now, r.sum)
	if text == "" {
		return nil
	}
	_, err := r.run(ctx, "set -e\n"+guest.Lock+staleCheck(r.sum)+text)
	if err != nil {
		return fmt.Errorf("writing the record of %s: %w", r.want.Node, err)
	}
	r.sum = guest.ContentSum(r.now.Text())
	return nil
}

func staleCheck(sum string) string {
	return "[ \"$(sum " + guest.RecordFile + ")\" = " + guest.Quote(sum) + " ] || stale 'the record of this machine'\n"
}

// writeRecord writes a command that replaces the record, nothing if it is so already.
func writeRecord(r *guest.Record, sum string) string {
	text := r.Text()
	if guest.ContentSum(text) == sum {
		return ""
	}
	return "[ -d " + guest.RecordFolder + " ] || mkdir -m 0755 " + guest.RecordFolder + "\n" + guest.PutFile(guest.RecordFile, text, "0600", "root", "root") + "\n"
}

// staleError reports that the machine is not as it was observed.
type staleError struct{ text string }

func (e *staleError) Error() string { return e.text }

// busyError reports that another program is in the way.
type busyError struct{ text string }

func (e *busyError) Error() string { return e.text }

// blockedError reports that a user other than root blocks a step.
type blockedError struct{ text string }

func (e *blockedError) Error() string { return e.text }

// failedError reports that a script of a step failed on the machine, and why.
type failedError struct{ text string }

func (e *failedError) Error() string { return e.text }

// watched is run for a script that may take long: meanwhile it asks how far the step is.
func (r *runner) watched(ctx context.Context, s aspect.Step, body string) (string, error) {
	if s.State == "" || r.o.Progress == nil {
		return r.run(ctx, body)
	}
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		every := time.NewTicker(cmp.Or(r.o.ProgressEvery, 5*time.Second))
		defer every.Stop()
		for {
			select {
			case <-watching.Done():
				return
			case <-every.C:
			}
			// Errors are ignored here: the step itself shows whether the machine is reachable.
			if state, err := r.run(watching, s.State); err == nil && state != r.state && strings.TrimSpace(state) != "" {
				r.state = state
				r.o.Progress(s, diag.Clean(strings.TrimSpace(state)))
			}
		}
	})
	out, err := r.run(ctx, body)
	stop()
	watch.Wait()
	return out, err
}

// run runs a script on the machine, and gives what it printed.
func (r *runner) run(ctx context.Context, body string) (string, error) {
	out, err := r.m.Run(ctx, guest.Script(body))
	switch {
	case err != nil:
		return "", err
	case out.Code == guest.ExitStale:
		return "", &staleError{ending(out)}
	case out.Code == guest.ExitBusy:
		return "", &busyError{guest.Excerpt(out.Err)}
	case out.Code == guest.ExitBlocked:
		return "", &blockedError{guest.Excerpt(out.Err)}
	case out.Code == 1 && out.Err != "":
		return "", &failedError{guest.Excerpt(out.Err)}
	case out.Code != 0 || out.Signal != 0:
		return "", &failedError{"the script ended with " + ending(out)}
	}
	return out.Out, nil
}
