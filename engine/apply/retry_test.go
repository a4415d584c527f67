package apply_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/plan"
)

type locked bool

func (locked) Error() string     { return "got timeout" }
func (l locked) Temporary() bool { return bool(l) }

func TestRetry(t *testing.T) {
	for name, c := range map[string]struct {
		errs       []error // one a try; none after the last
		backoff    apply.Backoff
		deadline   time.Duration
		cancel     time.Duration
		tries      int
		err        string
		least, max time.Duration
	}{
		"good at once":     {tries: 1},
		"final":            {errs: []error{locked(false), nil}, tries: 1, err: "got timeout"},
		"unknown is final": {errs: []error{errFull}, tries: 1, err: "storage is full"},
		"temporary":        {errs: []error{fmt.Errorf("put config: %w", locked(true)), locked(true)}, tries: 3, least: 1500 * time.Millisecond, max: 3 * time.Second},
		"for ever": {
			errs: []error{locked(true), locked(true), locked(true), locked(true), locked(true)}, tries: 4, err: "tried 4 times: got timeout",
			least: 3500 * time.Millisecond, max: 7 * time.Second,
		},
		"pauses are bounded": {
			errs: []error{locked(true), locked(true), locked(true), locked(true)}, backoff: apply.Backoff{Tries: 5, First: time.Minute, Most: 2 * time.Minute},
			tries: 5, least: 210 * time.Second, max: 420 * time.Second,
		},
		"a deadline that the pause would outlast": {errs: []error{locked(true)}, deadline: 400 * time.Millisecond, tries: 1, err: "got timeout"},
		"cancelled in the pause":                  {errs: []error{locked(true)}, cancel: 100 * time.Millisecond, tries: 1, err: "got timeout", least: 100 * time.Millisecond, max: 100 * time.Millisecond},
		"cancelled before":                        {errs: []error{locked(true)}, cancel: -1, tries: 1, err: "got timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.deadline > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				} else if c.cancel < 0 {
					cancel()
				}
				tries, begun := 0, time.Now()
				err := apply.Retry(func(context.Context, plan.Step) error {
					tries++
					if tries > len(c.errs) {
						return nil
					}
					return c.errs[tries-1]
				}, c.backoff)(ctx, create("vm.a"))
				took := time.Since(begun)
				if c.err == "" {
					require.NoError(t, err)
				} else {
					require.EqualError(t, err, c.err)
					require.True(t, errors.Is(err, c.errs[len(c.errs)-1]) || errors.As(err, new(locked)))
				}
				require.Equal(t, c.tries, tries)
				require.GreaterOrEqual(t, took, c.least)
				require.LessOrEqual(t, took, c.max)
			})
		})
	}
}
