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
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// remote is where a repository is asked. Its errors are a *RemoteError, or ctx's.
type remote interface {
	// ask asks which branches there are.
	ask(ctx context.Context) (conversation, *packp.AdvRefs, error)
}

// conversation is with a remote that has said which branches there are.
type conversation interface {
	// pack writes one whole pack with what is asked for. It may be called once.
	pack(ctx context.Context, req *packp.UploadPackRequest, w io.Writer) error
	close()
}

// need is what a fetch asks for.
type need struct {
	want  plumbing.Hash
	haves []plumbing.Hash // commits that are here, with all that belongs to them and their past, down to ends
	ends  []plumbing.Hash // commits of which the parents are not here
	depth int             // so many generations; 0: all that haves do not have
}

// mostHaves bounds how many commits are shown to the remote to find common ground.
const mostHaves = 64

// tip is the commit of the branch.
func (r *Repository) tip(refs *packp.AdvRefs) (plumbing.Hash, error) {
	const prefix = "refs/heads/"
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
		return plumbing.ZeroHash, r.from.noCommit()
	}
	return plumbing.ZeroHash, r.from.fault(ErrNoBranch, fmt.Sprintf("%q", r.o.Branch), diag.DidYouMean(r.o.Branch, names), nil)
}

// fetch brings the commit tip and makes it the head. Nothing that was here changes
// until all of it is there.
func (r *Repository) fetch(ctx context.Context, c conversation, refs *packp.AdvRefs, tip plumbing.Hash) error {
	n, err := r.need(tip)
	if err != nil {
		return err
	}
	old, oldPacks := r.objects, r.packs
	if !r.objects.has(tip) { // the branch may have moved back
		err = r.bring(ctx, c, refs, n)
	}
	if n.depth != 1 && (errors.Is(err, ErrTooLarge) || errors.Is(err, errParts)) {
		// The way from what is here to the new head is too long, or what is here is not
		// what the remote assumes: begin again with the head alone.
		err = r.again(ctx, need{want: tip, depth: 1})
	} else if err == nil {
		err = r.deepen(ctx, tip)
	}
	if err != nil {
		_ = r.disk.drop(r.packs[len(oldPacks):], nil) // else they stay until the next start
		r.objects, r.packs, r.graph.store = old, oldPacks, old
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
	if err := r.compact(before.head); err != nil {
		// The new head is here, and that is what was asked for.
		r.o.Log.Warn("The local copy of the repository could not be made smaller; it is tried again.", "folder", r.o.Dir, "error", err)
	}
	return nil
}

// need says what is missing for a commit to be here.
func (r *Repository) need(tip plumbing.Hash) (need, error) {
	n := need{want: tip, haves: r.state.tips()}
	if len(n.haves) == 0 {
		n.depth = 1
		return n, nil
	}
	p, err := r.graph.past(n.haves...)
	if err != nil {
		return need{}, err
	}
	for i, c := range p.sorted() {
		if i == mostHaves {
			break
		}
		n.haves = append(n.haves, c.id)
	}
	n.haves, n.ends = withHash(n.haves), p.ends()
	return n, nil
}

// request makes the message that asks for a pack. Thin packs are not asked for, so
// what comes is complete in itself.
func request(refs *packp.AdvRefs, n need) (*packp.UploadPackRequest, error) {
	req := packp.NewUploadPackRequest()
	can := refs.Capabilities
	if can.Supports(capability.Sideband64k) {
		_ = req.Capabilities.Set(capability.Sideband64k)
	} else if can.Supports(capability.Sideband) {
		_ = req.Capabilities.Set(capability.Sideband)
	}
	for _, c := range []capability.Capability{capability.OFSDelta, capability.NoProgress} {
		if can.Supports(c) {
			_ = req.Capabilities.Set(c)
		}
	}
	if can.Supports(capability.Agent) {
		_ = req.Capabilities.Set(capability.Agent, "homestak-gitops")
	}
	req.Wants = []plumbing.Hash{n.want}
	req.Haves = slices.Clone(n.haves)
	if can.Supports(capability.Shallow) { // where not, all of the history comes
		_ = req.Capabilities.Set(capability.Shallow)
		req.Shallows, req.Depth = n.ends, packp.DepthCommits(n.depth)
	}
	return req, req.Validate()
}

// copyPack writes the pack that an answer holds.
func copyPack(w io.Writer, res io.Reader, req *packp.UploadPackRequest) error {
	switch {
	case req.Capabilities.Supports(capability.Sideband64k):
		res = sideband.NewDemuxer(sideband.Sideband64k, res)
	case req.Capabilities.Supports(capability.Sideband):
		res = sideband.NewDemuxer(sideband.Sideband, res)
	}
	// The copy is in pieces of a packet: the demuxer fills the buffer that it gets, and so
	// would keep the last bytes of a connection that has become silent.
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{res}, make([]byte, 32<<10))
	return err
}

