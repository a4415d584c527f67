package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

// recall asks the source for the commits that the state names, as far as they are
// still there, and says which must stay.
func (a *Agent) recall(ctx context.Context) {
	a.keep()
	for _, id := range a.marks() {
		_, _ = a.commit(ctx, id) // what is missing is missed when it is needed
	}
}

// marks lists the commits that matter: head, the good one, the converged one.
func (a *Agent) marks() []string {
	var out []string
	a.edit(func(d *desk) {
		for _, m := range []ledger.Mark{d.state.Head, d.state.Good, d.state.Converged} {
			if m.ID != "" && !slices.Contains(out, m.ID) {
				out = append(out, m.ID)
			}
		}
	})
	return out
}

// keep tells the source which commits must stay, where that changed.
func (a *Agent) keep() {
	ids := a.marks()
	key := strings.Join(ids, " ")
	if len(ids) == 0 || key == a.kept {
		return
	}
	if err := guarded(func() error { return a.o.Source.Keep(ids...) }); err != nil {
		if text := err.Error(); a.said.kept != text { // it is tried again at every look
			a.said.kept = text
			a.o.Log.Warn("the copy of the repository could not be told what to keep", "error", err)
		}
		return
	}
	a.kept, a.said.kept = key, ""
	a.edit(func(d *desk) {
		for id := range d.commits {
			if !slices.Contains(ids, id) {
				delete(d.commits, id)
			}
		}
	})
}

// commit tells of a commit that was fetched before.
func (a *Agent) commit(ctx context.Context, id string) (c model.Commit, err error) {
	known := false
	a.edit(func(d *desk) { c, known = d.commits[id] })
	if known {
		return c, nil
	}
	err = guarded(func() (err error) {
		c, err = a.o.Source.Commit(ctx, id)
		return err
	})
	if err == nil {
		a.edit(func(d *desk) { d.commits[id] = c })
	}
	return c, err
}

const deletesTrailer = "Allow-Deletes"

// allowance is what trailers allow a pass.
type allowance struct {
	removals int
	untraced bool     // no trailer counts, for it is not known since when
	by       []string // commits whose trailers are void once the pass has used them, or converged
}

// grant says how many removals a pass with a commit may make beyond what the rules
// allow: the sum of the trailers since the last converged commit, without what was
// used of it. A branch that goes back and comes again brings no trailer to life
// again. The findings are warnings about trailers that count for nothing.
func (a *Agent) grant(ctx context.Context, c model.Commit) (allowance, diag.List) {
	var s ledger.State
	a.edit(func(d *desk) { s = d.state }) // its lists are replaced when they change
	from := s.Converged.ID
	if from == c.ID {
		return allowance{}, nil
	}
	_, asked := trailer(c)
	own := allowance{}
	if asked {
		own.by = []string{c.ID}
	}
	if from == "" {
		own.untraced = true
		if asked {
			return own, diag.List{ignored(c, "no commit is known that this host converged to, so nothing says how far back trailers count: apply --allow-deletes N grants them, or let a good commit converge (status says what keeps one from it), then push the removal with the trailer once more")}
		}
		return own, nil
	}
	var commits []model.Commit
	err := guarded(func() (err error) {
		commits, err = a.o.Source.Since(ctx, from, c.ID)
		return err
	})
	switch {
	case errors.Is(err, ErrUnrelated) && !asked:
		return own, nil
	case err != nil && asked:
		return own, diag.List{ignored(c, fmt.Sprintf("what lies between it and %s, the last that converged, is not known: %v", short(from), err))}
	case err != nil:
		a.o.Log.Warn("trailers are not counted", "from", from, "to", c.ID, "error", err)
		return own, nil
	}
	return sumOf(commits, s)
}

// sumOf sums the trailers of commits.
func sumOf(commits []model.Commit, s ledger.State) (allowance, diag.List) {
	var sum allowance
	var found diag.List
	for _, c := range commits {
		n, asked := trailer(c)
		switch {
		case !asked:
		case n == 0:
			text, _ := trailerText(c)
			found = append(found, ignored(c, fmt.Sprintf("%q is no positive number", text)))
		case slices.Contains(s.Void, c.ID):
			found = append(found, ignored(c, "it counted before, and a commit counts once: say it again in a new one"))
		default:
			sum.removals += n
			sum.by = append(sum.by, c.ID)
		}
	}
	sum.removals = max(sum.removals-s.Spent, 0)
	return sum, found
}

// mostVoid bounds how many used trailers are remembered, the newest.
const mostVoid = 1000

// spend books that a step of the pass took a guest away, at once: a pass that is killed
// must not give the whole grant again.
func (a *Agent) spend() {
	if a.grants.removals == 0 {
		return
	}
	a.grants.removals--
	a.note(func(s *ledger.State) {
		s.Spent++
		s.Counted = union(s.Counted, a.grants.by)
	})
}

// settle makes c the commit that the host converged to: the trailers before it are used
// up, those of a branch that is no longer there included.
func (a *Agent) settle(s *ledger.State, c model.Commit) {
	void := union(union(s.Void, s.Counted), a.grants.by)
	s.Void = void[max(len(void)-mostVoid, 0):]
	s.Converged, s.Spent, s.Counted = mark(c.ID), 0, nil
}

// union is a new list of all that are in one of two, in their order.
func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, id := range b {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// mostDeletes bounds one trailer, so that no sum runs over.
const mostDeletes = 1_000_000

// trailer reads the grant of a commit: 0 if it is no positive number; false without one.
func trailer(c model.Commit) (int, bool) {
	text, ok := trailerText(c)
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 0 || n > mostDeletes {
		n = 0
	}
	return n, ok
}

func trailerText(c model.Commit) (string, bool) {
	for key, value := range c.Trailers {
		if strings.EqualFold(key, deletesTrailer) {
			return value, true
		}
	}
	return "", false
}

func ignored(c model.Commit, why string) diag.Finding {
	return diag.Warnf(diag.Range{}, fmt.Sprintf("trailer %s of commit %s is ignored", deletesTrailer, c.Short()), "%s", why)
}

func short(id string) string { return model.Commit{ID: id}.Short() }

// personOf names the author of a commit.
func personOf(c model.Commit) string {
	if c.Author.Name != "" {
		return c.Author.Name
	}
	return c.Author.Email
}
