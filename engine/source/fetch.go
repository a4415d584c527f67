package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// firstDepth is the number of commits of the first fetch. After the loss of a local copy, here or at the remote, it
// shows that a commit comes after the last applied one. Later fetches add to it, and compaction limits it.
const firstDepth = 64

// mostHaves limits how many commits are offered to the remote to find common history.
const mostHaves = 64

// tip is the commit of the branch.
func (r *Repository) tip(refs *packp.AdvRefs) (plumbing.Hash, error) {
	const prefix = "refs/heads/"
	if r.o.Branch == DefaultBranch && refs.Head != nil {
		return *refs.Head, nil
	}
	if id, ok := refs.References[prefix+r.o.Branch]; ok {
		return id, nil
	}
	var names []string
	for name := range refs.References {
		if short, ok := strings.CutPrefix(name, prefix); ok {
			names = append(names, short)
		}
	}
	if len(names) == 0 {
		return plumbing.ZeroHash, r.from.NoCommit()
	}
	return plumbing.ZeroHash, r.from.Fault(errNoBranch, fmt.Sprintf("%q", r.o.Branch), diag.DidYouMean(r.o.Branch, names), nil)
}

// fetch fetches the commit tip and makes it the head. The local copy does not change until the
// fetch is complete.
func (r *Repository) fetch(ctx context.Context, c conversation, refs *packp.AdvRefs, tip plumbing.Hash) error {
	n, err := r.need(tip)
	if err != nil {
		return err
	}
	old, oldPacks := r.objects, r.packs
	if !r.objects.Has(tip) { // the branch may have moved back
		err = r.bring(ctx, c, refs, n)
	}
	if n.Depth != 1 && (errors.Is(err, objects.ErrTooLarge) || errors.Is(err, errParts)) {
		// The new head is too far away, or the local copy is not what the remote assumes: start
		// over with the head alone.
		err = r.again(ctx, need{Want: tip, Depth: 1})
	} else if err == nil {
		err = r.deepen(ctx, tip)
	}
	if err != nil {
		_ = r.disk.drop(r.packs[len(oldPacks):], nil) // else they stay until the next start
		r.objects, r.packs, r.graph.Store = old, oldPacks, old
		maps.DeleteFunc(r.graph.Known, func(id plumbing.Hash, _ *objects.Commit) bool { return !old.Has(id) })
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
	if err := r.compact(before.head); err != nil {
		// The fetch was successful; compaction is optional.
		r.o.Log.Warn("The local copy of the repository could not be compacted; this is retried.", "folder", r.o.Dir, "error", err)
	}
	return nil
}

// need returns what is missing for a commit.
func (r *Repository) need(tip plumbing.Hash) (need, error) {
	n := need{Want: tip, Haves: r.state.tips()}
	if len(n.Haves) == 0 {
		n.Depth = r.o.Depth
		return n, nil
	}
	p, err := r.graph.Past(n.Haves...)
	if err != nil {
		return need{}, err
	}
	for i, c := range p.Sorted() {
		if i == mostHaves {
			break
		}
		n.Haves = append(n.Haves, c.ID)
	}
	n.Haves, n.Ends = withHash(n.Haves), p.Ends()
	return n, nil
}

// errParts: the answer lacks parts of the requested commit.
var errParts = errors.New("parts of the commit are missing")

// bring adds a fetched pack to the objects, and checks that the commit is then complete.
func (r *Repository) bring(ctx context.Context, c conversation, refs *packp.AdvRefs, n need) error {
	req, err := request(refs, n)
	if err != nil {
		return r.from.Fault(errNotGit, err.Error(), "check the URL", err)
	}
	p, err := r.disk.add(func(w io.Writer) error {
		to := &limited{w: w, left: r.o.MaxPack}
		err := c.Pack(ctx, req, to)
		if to.err != nil {
			return to.err // the disk, or the limit: not the remote
		}
		return err
	})
	if p != nil && err == nil {
		r.packs = append(slices.Clone(r.packs), p)
		r.objects = r.newStore(r.packs)
		r.graph.Store = r.objects
	}
	var top *objects.Commit
	if err == nil {
		if top, err = r.graph.Node(n.Want); err == nil && top == nil {
			err = plumbing.ErrObjectNotFound
		}
	}
	if err == nil {
		err = r.objects.Inventory().Add(top.ID, top.Tree)
	}
	switch {
	case errors.Is(err, errLimit):
		return r.from.Fault(objects.ErrTooLarge, fmt.Sprintf("more than %d MiB to fetch", r.o.MaxPack>>20), "remove large files from the newest commit, or set max_size in repository of agent.hcl to more MiB", err)
	case errors.Is(err, objects.ErrTooLong): // it would take all memory or time
		return r.from.Fault(objects.ErrTooLarge, err.Error(), "remove that from the repository; a site does not need it", err)
	case errors.Is(err, errBadPack):
		return r.from.Fault(errCut, err.Error(), "nothing is lost, this is retried", err)
	case errors.Is(err, plumbing.ErrObjectNotFound):
		return r.from.Fault(errCut, fmt.Sprintf("the answer lacks parts of commit %.8s", n.Want), "this is retried; if that does not help, run git fsck in the repository", errors.Join(errParts, err))
	}
	return err
}

// again starts a new conversation: each can fetch only once.
func (r *Repository) again(ctx context.Context, n need) error {
	c, refs, err := r.remote.Ask(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return r.bring(ctx, c, refs, n)
}

// deepen closes a gap. If a branch was merged that began before the local history, its past was fetched down to the
// root, but not the commits between that past and ours, which are needed to tell what is new.
func (r *Repository) deepen(ctx context.Context, tip plumbing.Hash) error {
	if len(r.state.ends) == 0 || r.state.head.IsZero() {
		return nil
	}
	_, err := r.graph.Between(r.state.head, tip)
	if !errors.Is(err, model.ErrUnrelated) {
		return err
	}
	now, err := r.graph.Past(tip)
	if err != nil || now[r.state.head] == nil {
		return err // rewritten: there is nothing to list
	}
	err = r.again(ctx, need{Want: tip}) // with all of its history, which compaction removes again
	if errors.Is(err, objects.ErrTooLarge) {
		return nil // Since says that it is not certain
	}
	return err
}

// errLimit: the pack is longer than allowed.
var errLimit = errors.New("the limit is reached")

// limited accepts a number of bytes, and records why it rejected more.
type limited struct {
	w    io.Writer
	left int64
	err  error
}

func (l *limited) Write(b []byte) (n int, err error) {
	if l.left -= int64(len(b)); l.left < 0 {
		l.err = errLimit
		return 0, l.err
	}
	n, l.err = l.w.Write(b)
	return n, l.err
}
