package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
)

// remote is where a repository is asked.
type remote interface {
	// ask asks which branches there are. Its errors are a *RemoteError, or ctx's.
	ask(ctx context.Context) (talk, error)
}

// talk is one conversation with a remote that has said which branches there are.
type talk interface {
	// tip is the commit the branch is at.
	tip() (plumbing.Hash, error)
	// bring writes one whole pack with what is needed. It may be called once.
	bring(ctx context.Context, n need, w io.Writer) error
	close()
}

// need is what a fetch asks for.
type need struct {
	want  plumbing.Hash
	haves []plumbing.Hash // commits that are here, with all that belongs to them and their past, down to ends
	ends  []plumbing.Hash // commits of which the parents are not here
	depth int             // so many generations; 0: all that haves do not have
	has   func(id plumbing.Hash) bool
}

// everything as the depth of a need asks for the parents of ends too.
const everything = math.MaxInt32

// mostHaves bounds how many commits are shown to the remote to find common ground.
const mostHaves = 64

// fetch brings the commit tip and makes it the head. Nothing that was here changes
// until all of it is there.
func (r *Repository) fetch(ctx context.Context, t talk, tip plumbing.Hash) error {
	n, err := r.need(tip)
	if err != nil {
		return err
	}
	old := r.objects
	err = r.bring(ctx, t, n)
	if n.depth != 1 && (errors.Is(err, ErrTooLarge) || errors.Is(err, errParts)) {
		// The way from what is here to the new head is too long, or what is here is not
		// what the remote thinks: begin anew with the head alone.
		err = r.again(ctx, need{want: tip, depth: 1, has: func(plumbing.Hash) bool { return false }})
	} else if err == nil {
		err = r.deepen(ctx, tip)
	}
	if err != nil {
		_ = r.disk.drop(r.objects.packs[len(old.packs):], nil) // else they lie there until the next start
		r.objects, r.graph.store = old, old
		maps.DeleteFunc(r.graph.known, func(id plumbing.Hash, _ *node) bool { return !old.has(id) })
		return err
	}
	before := r.state
	next := state{head: tip, kept: before.kept}
	if next.ends, err = r.ends(next); err != nil {
		return err
	}
	if err := r.disk.save(next, r.state); err != nil {
		return err
	}
	r.state = next
	if err := r.compact(false, before.head); err != nil {
		// The new head is here, and that is what was asked for.
		r.o.Log.Warn("The local copy of the repository could not be made smaller; it is tried again.", "folder", r.o.Dir, "error", err)
	}
	return nil
}

// need says what is missing for a commit to be here.
func (r *Repository) need(tip plumbing.Hash) (need, error) {
	n := need{want: tip, has: r.objects.has}
	tips := r.tips()
	if len(tips) == 0 {
		n.depth = 1
		return n, nil
	}
	p, err := r.graph.past(tips...)
	if err != nil {
		return need{}, err
	}
	n.haves = tips
	for _, c := range p.sorted() {
		if len(n.haves) >= mostHaves+len(tips) {
			break
		}
		n.haves = append(n.haves, c.id)
	}
	n.haves, n.ends = withHash(n.haves), p.ends()
	return n, nil
}

// errParts is of an answer that lacks parts of the commit that was asked for.
var errParts = errors.New("parts of the commit are missing")

// bring adds a pack to the objects, and looks whether the commit is then whole.
func (r *Repository) bring(ctx context.Context, t talk, n need) error {
	p, err := r.disk.add(func(w io.Writer) error {
		return t.bring(ctx, n, &limited{w: w, left: r.o.MaxPack})
	})
	switch {
	case errors.Is(err, errLimit):
		return r.fault(ErrTooLarge, fmt.Sprintf("more than %d MiB to fetch", r.o.MaxPack>>20), "take large files out of the repository, or raise the limit", false, err)
	case errors.Is(err, errTooLong):
		return r.tooLarge(err)
	case errors.Is(err, errBadPack):
		return r.fault(ErrCut, err.Error(), "nothing is lost, it is tried again", true, err)
	case err != nil:
		return err
	}
	if p != nil {
		o := *r.objects
		o.packs = append(slices.Clone(o.packs), p)
		r.objects, r.graph.store = &o, &o
	}
	c, err := r.graph.node(n.want)
	if err == nil && c == nil {
		err = plumbing.ErrObjectNotFound
	}
	if err == nil {
		_, err = r.objects.extent(c.tree, 1, map[plumbing.Hash]extent{})
	}
	if errors.Is(err, errTooLong) {
		return r.tooLarge(err)
	}
	if err == nil {
		_, err = r.objects.reachable(c.tree, map[plumbing.Hash]bool{})
	}
	if err == nil || !errors.Is(err, plumbing.ErrObjectNotFound) {
		return err
	}
	return r.fault(ErrCut, fmt.Sprintf("the answer lacks parts of commit %.8s", n.want), "it is tried again; if that does not help, run git fsck in the repository", true, errors.Join(errParts, err))
}

// again asks anew: a talk can bring something only once.
func (r *Repository) again(ctx context.Context, n need) error {
	t, err := r.remote.ask(ctx)
	if err != nil {
		return err
	}
	defer t.close()
	return r.bring(ctx, t, n)
}

// deepen closes a gap. Where a branch was merged that began below the place where
// history stops here, its past was brought down to the root, but not the commits
// between that past and ours: without these nobody could tell what is new.
func (r *Repository) deepen(ctx context.Context, tip plumbing.Hash) error {
	if len(r.state.ends) == 0 || r.state.head.IsZero() {
		return nil
	}
	_, err := r.graph.between(r.state.head, tip)
	if !errors.Is(err, ErrUnrelated) {
		return err
	}
	now, err := r.graph.past(tip)
	if err != nil || now.all[r.state.head] == nil {
		return err // rewritten: there is nothing to tell
	}
	n, err := r.need(tip)
	if err != nil {
		return err
	}
	all, err := r.graph.past(append(r.tips(), tip)...)
	if err != nil {
		return err
	}
	n.haves, n.ends, n.depth = withHash(n.haves, tip), all.ends(), everything
	err = r.again(ctx, n)
	if errors.Is(err, ErrTooLarge) {
		return nil // Since says that it cannot tell
	}
	return err
}

// tooLarge is of a commit that no site needs, and that would take all memory or time.
func (r *Repository) tooLarge(err error) error {
	return r.fault(ErrTooLarge, err.Error(), "take that out of the repository; a site has no use for it", false, err)
}

// fault makes an error of the remote's.
func (r *Repository) fault(kind error, detail, advice string, temporary bool, err error) error {
	return &RemoteError{Kind: kind, Where: r.from.String(), Detail: detail, Advice: advice, Err: err, temporary: temporary}
}

// errLimit is of a pack that is longer than allowed.
var errLimit = errors.New("the limit is reached")

// limited lets so many bytes through.
type limited struct {
	w    io.Writer
	left int64
}

func (l *limited) Write(b []byte) (int, error) {
	if l.left -= int64(len(b)); l.left < 0 {
		return 0, errLimit
	}
	return l.w.Write(b)
}
