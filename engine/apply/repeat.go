package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/plan"
)

// observe reads from the host what is left of a step that was tried at since: the step to do now,
// or nil if nothing is left. After an error whose outcomeUnknown is true it is called again later;
// any other error ends the step.
type observe func(ctx context.Context, s plan.Step, since time.Time) (left *plan.Step, err error)

// Repeat retries a step if its outcome is unknown (see outcomeUnknown). Before each retry, observe
// reports what is left to do. The pauses and the number of tries are those of Backoff. Once the
// context ended or stop was closed, nothing is tried any more.
func (b Backoff) Repeat(do Do, observe observe, stop <-chan struct{}) Do {
	b = b.complete()
	return func(ctx context.Context, s plan.Step) error {
		err := do(ctx, s)
		last := err // of do
		for try := 1; err != nil && outcomeUnknown(err); try++ {
			if try == b.Tries {
				return fmt.Errorf("tried %d times, checking the host before each retry; the outcome is still unknown: %w", try, err)
			}
			since, pause := time.Now(), b.pause(s, try)
			if end, ok := ctx.Deadline(); ok && time.Until(end) < pause {
				return err
			}
			Report(ctx, fmt.Sprintf("%s: the outcome is unknown; checking the host and retrying in %.1f s (try %d of %d): %v",
				s.Address, pause.Seconds(), try+1, b.Tries, redact(s, err)))
			if !sleep(ctx, pause, stop) {
				return err
			}
			left, observeErr := observe(ctx, s, since)
			switch {
			case observeErr != nil && outcomeUnknown(observeErr):
				err = fmt.Errorf("%w; and checking it failed: %w", last, observeErr)
			case observeErr != nil:
				return fmt.Errorf("%w; %w", err, observeErr)
			case left == nil:
				return nil
			default:
				s = *left
				err = do(ctx, s)
				last = err
			}
		}
		return err
	}
}

// outcomeUnknown reports whether any error within err says that the operation may be done, in part
// or not at all: a request without an answer, a task without an end. Only reading the host shows
// the outcome.
func outcomeUnknown(err error) bool {
	if err == nil {
		return false
	}
	if u, ok := err.(interface{ OutcomeUnknown() bool }); ok && u.OutcomeUnknown() {
		return true
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(several.Unwrap(), outcomeUnknown)
	}
	return outcomeUnknown(errors.Unwrap(err))
}
