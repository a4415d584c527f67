package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A child that is not in a commit any more either left the site, or the commit is wrong: a typo, an old branch,
// another repository. Only the first may cost it its nodes. So three have to agree: its own past, the history of the
// repository, and its parent. A child that has no past, since it is new or lost it, removes nothing. But it may be empty, and
// then the word of its parent suffices to say so.

// Bundle is the last response of a child's parent about it.
type Bundle struct {
	Removed bool   // the child left the site, or this parent: it is to empty itself ("leaving" in the protocol)
	Commit  string // that the parent works from
	Way     string // what the child lives on, down to the parent: father/inner; "" from a parent that does not say it
}

// course is the agent's action for a commit.
type course int

// The courses.
const (
	courseConverge course = iota // the commit has the agent: make it so
	courseEmpty                  // the child left the site: remove all that it manages
	courseVacant                 // the same, and nothing shows that the child was ever in it: report that it is empty, if it is
	courseHold                   // the agent is not in it, and it is not sure that this is meant: converge nothing
	courseStay                   // the commit is older than the one in force: keep that
)

// order is the relation of a commit to another one.
type order int

// The orders.
const (
	orderSame order = iota
	orderAfter
	orderUnrelated // it does not come after the other, or that is not known
)

// membershipFacts has everything that decides about a commit.
type membershipFacts struct {
	Identity string
	Commit   string
	In       bool    // the commit has the identity, and a child on its parent
	Moved    string  // the commit has the child on another one: that; "" if not
	Child    bool    // the agent has a parent; only children leave a site
	Before   string  // the last commit with the identity that was in force here; "": none is known
	WasIn    bool    // that had the identity, on this parent
	Order    order   // of Commit to Before; orderSame without one
	Newer    string  // a commit that was in force here and comes after Commit; "": none is known
	Bundle   *Bundle // nil: the parent did not say anything yet
}

// Course decides. The text says why a commit is not converged to, and what to do; it is empty for courseConverge and courseEmpty. That of courseVacant
// is for a host that is not.
func (m membershipFacts) Course() (c course, why string) {
	short := model.Commit{ID: m.Commit}.Short()
	before := model.Commit{ID: m.Before}.Short()
	lacks := fmt.Sprintf("commit %s does not have %s", short, m.Identity)
	if m.Moved != "" {
		lacks = fmt.Sprintf("commit %s has %s on %s, and this is the agent of the one on %s", short, m.Identity, m.Moved, m.Bundle.Way)
	}
	switch {
	case m.Child && m.Newer != "":
		return courseStay, fmt.Sprintf("commit %s is older than %s, which was in force on %s, so that one stays\nif the parent came back from an old backup, let it fetch its repository; if the older state is meant, push it as a new commit", short, model.Commit{ID: m.Newer}.Short(), m.Identity)
	case m.In && m.Bundle != nil && m.Bundle.Removed && m.Bundle.Commit == m.Commit:
		return courseHold, fmt.Sprintf("commit %s has %s, and its parent says of the same commit that it left the site\nrun reconcile on the parent, and see there with status which commit is in force", short, m.Identity)
	case m.In && m.Child && m.Before == "" && m.Bundle == nil:
		return courseStay, fmt.Sprintf("commit %s has %s, but nothing was in force here yet, and no parent confirmed that this is %[2]s\nsee with status how the parent answers: if it says that the credentials are of another node (E302), fix the identity in agent.hcl", short, m.Identity)
	case m.In:
		return courseConverge, ""
	case !m.Child:
		return courseHold, lacks + "\ndeclare it again, or fix the identity in agent.hcl"
	case (m.Before == "" || !m.WasIn) && m.Bundle != nil && m.Bundle.Removed && m.Bundle.Commit == m.Commit:
		return courseVacant, fmt.Sprintf("%s, and its parent says that it left the site, but no commit is known that had it and was in force here, so nothing is removed\nmove or remove what is on it, or let it go at its parent with --allow-orphans %s", lacks, m.Identity)
	case m.Before == "":
		return courseHold, lacks + ", and no commit is known that was in force here, so nothing shows that it ever had this name\nfix the identity in agent.hcl; if the node left the site, let it go at its parent with --allow-orphans " + m.Identity
	case !m.WasIn:
		return courseHold, fmt.Sprintf("%s, nor did %s, which was in force here\nfix the identity in agent.hcl; if the node left the site, let it go at its parent with --allow-orphans %s", lacks, before, m.Identity)
	case m.Order != orderAfter:
		return courseHold, fmt.Sprintf("%s, and it does not come after %s, which was in force here\nthe parent has another history: compare its repository; nothing is removed before a commit after %s lacks it", lacks, before, before)
	case m.Bundle == nil:
		return courseHold, lacks + ", and its parent did not say yet that it left the site\nsee with status whether the parent answers"
	case !m.Bundle.Removed:
		return courseHold, lacks + ", but its parent does not say that it left the site\nthe parent may work from another commit, keep the node (orphan = \"abandon\"), or know it by another name: see there with tree and status"
	case m.Bundle.Commit != m.Commit:
		return courseHold, fmt.Sprintf("%s, and its parent says that it left the site, but works from %s\nwait until both have the same commit", lacks, model.Commit{ID: m.Bundle.Commit}.Short())
	default:
		return courseEmpty, ""
	}
}

