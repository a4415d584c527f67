package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/ledger"
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
		if child := all[name]; child.Commit != c.ID && l.upstream.gone(ctx, child, first, c.ID) {
			child.Gone = true
			all[name] = child
		}
	}
	return all
}

// gone reports whether a child is empty by a report about a commit from the first one that lacked it to that of now.
func (u *upstream) gone(ctx context.Context, child model.ChildReport, first, now string) bool {
	return child.Empty && u.descends(ctx, first, child.Commit) && u.descends(ctx, child.Commit, now)
}

// A host that has a parent joined it, and no guest shows that. So its parent remembers it: one that left the site learns it
// until it reports that it is empty, and then its tokens are revoked. One that has another parent by now is served as before, so
// that it gets the commit that says so, until the site lacks it. A person who revokes the tokens lets both go before. Losing the
// memory delays the former, and the latter has to join by hand.

// hostsBelow are the hosts of an agent by a site, and what was known of them before: those that left the site, and those that moved.
func hostsBelow(known map[string]ledger.HostBelow, s *model.Site, identity string) (removed, moved []string) {
	for _, name := range slices.Sorted(maps.Keys(known)) {
		switch h := s.Hosts[name]; {
		case h != nil && h.Parent != identity:
			moved = append(moved, name)
		case h == nil && !known[name].Moved:
			removed = append(removed, name)
		}
	}
	return removed, moved
}

// noteHosts remembers the hosts below by the site of a commit that came into force, and revokes the tokens of those that left
// it.
func noteHosts(ctx context.Context, l *loop, s *model.Site, id string) {
	next := map[string]ledger.HostBelow{}
	for _, c := range s.ChildrenOf(l.o.Identity) {
		if c.Node == nil {
			next[c.Name] = ledger.HostBelow{}
		}
	}
	removed, _ := hostsBelow(l.memory.Hosts, s, l.o.Identity)
	var reports map[string]model.ChildReport
	if len(removed) > 0 && l.o.Children != nil {
		reports = l.o.Children()
	}
	for name, was := range l.memory.Hosts {
		h := s.Hosts[name]
		if h != nil && h.Parent == l.o.Identity {
			continue
		}
		if h != nil {
			was = ledger.HostBelow{Moved: true}
		}
		done := h == nil
		if !was.Moved {
			was.Left = cmp.Or(was.Left, id)
			done = l.upstream.gone(ctx, reports[name], was.Left, id)
		}
		if !letGo(&l.o, name, done) {
			next[name] = was
		}
	}
	if !maps.Equal(l.memory.Hosts, next) {
		l.memory.Hosts = next
		l.memory.persist()
		l.moved()
	}
}

// letGo revokes the tokens of a host that has nothing to do with this agent any more, and reports whether they are revoked.
func letGo(o *Options, host string, done bool) bool {
	if o.Revoke == nil {
		return false
	}
	revoked, err := o.Revoke(host, done)
	if err != nil {
		o.Log.Warn("the tokens of a host that left were not revoked; the next pass tries again", "host", host, "error", err)
	}
	if revoked {
		o.Log.Info("a host left: its tokens are revoked", "host", host)
	}
	return revoked
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
