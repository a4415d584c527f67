package apply_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

type locker struct {
	Password string            `hcl:"password" secret:"true"`
	Comment  string            `hcl:"comment"`
	Options  map[string]string `hcl:"options"`
}

// What a host says of a value that it does not like goes into logs and receipts, the
// value does not.
func TestAnErrorDoesNotRepeatSecrets(t *testing.T) {
	cause := errors.New("cause")
	step := plan.Step{
		Address: model.Address{Kind: "locker", Name: "a"}, Action: plan.Update,
		Want: &model.Resource{
			Spec:      &locker{Password: "hunter2 & more", Comment: "plain comment", Options: map[string]string{"args": "t0ken!"}},
			Sensitive: []string{"options.args"},
		},
		Changes: []plan.Change{{Path: "keys", Before: "older-secret", After: []string{"newer-secret", "x"}, Sensitive: true}},
	}
	results := apply.Run(t.Context(), []plan.Step{step}, apply.Options{}, func(context.Context, plan.Step) error {
		return fmt.Errorf("400: bad 'hunter2 & more' or 'hunter2+%%26+more' of plain comment, t0ken!, older-secret, newer-secret, x: %w", cause)
	})
	require.Equal(t, "400: bad '(sensitive)' or '(sensitive)' of plain comment, (sensitive), (sensitive), (sensitive), x: cause", results[0].Err.Error())
	require.ErrorIs(t, results[0].Err, cause)
}
