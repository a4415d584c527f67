package session

import (
	"context"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/view"
)

// PassOver begins a pass over what a scope says.
func (s *Session) PassOver(h *model.Host, sc plan.Scope) (*engine.Pass, error) {
	p := s.Pass(h, "")
	for _, text := range sc.Targets {
		addr, err := model.FindIn(s.Desired.Site, text)
		if err != nil {
			return nil, fmt.Errorf("--target: %w", err)
		}
		p.Targets = append(p.Targets, addr)
	}
	p.Manifest, p.RefreshOnly, p.AllowDeletes, p.AllowOrphans = sc.Manifest, sc.RefreshOnly, sc.AllowDeletes, sc.AllowOrphans
	return p, nil
}

// Observe runs a pass that only plans, and shows what it waits for.
func (s *Session) Observe(ctx context.Context, p *engine.Pass) engine.Report {
	progress := s.ui.Terminal().Watch()
	defer progress.Close()
	progress.Waits(view.Observing(p.Host))
	return p.Run(ctx)
}

// PolicyDocument is the input of rules for this site and, with planned, for a plan of its host. It is returned even
// if the rules deny it.
func (s *Session) PolicyDocument(ctx context.Context, planned bool) (map[string]any, error) {
	if err := s.CheckLoaded(); err != nil {
		return nil, err
	}
	if !planned {
		return s.PolicyInput()
	}
	m, h, err := s.choice()
	if err != nil {
		return nil, err
	}
	if err := site.CheckDeployed(m, "plan", h); err != nil {
		return nil, err
	}
	p, err := s.PassOver(h, s.Flags.Scope(nil))
	if err != nil {
		return nil, err
	}
	p.Load = func(context.Context) engine.Desired {
		return engine.Desired{Site: s.Desired.Site, Commit: s.Desired.Commit} // without the rules that would deny it
	}
	r := s.Observe(ctx, p)
	if r.Plan == nil || r.Err != nil {
		s.ui.Findings(r.Findings)
		return nil, ui.ExitOfPass(r)
	}
	return s.PolicyInputOf(r.Plan, r.Have, p.AllowDeletes)
}

// Change is the approval of a pass that changes a host.
type Change struct {
	// Kept is a plan that was reviewed before: the pass does exactly that, without confirmation. May be nil.
	Kept *plan.Plan
	// Agreed is called once the plan is agreed to, and before anything is done. An error keeps it from being done. May be nil.
	Agreed func(context.Context) error
}

// CarryOut runs a pass that changes a host: as its one writer, after the plan was
// shown and agreed to, with progress, and with a report at the end. It returns the ending of the verb.
func (s *Session) CarryOut(ctx context.Context, h *model.Host, p *engine.Pass, c Change) error {
	if !s.Flags.Sim {
		release, err := s.Lock(h, p.Verb)
		if err != nil {
			return err
		}
		defer release()
	}
	progress := s.ui.Terminal().Watch()
	p.Observer, p.Health.Notify = engine.StepFunc(progress.Notify), progress.Checking
	p.Verdict = func(ctx context.Context, made *plan.Plan) (bool, error) {
		progress.Waits("")
		s.ui.Findings(made.Findings)
		s.ui.Planned(p, made)
		err := s.agree(ctx, p, made, c)
		if err == nil && !s.Flags.Sim {
			s.Verb(p.Verb).Begin(h, s.Commit, made)
		}
		return err == nil, err
	}
	progress.Waits(view.Observing(h.Name))
	r := p.Run(ctx)
	progress.Close()
	if !s.Flags.Sim {
		s.Verb(p.Verb).Record(h, &r)
	}
	if r.Denied && r.Plan != nil { // without a confirmation it was not shown yet
		s.ui.Findings(r.Findings)
		s.ui.Planned(p, r.Plan)
	}
	return s.ui.Report(r)
}

// agree returns nil if a plan may be carried out.
func (s *Session) agree(ctx context.Context, p *engine.Pass, made *plan.Plan, c Change) error {
	if c.Kept != nil { // it was reviewed when it was saved
		if moved := c.Kept.Moved(made); len(moved) > 0 {
			return ui.ExitRefused.With(fmt.Errorf("the plan is out of date, so nothing was done:\n%s\nmake a new one: homestak-gitops plan --out FILE", strings.Join(moved, "\n")))
		}
		return nil
	}
	if !s.Flags.Yes && len(made.Steps) > 0 {
		if err := s.ui.Confirm(ctx, p, made); err != nil {
			return err
		}
	}
	if c.Agreed != nil {
		return c.Agreed(ctx)
	}
	return nil
}

// Lock takes the write lock of a host for a verb; see service.Verb. The lock is kept and
// waited for in the context of the process, whatever the time of --timeout.
//
//nolint:contextcheck,nolintlint // it is meant; the linter looks for this line at its callers
func (s *Session) Lock(h *model.Host, verb string) (release func(), err error) {
	stopping := s.opener.Stopping
	ctx, cancel := stopping.Soon(stopping.Context)
	unlock, err := s.Verb(verb).Lock(ctx, h)
	if err != nil {
		cancel()
		return nil, err
	}
	return func() { unlock(); cancel() }, nil
}

// Verb is a verb as agents know it.
func (s *Session) Verb(name string) service.Verb {
	return service.Verb{Name: name, Env: s.ui.Env, Note: s.ui.Notef}
}
