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

// What a spec put inside a guest is withdrawn when the node has no spec any more. The guest is entered as the spec says that was
// applied last, so the commit of that is remembered until nothing of it is left: the guest may be off or its manifest suspended
// for many commits. For a guest without such a commit, as after an upgrade of the program, that counts which the host converged to.

// sitesOfSpecs gives the site by which a spec was applied in a guest last, each loaded once.
func sitesOfSpecs(ctx context.Context, l *loop, now model.Commit) func(context.Context, model.Address) (*model.Site, error) {
	specs, converged := l.memory.Specs, l.memory.Converged.ID
	type known struct {
		commit model.Commit
		site   *model.Site
		err    error
		loaded bool
	}
	all := map[string]*known{converged: {}}
	for id := range maps.Values(specs) {
		all[id] = &known{}
	}
	for id, k := range all { // not in the pass: that runs beside the loop
		if id != "" && id != now.ID {
			k.commit, k.err = l.upstream.commit(ctx, id)
		}
	}
	return func(ctx context.Context, guest model.Address) (*model.Site, error) {
		id, noted := specs[guest.String()]
		if !noted {
			id = converged
		}
		if id == "" || id == now.ID {
			return nil, nil
		}
		k := all[id]
		if k.err == nil && !k.loaded {
			d := l.o.Load(ctx, k.commit)
			if k.site, k.loaded = d.Site, true; d.Findings.HasErrors() {
				k.err = fmt.Errorf("commit %s cannot be loaded any more: %s", id, firstError(d.Findings))
			}
		}
		return k.site, k.err
	}
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
			return res.Status != apply.Skipped && res.Step.Inside != nil && res.Step.Want != nil && res.Step.Want.Inside == guest
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
		if err != nil || r.Want.Nodes[guest] == nil && r.Have.State[guest] == nil && len(r.Have.Unknown) == 0 {
			delete(next, text)
		}
	}
	if !maps.Equal(m.Specs, next) {
		m.Specs = next
	}
}