// orderOf says how a commit stands to one before.
func (u *upstream) orderOf(ctx context.Context, commit, before string) order {
	switch {
	case commit == before, before == "":
		return orderSame
	case u.descends(ctx, before, commit):
		return orderAfter
	default:
		return orderUnrelated
	}
}

// membership returns what is known before the site of a commit is read; the rest is asked for by decide.
func membership(ctx context.Context, l *loop, c model.Commit) membershipFacts {
	known := &l.memory.State
	m := membershipFacts{Identity: l.o.Identity, Commit: c.ID, Child: l.o.Parent != nil, Before: cmp.Or(known.Member, known.Converged.ID, known.Good.ID)}
	if !m.Child {
		return m
	}
	m.Order, m.Bundle = l.upstream.orderOf(ctx, c.ID, m.Before), l.o.Parent()
	for _, id := range []string{known.Good.ID, known.Converged.ID, known.Member} {
		if id != "" && id != c.ID && l.upstream.descends(ctx, c.ID, id) {
			m.Newer = id
			break
		}
	}
	return m
}

// wayTo is what a child lives on in a site: "" for a host, which is the same machine whatever its parent, and for an unknown
// child.
func wayTo(s *model.Site, identity string) string {
	if c := s.Child(identity); c != nil && c.Node != nil {
		return c.Node.Manifest.Way(c.Node)
	}
	return ""
}

// errNotNow is why a commit that has the agent does not come into force.
var errNotNow = errors.New("commit does not come into force")

// vacant returns why a host is not known to be empty of all guests, or nil.
func vacant(have *model.Observed) error {
	switch {
	case len(have.Unknown) > 0:
		return fmt.Errorf("%s could not be seen: %s", have.Unknown[0].Scope, have.Unknown[0].Why)
	case len(have.Taken) > 0:
		return fmt.Errorf("it still has guests: %d", len(have.Taken))
	case len(have.Unmanaged) > 0:
		return fmt.Errorf("it has unmanaged guests: %d", len(have.Unmanaged))
	}
	for _, addr := range have.State.Addresses() {
		if have.State[addr].Guest != nil {
			return fmt.Errorf("%s is on it", addr)
		}
	}
	return nil
}

// observed reads a host for decide, without the write lock: it changes nothing.
func observed(ctx context.Context, open func(engine.Desired, *model.Host) (engine.Driver, error), d engine.Desired) func(*model.Site, *model.Host) (model.Observed, error) {
	return func(s *model.Site, h *model.Host) (model.Observed, error) {
		d.Site = s
		driver, err := open(d, h)
		if err != nil {
			return model.Observed{}, err
		}
		if r, ok := driver.(engine.Releaser); ok {
			defer r.Release()
		}
		want, _ := s.Want(h.Name)
		return driver.Observe(ctx, want)
	}
}

// errNotVacant says that a guest was added while the host was taken to be empty.
var errNotVacant = errors.New("a guest was added to this host after the host was empty, and nothing shows that it may be removed")

// decide makes of the site of a commit the one to converge to. It loads the site of the commit before only where the
// new one lacks the identity, and observes the host only where nothing else says whether anything is on it.
func (m *membershipFacts) decide(s *model.Site, before func() *model.Site, observe func(*model.Site, *model.Host) (model.Observed, error)) (*model.Site, course, error) {
	way := ""
	if m.Child && m.Bundle != nil {
		way = m.Bundle.Way
	}
	var own *model.Host
	m.In = s.HostFor(m.Identity) != nil
	if m.In && way != "" {
		if at := wayTo(s, m.Identity); at != "" && at != way {
			m.In, m.Moved = false, at
		}
	}
	if !m.In && m.Child && m.Before != "" {
		if was := before(); was != nil {
			if at := wayTo(was, m.Identity); way == "" || at == "" || at == way {
				own = was.HostFor(m.Identity)
			}
		}
		m.WasIn = own != nil
	}
	course, why := m.Course()
	switch course {
	case courseConverge:
		return s, course, nil
	case courseEmpty:
		return s.Leave(own), course, nil
	case courseVacant:
		own = s.ChildHost(m.Identity)
		left := s.Leave(own)
		have, err := observe(left, own)
		if err == nil {
			err = vacant(&have)
		}
		if err != nil {
			what, next, _ := strings.Cut(why, "\n")
			return nil, courseHold, fmt.Errorf("%w: %s: %w\n%s", ErrUnknownIdentity, what, err, next)
		}
		return left, course, nil
	case courseHold:
		hint := cmp.Or(diag.DidYouMean(m.Identity, s.Identities()), "it declares no host")
		if m.Child || m.In {
			return nil, course, fmt.Errorf("%w: %s", ErrUnknownIdentity, why)
		}
		return nil, course, fmt.Errorf("%w: %s is not a host of site %s at commit %s: %s\nnothing is converged, since another agent may own the guests now; declare the host again, or fix the identity",
			ErrUnknownIdentity, m.Identity, s.Name, model.Commit{ID: m.Commit}.Short(), hint)
	default:
		return nil, course, fmt.Errorf("%w: %s", errNotNow, why)
	}
}
