package node_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/specserve/node"
)

// broken is a machine that cannot be reached.
type broken struct{ err error }

func (b broken) Run(context.Context, guest.Command) (guest.Output, error) {
	return guest.Output{}, b.err
}

// An attempt that fails is recorded; one that somebody stopped is not a failure.
func TestApplyRecordsFailure(t *testing.T) {
	f := node.Folder{Path: t.TempDir()}
	_, err := f.Store([]byte(one))
	require.NoError(t, err)
	want, err := f.Spec()
	require.NoError(t, err)

	_, err = node.Node{Folder: f, Machine: broken{errors.New("the disk is full")}}.Apply(t.Context(), want)
	require.ErrorContains(t, err, "the disk is full")
	failed, err := f.Failed()
	require.NoError(t, err)
	require.Equal(t, "E500", failed.Code)
	require.Contains(t, failed.Message, "the disk is full")

	stopped, stop := context.WithCancel(t.Context())
	stop()
	_, err = node.Node{Folder: f, Machine: broken{stopped.Err()}}.Apply(stopped, want)
	require.ErrorIs(t, err, context.Canceled)
	failed, err = f.Failed()
	require.NoError(t, err)
	require.Equal(t, 1, failed.Attempts)
	done, err := f.Complete()
	require.NoError(t, err)
	require.Nil(t, done)
}

// The plan of a machine by itself has the form of every other plan.
func TestPlan(t *testing.T) {
	want, err := spec.Read([]byte(`{"version":1,"node":"web-1","spec":"base","identity":{"hostname":"web-1"}}`))
	require.NoError(t, err)
	s := &converge.State{Want: want, Have: spec.Empty("web-1"), Unmanaged: []string{"user bob"}, Unknown: []converge.Unknown{{Aspect: "packages", Why: "dpkg is broken"}}}
	p := node.Plan(s, time.Now())
	require.Equal(t, "user bob on web-1 is unmanaged", p.Findings[0].Summary)
	require.Equal(t, "packages of web-1", p.Unknown[0].Scope)
}
