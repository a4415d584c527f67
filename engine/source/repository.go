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

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// Repository follows one branch of a remote repository. Its methods are for one goroutine; any
// goroutine may read the returned files at any time, also during a fetch and after their commit was
// removed.
type Repository struct {
	o      Options
	from   address
	remote remote
	disk   disk

	state   state
	commits // what packs hold
	packs   packs
	damaged *atomic.Bool // set by readers that found a damaged object

	compacted int64 // bytes of packs when compaction was last considered
}

// OpenRepository opens the local copy, or creates an empty one; it does not contact the remote. It
// moves a damaged copy aside, with a warning in o.Log. A copy that cannot be read for another reason is an error,
// and stays as it is.
func OpenRepository(o Options) (*Repository, error) { return open(o, nil) }

// open is OpenRepository with a hook before each access to the local copy.
func open(o Options, before func(op, name string) error) (*Repository, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	from, err := parseAddress(o.URL)
	if err != nil {
		return nil, fmt.Errorf("open repository: %w", err)
	}
	r := &Repository{o: o, from: from, damaged: new(atomic.Bool), commits: commits{path: o.Path, maxFile: o.MaxFile}}
	r.disk = disk{folder{o.Dir, before}, o.Branch, o.largest, cache.NewObjectLRU(cache.MiByte)}
	r.remote = newRemote(from, remoteOptions{
		Auth: o.Auth, Transport: o.Transport, Timeout: o.Timeout, MaxPack: o.MaxPack, Has: func(id plumbing.Hash) bool { return r.objects.Has(id) },
	})
	return r, r.reload()
}

// String is the URL without credentials.
func (r *Repository) String() string { return r.from.String() }

// reload reads the local copy from disk. A damaged one is moved aside, and an empty one is created. Any other error
// changes nothing: not the files, and not what r knows.
func (r *Repository) reload() error {
	if err := r.disk.prepare(); err != nil {
		return err
	}
	s, ps, unused, err := r.disk.load()
	graph := objects.NewGraph(r.newStore(ps))
	if err == nil {
		s.ends, err = whole(graph, s)
	}
	switch {
	case errors.Is(err, objects.ErrDamaged):
		to, moved := r.disk.aside()
		if moved != nil {
			return errors.Join(fmt.Errorf("%w; it cannot be moved aside", err), moved)
		}
		r.o.Log.Warn("The local copy of the repository is damaged; it is moved aside and fetched again.", "folder", r.o.Dir, "moved_to", to, "error", err)
		s, ps, graph = state{}, nil, nil
		if err := r.disk.prepare(); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("open the local copy: %w", err)
	}
	for _, name := range unused {
		if err == nil {
			_ = r.disk.remove(name) // it does no harm either
		}
	}
	r.state = s
	r.hold(ps)
	if graph != nil {
		r.graph.Known = graph.Known // not to be read again
	}
	r.damaged.Store(false)
	return nil
}

// whole checks that everything is there that a state names, and returns the commits at which its history stops.
func whole(graph *objects.Graph, s state) ([]plumbing.Hash, error) {
	v := graph.Store.Inventory()
	for _, id := range s.tips() {
		n, err := graph.Node(id)
		if err == nil && n == nil {
			err = objects.Damage(fmt.Errorf("commit %s is missing", id))
		}
		if err == nil {
			err = v.Add(id, n.Tree)
		}
		if errors.Is(err, plumbing.ErrObjectNotFound) {
			err = objects.Damage(fmt.Errorf("a part of commit %s is missing", id))
		}
		if err != nil {
			return nil, err
		}
	}
	p, err := graph.Past(s.tips()...)
	return p.Ends(), err
}

// tips are the commits that must stay: the head and those kept.
func (s state) tips() []plumbing.Hash {
	if s.head.IsZero() {
		return s.kept
	}
	return withHash(s.kept, s.head)
}

// hold takes packs for all that is here.
func (r *Repository) hold(ps packs) {
	r.packs, r.compacted = ps, ps.size()
	r.use(r.newStore(ps))
}

func (r *Repository) newStore(ps packs) *objects.Store {
	flag := r.damaged
	return &objects.Store{Objects: ps, Damaged: func() { flag.Store(true) }}
}

// Head asks the remote for the newest commit of the branch, and fetches it if it is new. Without a
// change that is one request. Errors of the remote are *Error; the local copy stays readable
// in any case.
func (r *Repository) Head(ctx context.Context) (model.Commit, error) {
	c, refs, err := r.remote.Ask(ctx)
	if err != nil {
		return model.Commit{}, err
	}
	defer c.Close()
	if r.damaged.Load() { // now that the remote can replace it
		if err := r.reload(); err != nil {
			return model.Commit{}, err
		}
	}
	tip, err := r.tip(refs)
	if err == nil && tip != r.state.head {
		if old, ok := r.o.Refusals[r.o.Dir]; ok && tip == old.commit {
			return model.Commit{}, old.why
		}
		err = r.fetch(ctx, c, refs, tip)
		if delete(r.o.Refusals, r.o.Dir); errors.Is(err, objects.ErrTooLarge) {
			r.o.Refusals[r.o.Dir] = refusal{tip, err}
		}
		if errors.Is(err, objects.ErrDamaged) || errors.Is(err, fs.ErrNotExist) {
			r.damaged.Store(true) // files were removed while in use
		}
	}
	if err != nil {
		return model.Commit{}, err
	}
	return r.commit(tip)
}

// Keep sets which commits, besides the head, must stay available; it replaces an earlier call, and
// survives a restart. Other commits are removed in time, and so may be the history before the
// oldest of these.
//
// Commits that are not local cannot be kept: an ErrUnknown error names them, and the others are
// still kept.
func (r *Repository) Keep(ids ...string) error {
	var kept []plumbing.Hash
	var errs []error
	for _, id := range ids {
		h, err := objects.ParseID(id)
		if err == nil && !r.objects.Has(h) {
			err = fmt.Errorf("%w: %s", objects.ErrUnknown, id)
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
		errs = append(errs, r.compact())
	}
	return errors.Join(errs...)
}

// ends finds the commits at which history stops here.
func (r *Repository) ends(s state) ([]plumbing.Hash, error) {
	p, err := r.graph.Past(s.tips()...)
	return p.Ends(), err
}
