package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync/atomic"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Repository follows one branch of a remote repository. Its methods are for one
// goroutine; the files it returns may be read by any, at any time, also while it
// fetches and after what they belong to was forgotten.
type Repository struct {
	o      Options
	from   address
	remote remote
	disk   disk

	state   state
	packs   packs
	objects *store // of packs; replaced with them, and read by older files still
	graph   *graph
	damaged *atomic.Bool // set by readers that found a damaged object

	weighed int64 // bytes of packs when compaction was last considered
}

// OpenRepository opens the local copy, or makes an empty one; it does not ask the
// remote. A copy that is damaged is thrown away, and o.Log is told.
func OpenRepository(o Options) (*Repository, error) { return open(o, nil) }

// open is OpenRepository with a hook before each change of the local copy.
func open(o Options, before func(op, name string) error) (*Repository, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	from, err := parseAddress(o.URL)
	if err != nil {
		return nil, fmt.Errorf("open repository: %w", err)
	}
	r := &Repository{o: o, from: from, damaged: new(atomic.Bool)}
	r.disk = disk{o.Dir, o.Branch, o.largest, cache.NewObjectLRU(cache.MiByte), before}
	switch from.by {
	case byHTTP:
		r.remote = &httpRemote{o: o, from: from}
	case bySSH:
		r.remote = &sshRemote{o: o, from: from}
	default:
		r.remote = &fileRemote{from: from, branch: o.Branch, here: func(id plumbing.Hash) bool { return r.objects.has(id) }}
	}
	return r, r.reload()
}

// String is the URL without credentials.
func (r *Repository) String() string { return r.from.String() }

// reload reads the local copy from disk, and makes an empty one where it cannot be
// used.
func (r *Repository) reload() error {
	r.damaged.Store(false)
	if err := r.disk.prepare(); err != nil {
		return err
	}
	s, ps, err := r.disk.load()
	if err == nil {
		r.state = s
		r.use(ps)
		err = r.whole()
	}
	if err == nil {
		r.state.ends, err = r.ends(r.state)
	}
	if err == nil {
		return nil
	}
	r.o.Log.Warn("The local copy of the repository is damaged; it is removed and fetched again.", "folder", r.o.Dir, "error", err)
	r.state = state{}
	r.use(nil)
	return r.disk.wipe()
}

// whole checks that everything is there that the state names.
func (r *Repository) whole() error {
	v := r.objects.inventory()
	for _, id := range r.state.tips() {
		n, err := r.graph.node(id)
		if err == nil && n == nil {
			err = fmt.Errorf("commit %s is missing", id)
		}
		if err == nil {
			err = v.add(id, n.tree)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tips are the commits that must stay: the head and those kept.
func (s state) tips() []plumbing.Hash {
	if s.head.IsZero() {
		return s.kept
	}
	return withHash(s.kept, s.head)
}

func (r *Repository) use(ps packs) {
	r.packs, r.weighed = ps, ps.size()
	r.objects = r.newStore(ps)
	r.graph = newGraph(r.objects)
}

func (r *Repository) newStore(ps packs) *store {
	flag := r.damaged
	return &store{objects: ps, damaged: func() { flag.Store(true) }}
}

// Head asks the remote for the newest commit of the branch, and brings it here if it
// is new. Where nothing changed that is one request. The error is a *RemoteError if it is
// the remote's; what was here stays readable in any case.
func (r *Repository) Head(ctx context.Context) (model.Commit, error) {
	if r.damaged.Load() {
		if err := r.reload(); err != nil {
			return model.Commit{}, err
		}
	}
	c, refs, err := r.remote.ask(ctx)
	if err != nil {
		return model.Commit{}, err
	}
	defer c.close()
	tip, err := r.tip(refs)
	if err == nil && tip != r.state.head {
		err = r.fetch(ctx, c, refs, tip)
		if errors.Is(err, ErrDamaged) || errors.Is(err, fs.ErrNotExist) {
			r.damaged.Store(true) // somebody removed files beneath us
		}
	}
	if err != nil {
		return model.Commit{}, err
	}
	return r.commit(tip)
}

// Commit describes a commit that is here; ErrUnknown if it is not.
func (r *Repository) Commit(_ context.Context, id string) (model.Commit, error) {
	h, err := parseID(id)
	if err != nil {
		return model.Commit{}, err
	}
	return r.commit(h)
}

func (r *Repository) commit(id plumbing.Hash) (model.Commit, error) {
	c, err := r.objects.commit(id)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return model.Commit{}, fmt.Errorf("%w: %s", ErrUnknown, id)
	}
	if err != nil {
		return model.Commit{}, err
	}
	return about(c), nil
}

// Since lists the commits that to has and from has not, newest first, those that
// merges brought in included. It is ErrUnrelated if from is not known to be an
// ancestor of to.
func (r *Repository) Since(_ context.Context, from, to string) ([]model.Commit, error) {
	a, err := parseID(from)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnrelated, err)
	}
	b, err := parseID(to)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnrelated, err)
	}
	nodes, err := r.graph.between(a, b)
	if err != nil {
		return nil, err
	}
	out := make([]model.Commit, 0, len(nodes))
	for _, n := range nodes {
		c, err := r.commit(n.id)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// Keep says which commits, beside the head, must stay available; it replaces what an
// earlier call said, and holds over a restart. The other commits are forgotten in
// time, and so may be history before the oldest of these.
//
// Commits that are not here cannot be kept: they are named by an error that is
// ErrUnknown, and the others are kept nevertheless.
func (r *Repository) Keep(ids ...string) error {
	var kept []plumbing.Hash
	var errs []error
	for _, id := range ids {
		h, err := parseID(id)
		if err == nil && !r.objects.has(h) {
			err = fmt.Errorf("%w: %s", ErrUnknown, id)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		kept = withHash(kept, h)
	}
	next := r.state
	next.kept = kept
	if !slices.Equal(kept, r.state.kept) {
		ends, err := r.ends(next)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		next.ends = ends
		if err := r.disk.save(next, r.state); err != nil {
			return errors.Join(append(errs, err)...)
		}
		r.state = next
		errs = append(errs, r.compact(true))
	}
	return errors.Join(errs...)
}

// ends finds the commits at which history stops here.
func (r *Repository) ends(s state) ([]plumbing.Hash, error) {
	p, err := r.graph.past(s.tips()...)
	return p.ends(), err
}

// Files gives the files of a commit's site folder: a read-only view, straight from
// the local copy. Symbolic links are followed as long as they stay inside the
// repository. Submodules are empty folders. The FileInfo.Sys of a file is the id of
// its contents, a string that is equal for equal contents.
//
// It fails with ErrUnknown if the commit is not here, and with fs.ErrNotExist if it
// has no such folder.
func (r *Repository) Files(id string) (fs.FS, error) {
	return filesOf(r.objects, id, r.o)
}

// Notes warns of what Files cannot show as one may expect: submodules, links that lead
// nowhere or out of the repository, and files that are only pointers of git-lfs.
func (r *Repository) Notes(id string) diag.List {
	return notesOf(r.objects, id, r.o)
}
