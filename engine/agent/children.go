package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// A child that left the site keeps its guest until its agent reports that it is empty. The report counts if it is
// about a commit without the child: the commit of the pass, or one between that and the first commit that lacked
// the child. The latter is remembered; losing it only delays the removal until a report about the commit of the
// pass.

// childrenFor returns what is known of the children, for a pass with a commit.
func childrenFor(ctx context.Context, l *loop, c model.Commit) map[string]model.ChildReport {
	if l.o.Children == nil {
		return nil
	}
	all := l.o.Children()
	for name, first := range l.memory.Withdrawn {
		child := all[name]
		if child.Empty && child.Commit != c.ID && l.upstream.descends(ctx, first, child.Commit) && l.upstream.descends(ctx, child.Commit, c.ID) {
			child.Gone = true
			all[name] = child
		}
	}
	return all
}

// descends reports whether a commit is another one, or is known to come after it.
func (u *upstream) descends(ctx context.Context, from, to string) bool {
	if from == to {
		return true
	}
	err := u.ask(ctx, func(context.Context) error {
		_, err := u.source.Since(ctx, from, to)
		return err
	})
	return err == nil
}

// noteWithdrawn remembers which children on the host a commit lacks, and since which one.
func (m *memory) noteWithdrawn(r *engine.Report, id string) {
	if r.Want == nil || r.Plan == nil || r.Denied || r.Have.NothingSeen() {
		return
	}
	next := map[string]string{}
	for _, name := range stillThere(r, removedChildren(r.Want, r.Have, slices.Collect(maps.Keys(m.Withdrawn)))) {
		next[name] = cmp.Or(m.Withdrawn[name], id)
	}
	if !maps.Equal(m.Withdrawn, next) {
		m.Withdrawn = next
		m.persist()
	}
}

// removedChildren lists the children on the host that the wanted state lacks. Unobserved ones are taken from
// before.
func removedChildren(want *model.Want, have model.Observed, before []string) []string {
	if have.Only { // a pass about some guests says nothing of the others
		return before
	}
	now := want.Withdrawn(have.State)
	if len(have.Unknown) == 0 {
		return now
	}
	for _, name := range before {
		if !want.Has(name) {
			now = union(now, []string{name})
		}
	}
	slices.Sort(now)
	return now
}

// stillThere leaves out the children that a pass destroyed.
func stillThere(r *engine.Report, children []string) []string {
	return slices.DeleteFunc(slices.Clone(children), func(name string) bool {
		return slices.ContainsFunc(r.Results, func(res apply.Result) bool {
			return res.Status == apply.Done && res.Step.Action == plan.Delete && res.Step.Address.Name == name && isChild(&res.Step)
		})
	})
}

// isChild reports whether a step is about a guest that holds nodes.
func isChild(s *plan.Step) bool {
	return s.Address.Kind == model.PVEType || s.Have != nil && s.Have.Guest != nil && s.Have.Guest.Orphan != ""
}

// isMadeAgain reports whether a guest is about to be created, or was removed: what it reported came from another machine.
func isMadeAgain(e *apply.Event) bool {
	s := &e.Step
	switch guest := s.Have != nil && s.Have.Guest != nil || s.Want != nil && s.Want.Guest != nil; {
	case !guest || s.Inside != nil:
		return false
	case s.Action == plan.Create || s.Action == plan.Replace:
		return e.What == apply.Started
	default:
		return s.Action == plan.Delete && e.What == apply.Finished && e.Result.Status == apply.Done
	}
}
