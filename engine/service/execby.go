package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/tasks"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// ExecBy runs a command on push nodes of a host by a driver, without an agent, and calls each with every result, one at a time.
// Nodes that cannot be entered have a result that says why.
func ExecBy(ctx context.Context, driver engine.Driver, site *model.Site, h *model.Host, a wire.Asking, each func(wire.TaskResult) error) error {
	want, _ := site.Want(h.Name)
	if want == nil {
		return fmt.Errorf("host %s has no nodes", h.Name)
	}
	nodes := slices.Clone(a.Nodes)
	for _, n := range want.Nodes {
		if len(a.Nodes) == 0 && (a.Manifest == "" || n.Manifest.Name == a.Manifest) && (a.Spec == "" || n.Spec == a.Spec) {
			nodes = append(nodes, n.Name)
		}
	}
	slices.Sort(nodes)
	host := *want // without what is inside of guests, which is not read
	host.State = maps.Clone(want.State)
	inside := map[string]*model.Resource{}
	maps.DeleteFunc(host.State, func(_ model.Address, r *model.Resource) bool {
		if r.Inside == (model.Address{}) {
			return false
		}
		inside[r.Node] = r
		return true
	})
	have, err := driver.Observe(ctx, &host)
	if err != nil {
		return err
	}
	if e, ok := driver.(enterer); ok {
		e.Enter(want)
	}
	var all sync.WaitGroup
	var mutex sync.Mutex // for errs, and each
	var errs error
	slots := make(chan struct{}, max(1, a.Parallel))
	for _, node := range slices.Compact(nodes) {
		t := wire.Task{ID: wire.NewTaskID(), Kind: wire.TaskRun, Node: node, Command: a.Command, Timeout: a.Timeout}
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			var r wire.TaskResult
			if m, err := enter(driver, have, want, inside[node], node); err != nil {
				r = failedTask(t, err)
			} else {
				r = tasks.Run(ctx, m, t)
			}
			r.Output, r.Error = site.Secrets.Mask(r.Output), site.Secrets.Mask(r.Error)
			mutex.Lock()
			defer mutex.Unlock()
			errs = errors.Join(errs, each(r))
		})
	}
	all.Wait()
	return errors.Join(errs, context.Cause(ctx))
}

// enter is the way into a node. Inside is what the site has in it, nil for nothing that is pushed.
func enter(driver engine.Driver, have model.Observed, want *model.Want, inside *model.Resource, node string) (guest.Machine, error) {
	switch {
	case slices.ContainsFunc(slices.Collect(maps.Values(want.Nodes)), func(n *model.Node) bool { return n.Name == node && n.TakesCommands() }):
		return nil, fmt.Errorf("node %s is in mode pull, and takes commands from the agent of host %s", node, want.Host.Name)
	case inside == nil:
		return nil, noWayInto(node, want.Host.Name, want)
	case inside.Deferred != "":
		return nil, fmt.Errorf("node %s cannot be entered: %s", node, inside.Deferred)
	}
	at := have.State[inside.Inside]
	if at == nil || at.Guest == nil || !at.Guest.Running {
		return nil, fmt.Errorf("node %s does not run", node)
	}
	if m := driver.Machine(inside.Addr, *at.Guest, nil); m != nil {
		return m, nil
	}
	return nil, errors.New("no access to the guests of this host is configured")
}
