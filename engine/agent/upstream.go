package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

// upstream is the repository as the loop knows it. It belongs to the loop.
type upstream struct {
	source source
	branch string
	during func(ctx context.Context, work func(ctx context.Context)) // lets the loop serve requests meanwhile
	log    *slog.Logger

	commits    map[string]model.Commit // those that memory names, as far as they were asked for
	status     RepositoryStatus
	unanswered int    // questions in a row without an answer
	lost       error  // why there was none last
	kept       string // the commits that Source.Keep was given last
	keepLogged string // why that failed, as the log has it
}

// ask asks the source for something; a panic comes back as its error.
func (u *upstream) ask(ctx context.Context, question func(ctx context.Context) error) (err error) {
	u.during(ctx, func(ctx context.Context) {
		defer func() {
			if v := recover(); v != nil {
				err = &defectError{"while the repository was asked", v, debug.Stack()}
			}
		}()
		err = question(ctx)
	})
	return err
}

// head asks for the newest commit. before is the one of the last answer, "" for none. False if there is
// none, or the agent is to stop; an error is recorded.
func (u *upstream) head(ctx context.Context, before string) (head model.Commit, ok bool) {
	stopped := false
	err := u.ask(ctx, func(ctx context.Context) (err error) {
		head, err = u.source.Head(ctx)
		stopped = ctx.Err() != nil
		return err
	})
	if err == nil && head.ID == "" {
		err = fmt.Errorf("branch %s has no commit", u.branch)
	}
	if before != "" && (errors.Is(err, model.ErrNoBranch) || errors.Is(err, model.ErrNoCommit)) {
		err = &vanishedError{branch: u.branch, err: err}
	}
	if err == nil || !stopped {
		u.answered(err)
	}
	return head, err == nil
}

// vanishedError is a branch that is gone from a repository that answers.
type vanishedError struct {
	branch string
	err    error
}

func (e *vanishedError) Error() string {
	return fmt.Sprintf("branch %s is gone: it was deleted or renamed there. Push it again, or name the new one in agent.hcl (%v)", e.branch, e.err)
}

func (e *vanishedError) Unwrap() error { return e.err }

// silence is the number of polls in a row that may have no answer before the agent counts as not healthy.
const silence = 3

// condition names the state of the repository.
func (u *upstream) condition() Condition {
	switch {
	case errors.As(u.lost, new(*vanishedError)):
		return BranchMissing
	case u.unanswered >= silence:
		return NotAnswering
	case u.status.Rewritten != "":
		return HistoryRewritten
	}
	return ""
}

// follows records whether a new head is a descendant of the one before it. Until commits are verified,
// a rewritten branch is accepted, and shown.
func (u *upstream) follows(ctx context.Context, before, head string) {
	u.status.Rewritten = ""
	if before != "" {
		err := u.ask(ctx, func(context.Context) error {
			_, err := u.source.Since(ctx, before, head)
			return err
		})
		if errors.Is(err, model.ErrUnrelated) {
			u.status.Rewritten = fmt.Sprintf("history of %s was rewritten: %s is not an ancestor of %s", u.branch, short(before), short(head))
			u.log.Warn("the history of the branch was rewritten", "before", before, "head", head)
		}
	}
	u.status.Condition = u.condition()
}

// answered records whether the repository responded. If it did not, the last good commit stays good.
func (u *upstream) answered(err error) {
	if err != nil {
		if u.lost == nil {
			u.log.Warn("the repository does not answer; the last good commit stays in force", "error", err)
		}
		u.lost = err
		u.unanswered++
		u.status.Error = err.Error()
		if u.status.Failing == nil {
			u.status.Failing = now()
		}
		u.status.Condition = u.condition()
		return
	}
	if u.lost != nil {
		u.log.Info("the repository answers again", "repository", u.status.URL)
	}
	u.lost, u.unanswered = nil, 0
	u.status.Error, u.status.Failing, u.status.Checked = "", nil, now()
	u.status.Condition = u.condition()
}

// pause returns the time to wait before the next request.
func (u *upstream) pause(poll time.Duration) time.Duration {
	if u.lost == nil {
		return jitter(poll)
	}
	return jitter(backoff(poll, u.unanswered-1, max(longRetry, poll)))
}

// keep gives the source the commits that must stay available, where that changed.
func (u *upstream) keep(ctx context.Context, ids []string) {
	key := strings.Join(ids, " ")
	if len(ids) == 0 || key == u.kept {
		return
	}
	if err := u.ask(ctx, func(context.Context) error { return u.source.Keep(ids...) }); err != nil {
		if text := err.Error(); u.keepLogged != text { // it is tried again at every check
			u.keepLogged = text
			u.log.Warn("the copy of the repository does not know which commits to keep", "error", err)
		}
		return
	}
	u.kept, u.keepLogged = key, ""
	for id := range u.commits {
		if !slices.Contains(ids, id) {
			delete(u.commits, id)
		}
	}
}

// commit describes a commit that was fetched before.
func (u *upstream) commit(ctx context.Context, id string) (c model.Commit, err error) {
	if c, ok := u.commits[id]; ok {
		return c, nil
	}
	err = u.ask(ctx, func(context.Context) (err error) {
		c, err = u.source.Commit(ctx, id)
		return err
	})
	if err == nil {
		u.commits[id] = c
	}
	return c, err
}

