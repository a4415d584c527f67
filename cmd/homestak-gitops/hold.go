package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

const (
	holdPatience = 10 * time.Minute       // for an agent to come to the end of its pass
	holdNote     = 300 * time.Millisecond // after so long the user is told what is waited for
)

// agentOf finds the agent of a host on this machine, if one runs: one that says it
// converges a host of that name and, if it knows already, of that API. Without one it
// gives nil. One that may not be asked is an error, since it may well be that one.
func (a *app) agentOf(ctx context.Context, h *model.Host) (*remote, error) {
	f := &agentFlags{}
	cfg, _ := a.agentConfig(f)
	r, err := a.findAgent(ctx, f, cfg)
	if errors.Is(err, errNoAgent) && cfg.from["data_dir"] != "default" {
		// Whose locks are elsewhere still shares the host with the agent of the machine.
		r, err = dialAgent(ctx, standardSocket)
	}
	switch {
	case errors.Is(err, errNoAgent):
		return nil, nil //nolint:nilnil // no agent is the usual case, and nothing wrong
	case err != nil:
		return nil, fmt.Errorf("%w\nwithout it two writers could meet; if that agent converges another host, set HOMESTAK_SOCKET=%s", err, noSocket)
	}
	api := strings.TrimRight(h.API, "/")
	if r.card.Identity != h.Name || r.card.API != "" && r.card.API != api {
		return nil, nil //nolint:nilnil // it is the agent of another host
	}
	return r, nil
}

// hold keeps the agent of a host, if one runs, from beginning a pass until the returned
// function is called or this process ends. It waits for the pass under way, but not
// for ever.
func (a *app) hold(h *model.Host, verb string) (release func(), err error) {
	ctx, cancel := a.stopping.soon(a.stopping.ctx)
	r, err := a.agentOf(ctx, h)
	if err != nil || r == nil {
		cancel()
		return func() {}, err
	}
	type answer struct {
		res *http.Response
		err error
	}
	granted := make(chan answer, 1)
	go func() {
		res, err := r.send(ctx, http.MethodPost, "/hold?who="+url.QueryEscape(whoami())+"&verb="+url.QueryEscape(verb), nil) //nolint:bodyclose // it stays open as long as the hold
		granted <- answer{res, err}
	}()
	note, patience := time.NewTimer(holdNote), time.NewTimer(holdPatience)
	defer note.Stop()
	defer patience.Stop()
	for {
		select {
		case got := <-granted:
			if got.err != nil {
				cancel()
				return nil, because(ctx, got.err)
			}
			if verb == "apply" {
				a.ui.notef("an agent converges host %s: what git does not say, it puts back at its next look", h.Name)
			}
			return func() { _ = got.res.Body.Close(); cancel() }, nil
		case <-note.C:
			a.ui.notef("%s; waiting", a.busy(ctx, r))
		case <-patience.C:
			cancel()
			if got := <-granted; got.err == nil {
				_ = got.res.Body.Close()
			}
			return nil, &ending{exitRefused, fmt.Errorf("the agent of host %s did not come to an end within %s\nsee what it does: homestak-gitops status", h.Name, span(holdPatience))}
		}
	}
}

// busy says what the agent is at.
func (*app) busy(ctx context.Context, r *remote) string {
	var s agent.Status
	if err := r.get(ctx, "/status", &s); err != nil || s.Running == nil {
		return "the agent of host " + r.card.Identity + " is at work"
	}
	text := fmt.Sprintf("the agent is converging host %s", r.card.Identity)
	if s.Running.Steps > 0 {
		text += fmt.Sprintf(", %d of %s done", s.Running.Done, count(s.Running.Steps, "step"))
	}
	if s.Running.Seconds > 0 {
		text += ", about " + span(time.Duration(s.Running.Seconds*float64(time.Second))) + " left"
	}
	return text
}

// agentAllowsDestroy refuses to destroy a manifest that the agent of the host deploys,
// since it would only make it again. With suspend the agent is told to leave the
// manifest alone first; that stays until it is resumed.
func (a *app) agentAllowsDestroy(ctx context.Context, h *model.Host, manifest string, suspend bool) error {
	r, err := a.agentOf(ctx, h)
	if err != nil || r == nil {
		return err
	}
	if r.card.Manifests != nil && !slices.Contains(r.card.Manifests, manifest) {
		return nil
	}
	var s agent.Status
	if err := r.get(ctx, "/status", &s); err != nil {
		return err
	}
	covered := func(sus ledger.Suspension) bool { return sus.Manifest == "" || sus.Manifest == manifest }
	switch {
	case slices.ContainsFunc(s.Suspended, covered):
		return nil
	case !suspend:
		return &ending{exitRefused, fmt.Errorf("the agent of host %s deploys manifest %s: it would only create it again\n"+
			"remove it in git and push, which destroys it too; or say --suspend, and the agent leaves it alone until it is resumed", h.Name, manifest)}
	}
	if _, err := r.suspend(ctx, ledger.Suspension{Manifest: manifest, Reason: "destroyed by hand"}, 0); err != nil {
		return err
	}
	a.ui.notef("manifest %s is suspended in the agent of host %s; it makes it again after: homestak-gitops resume -M %s", manifest, h.Name, manifest)
	return nil
}