// errParts is of an answer that lacks parts of the commit that was asked for.
var errParts = errors.New("parts of the commit are missing")

// bring adds a pack to the objects, and checks that the commit is then complete.
func (r *Repository) bring(ctx context.Context, c conversation, refs *packp.AdvRefs, n need) error {
	req, err := request(refs, n)
	if err != nil {
		return r.from.fault(ErrNotGit, err.Error(), "check the URL", err)
	}
	p, err := r.disk.add(func(w io.Writer) error {
		to := &limited{w: w, left: r.o.MaxPack}
		err := c.pack(ctx, req, to)
		if to.err != nil {
			return to.err // the disk, or the limit: not the remote
		}
		return err
	})
	if p != nil && err == nil {
		r.packs = append(slices.Clone(r.packs), p)
		r.objects = r.newStore(r.packs)
		r.graph.store = r.objects
	}
	var top *node
	if err == nil {
		if top, err = r.graph.node(n.want); err == nil && top == nil {
			err = plumbing.ErrObjectNotFound
		}
	}
	if err == nil {
		err = r.objects.inventory().add(top.id, top.tree)
	}
	switch {
	case errors.Is(err, errLimit):
		return r.from.fault(ErrTooLarge, fmt.Sprintf("more than %d MiB to fetch", r.o.MaxPack>>20), "take large files out of the repository, or raise the limit", err)
	case errors.Is(err, errTooLong): // it would take all memory or time
		return r.from.fault(ErrTooLarge, err.Error(), "take that out of the repository; a site has no use for it", err)
	case errors.Is(err, errBadPack):
		return r.from.fault(ErrCut, err.Error(), "nothing is lost, it is tried again", err)
	case errors.Is(err, plumbing.ErrObjectNotFound):
		return r.from.fault(ErrCut, fmt.Sprintf("the answer lacks parts of commit %.8s", n.want), "it is tried again; if that does not help, run git fsck in the repository", errors.Join(errParts, err))
	}
	return err
}

// again asks once more: a conversation can bring something only once.
func (r *Repository) again(ctx context.Context, n need) error {
	c, refs, err := r.remote.ask(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	return r.bring(ctx, c, refs, n)
}

// deepen closes a gap. Where a branch was merged that began below the place where
// history stops here, its past was brought down to the root, but not the commits
// between that past and ours: without these nobody could see what is new.
func (r *Repository) deepen(ctx context.Context, tip plumbing.Hash) error {
	if len(r.state.ends) == 0 || r.state.head.IsZero() {
		return nil
	}
	_, err := r.graph.between(r.state.head, tip)
	if !errors.Is(err, ErrUnrelated) {
		return err
	}
	now, err := r.graph.past(tip)
	if err != nil || now[r.state.head] == nil {
		return err // rewritten: there is nothing to list
	}
	err = r.again(ctx, need{want: tip}) // with all of its history, which compaction removes again
	if errors.Is(err, ErrTooLarge) {
		return nil // Since says that it is not certain
	}
	return err
}

// errLimit is of a pack that is longer than allowed.
var errLimit = errors.New("the limit is reached")

// limited accepts so many bytes, and remembers why it did not accept more.
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