// ref describes a commit for the status, nil where there is none.
func (u *upstream) ref(m ledger.CommitRef) *CommitStatus {
	if m.ID == "" {
		return nil
	}
	c := u.commits[m.ID]
	return &CommitStatus{ID: m.ID, Subject: c.Subject, Author: personOf(c), Since: m.Since}
}

// personOf names the author of a commit.
func personOf(c model.Commit) string {
	if c.Author.Name != "" {
		return c.Author.Name
	}
	return c.Author.Email
}

// The trailers of commits that allow what nothing else does.
const (
	deletesTrailer = "Allow-Deletes" // a number of guests to remove
	orphansTrailer = "Allow-Orphans" // names of children that go with what is in them
)

// allowance has the permissions that trailers give a pass.
type allowance struct {
	removals int
	granted  int // the same, those included that are done
	orphans  []string
	untraced bool     // no trailer counts, for it is not known since when
	by       []string // commits whose trailers are used up once the pass has used them, or converged
}

// grant says how many removals a pass with a commit may make beyond what the rules
// allow: the sum of the trailers since the last converged commit, without what was
// used of it. A branch that goes back and comes again brings no trailer to life
// again. The findings are warnings about trailers that count for nothing.
func (u *upstream) grant(ctx context.Context, s *ledger.State, c model.Commit) (allowance, diag.List) {
	from := s.Converged.ID
	if from == c.ID {
		return allowance{}, nil
	}
	asked := len(trailersOf(c)) > 0
	own := allowance{}
	if asked {
		own.by = []string{c.ID}
	}
	if from == "" {
		own.untraced = true
		// Children are let go by their names, and by the very commit: nothing older comes to life by that.
		sum, found := sumOf([]model.Commit{c}, s)
		if own.orphans = sum.orphans; sum.removals > 0 {
			found = append(found, diag.Warnf(diag.Range{}, fmt.Sprintf("trailer %s of commit %s is ignored", deletesTrailer, c.Short()), "no commit is known that this host converged to, so it is unknown how far back trailers count: apply --allow-deletes N grants them, or let a good commit converge (status says what keeps one from it), then push the removal with the trailer once more"))
		}
		return own, found
	}
	var commits []model.Commit
	err := u.ask(ctx, func(context.Context) (err error) {
		commits, err = u.source.Since(ctx, from, c.ID)
		return err
	})
	switch {
	case errors.Is(err, model.ErrUnrelated) && !asked:
		return own, nil
	case err != nil && asked:
		return own, diag.List{ignored(c, fmt.Sprintf("the commits between it and %s, the last that converged, are unknown: %v", short(from), err))}
	case err != nil:
		u.log.Warn("trailers are not counted", "from", from, "to", c.ID, "error", err)
		return own, nil
	}
	return sumOf(commits, s)
}

// sumOf sums the trailers of commits.
func sumOf(commits []model.Commit, s *ledger.State) (allowance, diag.List) {
	var sum allowance
	var found diag.List
	for _, c := range commits {
		n, asked := trailer(c)
		orphans := namesOf(c)
		if asked && n == 0 {
			text, _ := trailerText(c, deletesTrailer)
			found = append(found, ignored(c, fmt.Sprintf("%q is not a positive number", text)))
		}
		switch {
		case n == 0 && len(orphans) == 0:
		case slices.Contains(s.UsedTrailers, c.ID):
			found = append(found, ignored(c, "it counted before, and a commit counts once: repeat it in a new one"))
		default:
			sum.removals += n
			sum.orphans = union(sum.orphans, slices.DeleteFunc(orphans, func(name string) bool { return slices.Contains(s.Orphaned, name) }))
			sum.by = append(sum.by, c.ID)
		}
	}
	sum.granted = sum.removals
	sum.removals = max(sum.removals-s.Consumed, 0)
	return sum, found
}

// mostVoid bounds how many used trailers are remembered, the newest.
const mostUsedTrailers = 1000

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

// trailer reads the grant of a commit: 0 if it is not a positive number; false without one.
func trailer(c model.Commit) (int, bool) {
	text, ok := trailerText(c, deletesTrailer)
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 0 || n > mostDeletes {
		n = 0
	}
	return n, ok
}

// namesOf reads the children that the trailer of a commit names.
func namesOf(c model.Commit) []string {
	text, _ := trailerText(c, orphansTrailer)
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
}

// trailersOf names the trailers of a commit that allow something.
func trailersOf(c model.Commit) []string {
	return slices.DeleteFunc([]string{deletesTrailer, orphansTrailer}, func(name string) bool {
		_, there := trailerText(c, name)
		return !there
	})
}

func trailerText(c model.Commit, name string) (string, bool) {
	for key, value := range c.Trailers {
		if strings.EqualFold(key, name) {
			return value, true
		}
	}
	return "", false
}

func ignored(c model.Commit, why string) diag.Finding {
	return diag.Warnf(diag.Range{}, fmt.Sprintf("trailer %s of commit %s is ignored", strings.Join(trailersOf(c), " and "), c.Short()), "%s", why)
}

func short(id string) string { return model.Commit{ID: id}.Short() }
