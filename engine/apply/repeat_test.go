package apply_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// lost is an error that leaves open what was done.
type lost string

func (l lost) Error() string      { return string(l) }
func (lost) OutcomeUnknown() bool { return true }

func TestOutcomeUnknown(t *testing.T) {
	for _, err := range []error{
		lost("x"), fmt.Errorf("starting: %w", lost("x")), errors.Join(errors.New("one"), lost("x")),
		fmt.Errorf("%w; and %w", locked(true), fmt.Errorf("again: %w", lost("x"))),
	} {
		require.True(t, apply.OutcomeUnknown(err), err.Error())
	}
	for _, err := range []error{nil, errors.New("no"), fmt.Errorf("starting: %w", locked(true)), errors.Join(errors.New("one"), errors.New("two"))} {
		require.False(t, apply.OutcomeUnknown(err))
	}
}

// TestRepeat: looks before each further try, and does what the look leaves.
func TestRepeat(t *testing.T) {
	web := plan.Step{Address: model.Address{Kind: "vm", Name: "web"}, Action: plan.Create, VMID: 100}
	other := web
	other.VMID = 101
	for name, c := range map[string]struct {
		answers []error // of the step, in turn
		looks   []any   // *plan.Step or error or nil, in turn
		done    []int   // VMIDs that were tried
		err     string
		most    time.Duration
	}{
		"done at once":            {answers: []error{nil}, done: []int{100}},
		"refused":                 {answers: []error{errors.New("no")}, done: []int{100}, err: "no"},
		"nothing is left":         {answers: []error{lost("596")}, looks: []any{nil}, done: []int{100}, most: time.Second},
		"the same is left":        {answers: []error{lost("596"), nil}, looks: []any{&web}, done: []int{100, 100}, most: time.Second},
		"something else is left":  {answers: []error{lost("596"), lost("596"), nil}, looks: []any{&other, &other}, done: []int{100, 101, 101}, most: 3 * time.Second},
		"then it is refused":      {answers: []error{lost("596"), errors.New("no")}, looks: []any{&web}, done: []int{100, 100}, err: "no", most: time.Second},
		"it must not go on":       {answers: []error{lost("596")}, looks: []any{errors.New("plan again")}, done: []int{100}, err: "596; plan again", most: time.Second},
		"first it cannot be seen": {answers: []error{lost("596"), nil}, looks: []any{lost("dark"), &web}, done: []int{100, 100}, most: 3 * time.Second},
		"it can never be seen": {
			answers: []error{lost("596")}, looks: []any{lost("dark"), lost("dark"), lost("dark")}, done: []int{100}, most: 7 * time.Second,
			err: "tried 4 times, checking the host before each retry; the outcome is still unknown: 596; and checking it failed: dark",
		},
		"never": {
			answers: []error{lost("1"), lost("2"), lost("3"), lost("4")}, looks: []any{&web, &web, &web}, done: []int{100, 100, 100, 100}, most: 7 * time.Second,
			err: "tried 4 times, checking the host before each retry; the outcome is still unknown: 4",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var done []int
				answers, looks := c.answers, c.looks
				do := func(_ context.Context, s plan.Step) error {
					done = append(done, s.VMID)
					err := answers[0]
					answers = answers[1:]
					return err
				}
				look := func(_ context.Context, _ plan.Step, since time.Time) (*plan.Step, error) {
					require.True(t, time.Now().After(since))
					next := looks[0]
					looks = looks[1:]
					switch next := next.(type) {
					case error:
						return nil, next
					case *plan.Step:
						return next, nil
					default:
						return nil, nil //nolint:nilnil // nothing is left
					}
				}
				began := time.Now()
				err := apply.Repeat(do, look, apply.Backoff{}, nil)(t.Context(), web)
				if c.err == "" {
					require.NoError(t, err)
				} else {
					require.EqualError(t, err, c.err)
				}
				require.Equal(t, c.done, done)
				require.Empty(t, answers)
				require.Empty(t, looks)
				require.LessOrEqual(t, time.Since(began), c.most)
				require.GreaterOrEqual(t, time.Since(began), c.most/2)
			})
		})
	}
}

// TestRepeatIsLeft: nothing is tried once the run shall stop, or past the time of a step.
// What goes on is a note, without secrets.
func TestRepeatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		tries := 0
		do := func(context.Context, plan.Step) error {
			tries++
			return lost("596: password hunter22")
		}
		look := func(_ context.Context, s plan.Step, _ time.Time) (*plan.Step, error) { return &s, nil }
		again := apply.Repeat(do, look, apply.Backoff{}, stop)
		s := plan.Step{
			Address: model.Address{Kind: "vm", Name: "web"}, Action: plan.Create,
			Changes: []plan.Change{{Path: "password", After: "hunter22", Sensitive: true}},
		}
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.ErrorContains(t, again(short, s), "596")
		require.Equal(t, 1, tries)

		var notes []string
		results := apply.Run(t.Context(), []plan.Step{s}, apply.Options{Stop: stop, Notify: func(e apply.Event) {
			if e.What != apply.Note {
				return
			}
			require.Equal(t, s.Address, e.Step.Address)
			notes = append(notes, e.Text)
			if len(notes) == 2 {
				close(stop)
			}
		}}, again)
		require.Equal(t, 3, tries)
		require.Equal(t, apply.Failed, results[0].Status)
		require.Len(t, notes, 2)
		require.True(t, strings.HasPrefix(notes[0], "vm.web: the outcome is unknown; checking the host and retrying in 0."), notes[0])
		require.Contains(t, notes[1], "(try 3 of 4): 596: password (sensitive)")
	})
}
