package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// The effects of a spec inside a guest are withdrawn when the node no longer has a spec. The guest is reached by
// the settings of the last applied spec, so its commit is remembered until the withdrawal is complete: the guest
// may be off or its manifest suspended for many commits. A guest without such a commit, as after an upgrade of the
// program, uses the commit that the host converged to.

// specSites finds the site by which a spec was applied in a guest last. Each is loaded once. It is for one goroutine.
type specSites struct {
	load      func(context.Context, model.Commit) engine.Desired
	specs     map[string]string // guest → commit
	converged string            // for the guests that specs lacks
	commits   map[string]*specSite
}

// specSite is a commit as far as it was looked up, and its site once it was loaded.
type specSite struct {
	commit model.Commit
	site   *model.Site
	err    error
	loaded bool
}

// sitesOfSpecs looks up the commits, since only the loop may ask the repository. A spec that was applied by commit now is not
// an earlier one.
func sitesOfSpecs(ctx context.Context, l *loop, now model.Commit) specSites {
	s := specSites{load: l.o.Load, specs: l.memory.Specs, converged: l.memory.Converged.ID, commits: map[string]*specSite{}}
	for _, id := range append(slices.Collect(maps.Values(s.specs)), s.converged) {
		if id != "" && id != now.ID && s.commits[id] == nil {
			c, err := l.upstream.commit(ctx, id)
			s.commits[id] = &specSite{commit: c, err: err}
		}
	}
	return s
}

// site returns nil if no earlier spec exists.
func (s *specSites) site(ctx context.Context, guest model.Address) (*model.Site, error) {
	id, noted := s.specs[guest.String()]
	if !noted && guest.Kind != model.HostKind { // a version that did not note specs applied none to a host
		id = s.converged
	}
	k := s.commits[id]
	if k == nil {
		return nil, nil
	}
	if k.err == nil && !k.loaded {
		d := s.load(ctx, k.commit)
		if k.site, k.loaded = d.Site, true; d.Findings.HasErrors() {
			k.err = fmt.Errorf("commit %s cannot be loaded any more: %s", id, firstError(d.Findings))
		}
	}
	return k.site, k.err
}

// noteSpecs remembers by which commit specs were applied in guests.
func (m *memory) noteSpecs(r *engine.Report, id string) {
	if r.Want == nil || r.Plan == nil || r.Denied || r.Have.NothingSeen() || r.Have.Only {
		return
	}
	next := maps.Clone(m.Specs)
	if next == nil {
		next = map[string]string{}
	}
	for _, res := range r.Results {
		if s := &res.Step; res.Status == apply.Done && s.Inside == nil && (s.Action == plan.Delete || s.Action == plan.Replace) {
			delete(next, s.Address.String())
		}
	}
	completed := isCompleted(r)
	for guest, applies := range r.Want.Specs {
		tried := func(res apply.Result) bool { // some of what failed may be done
			return res.Status != apply.Skipped && res.Step.Want != nil && res.Step.Want.Inside == guest
		}
		switch {
		case applies && (completed || slices.ContainsFunc(r.Results, tried)):
			next[guest.String()] = id
		case !applies && completed:
			delete(next, guest.String())
		}
	}
	for text := range next {
		guest, err := model.ParseAddress(text)
		if err != nil || guest.Kind != model.HostKind && r.Want.Nodes[guest] == nil && r.Have.State[guest] == nil && len(r.Have.Unknown) == 0 {
			delete(next, text)
		}
	}
	if !maps.Equal(m.Specs, next) {
		m.Specs = next
	}
}
