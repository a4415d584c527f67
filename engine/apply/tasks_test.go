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
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

type busyError struct{ error }

func (busyError) Temporary() bool { return true }

// Every task of a step stands in its result: of each try, and of the way back.
func TestResultsNameTheTasksOfTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		do := func(ctx context.Context, s plan.Step) error {
			n++
			model.RecordTask(ctx, fmt.Sprintf("%s %s %d", s.Action, s.Address.Name, n))
			<-time.After(time.Second)
			switch {
			case n == 1:
				return busyError{errors.New("locked")}
			case s.Address.Name == "b":
				return errors.New("no")
			default:
				return nil
			}
		}
		steps := []plan.Step{
			{Address: model.Address{Kind: "vm", Name: "a"}, Action: plan.Create, Manifest: "web"},
			{Address: model.Address{Kind: "vm", Name: "b"}, Action: plan.Create, Manifest: "web"},
			{Address: model.Address{Kind: "vm", Name: "c"}, Action: plan.Create, Manifest: "web"},
		}
		told := map[string][]string{}
		results := apply.Run(t.Context(), steps, apply.Options{
			Width: 1, OnError: func(string) string { return apply.Rollback },
			Notify: func(e apply.Event) {
				if e.What == apply.Finished {
					told[e.Step.Address.Name] = append(told[e.Step.Address.Name], e.Result.Tasks...)
				}
			},
		}, apply.Retry(do, apply.Backoff{}))
		require.Equal(t, []string{"create a 1", "create a 2", "delete a 5"}, results[0].Tasks)
		require.Equal(t, apply.RolledBack, results[0].Status)
		require.Equal(t, []string{"create b 3", "delete b 4"}, results[1].Tasks)
		require.Empty(t, results[2].Tasks, "it was not begun")
		require.Equal(t, results[0].Tasks, told["a"])
	})
}
