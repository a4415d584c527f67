package model_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
)

func suspendable() *model.Site {
	s := &model.Site{Hosts: map[string]*model.Host{"father": {Name: "father"}, "mother": {Name: "mother"}}, Manifests: map[string]*model.Manifest{}}
	for name, host := range map[string]string{"web": "father", "db": "father", "mail": "mother"} {
		m := &model.Manifest{Name: name, Host: host}
		addr := model.Address{Kind: "vm", Name: name}
		m.Nodes = []*model.Node{{Name: name, Manifest: m, Resource: &model.Resource{Addr: addr, Manifest: name, Node: name}}}
		s.Manifests[name] = m
	}
	s.Resolved = map[string]*model.Want{"father": {}, "mother": {}}
	return s
}

func TestSuspendMakesACopy(t *testing.T) {
	s := suspendable()
	c := s.Suspend("web", "gone", "mail").Suspend("gone")
	w, found := c.Want("father")
	require.Empty(t, found)
	require.Equal(t, []model.Address{{Kind: "vm", Name: "db"}}, w.State.Addresses())
	require.Equal(t, map[string]bool{"web": true, "gone": true, "mail": true}, w.Suspended)
	require.Equal(t, []model.Deferred{
		{Address: "manifest.gone", Why: "suspended: what remains of it stays"},
		{Address: "manifest.mail", Why: "suspended: what remains of it stays"},
		{Address: "manifest.web", Why: "suspended: unchanged"},
	}, w.Deferred)
	require.Same(t, c.Manifests["web"], c.Manifests["web"].Nodes[0].Manifest)

	require.False(t, s.Manifests["web"].Suspend, "the site itself stays as it was")
	require.Empty(t, s.Suspended)
	require.Same(t, s.Manifests["web"], s.Manifests["web"].Nodes[0].Manifest)
	require.Len(t, s.Resolved, 2)
	require.Same(t, s.Manifests["db"], c.Manifests["db"], "what is not suspended is shared")

	s.Resolved = nil
	bound, err := c.Bind("web", "mother")
	require.NoError(t, err)
	w, _ = bound.Want("mother")
	require.Len(t, w.State, 1, "test runs what is suspended, too")
}

func TestTasksAreNotedByWhoeverWorksOnAStep(t *testing.T) {
	model.RecordTask(t.Context(), "UPID:nobody listens")
	var tasks model.Tasks
	ctx, cancel := context.WithCancel(tasks.With(t.Context()))
	defer cancel()
	var workers sync.WaitGroup
	for range 10 {
		workers.Go(func() {
			model.RecordTask(ctx, "UPID:1")
			model.RecordTask(ctx, "")
		})
	}
	workers.Wait()
	model.RecordTask(ctx, "UPID:2")
	require.Equal(t, []string{"UPID:1", "UPID:2"}, tasks.IDs())
}
