package control

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/ledger"
)

const (
	pauseLimit = 10 * time.Minute       // for an agent to complete its pass
	pauseNote  = 300 * time.Millisecond // after so long the user learns what the program waits for
)

// Pause keeps the agent from starting a pass until the returned function is called, the context or
// this process ends. It waits for the pass under way, at most 10 minutes, and then gives a
// *RefusedError. If it has to wait, it calls waiting once, with the status of the agent; that is
// the zero value if the agent did not answer.
func (c *Client) Pause(ctx context.Context, verb string, waiting func(agent.Status)) (release func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	type answer struct {
		res *http.Response
		err error
	}
	granted := make(chan answer, 1)
	go func() {
		res, err := c.send(ctx, http.MethodPost, "/hold?who="+url.QueryEscape(Whoami())+"&verb="+url.QueryEscape(verb), nil) //nolint:bodyclose // it stays open as long as the agent is paused
		granted <- answer{res, err}
	}()
	note, limit := time.NewTimer(pauseNote), time.NewTimer(pauseLimit)
	defer note.Stop()
	defer limit.Stop()
	for {
		select {
		case got := <-granted:
			if got.err != nil {
				cancel()
				return nil, got.err
			}
			return func() { _ = got.res.Body.Close(); cancel() }, nil
		case <-note.C:
			s, err := c.Status(ctx)
			if err != nil {
				s = agent.Status{}
			}
			waiting(s)
		case <-limit.C:
			cancel()
			if got := <-granted; got.err == nil {
				_ = got.res.Body.Close()
			}
			return nil, refusedf("the agent of host %s did not complete its pass within 10 min\nsee what it does: homestak-gitops status", c.Card.Identity)
		}
	}
}

// AllowDestroy refuses to destroy a manifest that the agent deploys, since it would only create it again. With
// suspend it first suspends the agent for the manifest until it is resumed; suspended says that this was necessary.
func (c *Client) AllowDestroy(ctx context.Context, manifest string, suspend bool) (suspended bool, err error) {
	if c.Card.Manifests != nil && !slices.Contains(c.Card.Manifests, manifest) {
		return false, nil
	}
	s, err := c.Status(ctx)
	if err != nil {
		return false, err
	}
	covered := func(sus ledger.Suspension) bool { return sus.Manifest == "" || sus.Manifest == manifest }
	switch {
	case slices.ContainsFunc(s.Suspended, covered):
		return false, nil
	case !suspend:
		return false, refusedf("the agent of host %s deploys manifest %s: it would only create it again\n"+
			"remove it in git and push, which destroys it too; or add --suspend: the agent then ignores it until it is resumed", c.Card.Identity, manifest)
	}
	_, err = c.Suspend(ctx, ledger.Suspension{Manifest: manifest, Reason: "destroyed by hand"}, 0)
	return err == nil, err
}

// Suspend creates a suspension in the name of the current user, for a time; 0 means until it is resumed.
func (c *Client) Suspend(ctx context.Context, s ledger.Suspension, span time.Duration) (ledger.Suspension, error) {
	s.By = Whoami()
	if span > 0 {
		end := time.Now().UTC().Add(span).Truncate(time.Second)
		s.Until = &end
	}
	var recorded ledger.Suspension
	err := c.post(ctx, "/suspend", s, &recorded)
	return recorded, err
}

// Resume ends the suspension of a manifest, or of everything for "". It is a *ProblemError if
// there is none.
func (c *Client) Resume(ctx context.Context, manifest string) error {
	return c.post(ctx, "/resume", map[string]string{"manifest": manifest, "by": Whoami()}, nil)
}
