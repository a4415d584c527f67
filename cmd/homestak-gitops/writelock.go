package main

import (
	"context"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/view"
)

// lock takes the write lock of a host until the returned function is called: the agent of
// that host is paused, if one runs on this machine, and the lock file keeps every other
// process away. Waiting ends with the process's context.
//
//nolint:contextcheck,nolintlint // it is meant; the linter looks for this line at its callers
func (a *app) lock(h *model.Host, verb string) (release func(), err error) {
	resume, err := pauseAgent(a, h, verb)
	if err != nil {
		return nil, err
	}
	dir, err := service.LockDir(a.env)
	if err != nil {
		resume()
		return nil, err
	}
	unlock, err := control.LockHost(dir, h, verb)
	if err != nil {
		resume()
		return nil, err
	}
	return func() { unlock(); resume() }, nil
}

// pauseAgent keeps the agent of a host, if one runs, from beginning a pass.
func pauseAgent(a *app, h *model.Host, verb string) (release func(), err error) {
	ctx, cancel := a.stopping.soon(a.stopping.ctx)
	c, err := agentOf(ctx, a, h)
	if err != nil || c == nil {
		cancel()
		return func() {}, err
	}
	resume, err := c.Pause(ctx, verb, func(s agent.Status) { a.ui.notef("%s; waiting", view.Busy(h.Name, s)) })
	if err != nil {
		cancel()
		return nil, err
	}
	if verb == "apply" {
		a.ui.notef("an agent converges host %s: what git does not say, it puts back at its next look", h.Name)
	}
	return func() { resume(); cancel() }, nil
}

// agentOf finds the agent of a host, nil if none runs on this machine.
func agentOf(ctx context.Context, a *app, h *model.Host) (*control.Client, error) {
	cfg, _ := service.ReadConfig(service.Flags{Asks: true}, a.env)
	return cfg.Search().OfHost(ctx, h)
}

// agentAllowsDestroy refuses to destroy a manifest that the agent of the host deploys; see
// control.Client.AllowDestroy.
func agentAllowsDestroy(ctx context.Context, a *app, h *model.Host, manifest string, suspend bool) error {
	c, err := agentOf(ctx, a, h)
	if err != nil || c == nil {
		return err
	}
	suspended, err := c.AllowDestroy(ctx, manifest, suspend)
	if suspended {
		a.ui.notef("manifest %s is suspended in the agent of host %s; it makes it again after: homestak-gitops resume -M %s", manifest, h.Name, manifest)
	}
	return err
}
