package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// fileRemote reads a repository on this machine. No git program is run: refs and
// objects are read from its files, as git allows at any time. go-git's own server
// knows no depth, so it would send all of the history each time.
type fileRemote struct {
	from address
	here func(id plumbing.Hash) bool // the local copy has this object
}

type fileConversation struct {
	*fileRemote
	storage *filesystem.Storage
}

func (r *fileRemote) Ask(ctx context.Context) (conversation, *packp.AdvRefs, error) {
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	storage, err := r.open()
	if err != nil {
		return nil, nil, err
	}
	c := &fileConversation{r, storage}
	refs := packp.NewAdvRefs()
	_ = refs.Capabilities.Set(capability.Shallow)
	all, err := storage.IterReferences()
	if err == nil {
		err = all.ForEach(func(ref *plumbing.Reference) error {
			if ref.Name().IsBranch() && ref.Type() == plumbing.HashReference {
				refs.References[ref.Name().String()] = ref.Hash()
			}
			return nil
		})
	}
	if err != nil {
		c.Close()
		return nil, nil, r.failed(err)
	}
	if head, err := storer.ResolveReference(storage, plumbing.HEAD); err == nil {
		id := head.Hash()
		refs.Head = &id
	}
	return c, refs, nil
}

// open finds the repository: in the folder itself, in its .git, or in the one of that
// name with .git behind it, as in git.
func (r *fileRemote) open() (*filesystem.Storage, error) {
	for _, dir := range []string{r.from.path, r.from.path + ".git"} {
		repo, err := git.PlainOpenWithOptions(dir, &git.PlainOpenOptions{EnableDotGitCommonDir: true})
		if errors.Is(err, git.ErrRepositoryNotExists) {
			if _, err := os.ReadDir(dir); errors.Is(err, fs.ErrPermission) {
				return nil, r.failed(err)
			}
			continue
		}
		if err != nil {
			return nil, r.failed(err)
		}
		opened := repo.Storer.(*filesystem.Storage)
		defer func() { _ = opened.Close() }()
		return filesystem.NewStorageWithOptions(opened.Filesystem(), cache.NewObjectLRU(4*cache.MiByte),
			filesystem.Options{LargeObjectThreshold: 1 << 20, AlternatesFS: osfs.New("/")}), nil
	}
	if _, err := os.Stat(r.from.path); err == nil {
		return nil, r.from.Fault(errNotFound, "the folder is there, but is not a git repository", "make one with git init --bare, or name another folder", nil)
	}
	return nil, r.from.Fault(errNotFound, "no such folder", "check the path, and that its disk is mounted", fs.ErrNotExist)
}

func (r *fileRemote) failed(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return r.from.Fault(errDenied, err.Error(), "let this program's user read the folder", err)
	}
	return r.from.Fault(errCut, err.Error(), "this is retried; if that does not help, run git fsck there", err)
}

func (c *fileConversation) Close() { _ = c.storage.Close() }

func (c *fileConversation) Pack(ctx context.Context, req *packp.UploadPackRequest, w io.Writer) error {
	s := &objects.Store{Objects: closing{c.storage}}
	ids, err := c.missing(ctx, s, req)
	if err == nil {
		err = s.WritePack(&untilEnd{ctx, w}, ids)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil || errors.Is(err, objects.ErrTooLong):
		return err
	}
	return c.failed(fmt.Errorf("read the repository: %w", err))
}

// closing is a storage that reads an object for its size, which the cache keeps. go-git leaves the file of a loose one open otherwise.
type closing struct{ *filesystem.Storage }

func (s closing) EncodedObjectSize(id plumbing.Hash) (int64, error) {
	o, err := s.EncodedObject(plumbing.AnyObject, id)
	if err != nil {
		return 0, err
	}
	return o.Size(), nil
}

// missing lists the objects of a request that are not here. It walks from the commit
// that is wanted down to what is here. A parent that the other repository lacks is where
// its own history ends.
func (c *fileConversation) missing(ctx context.Context, s *objects.Store, req *packp.UploadPackRequest) ([]plumbing.Hash, error) {
	depth, _ := req.Depth.(packp.DepthCommits)
	type step struct {
		id    plumbing.Hash
		depth packp.DepthCommits
	}
	todo := []step{{req.Wants[0], 1}}
	v := s.Inventory()
	if len(req.Haves) > 0 {
		v.Skip = c.here
	}
	seen, graph := map[plumbing.Hash]bool{}, objects.NewGraph(s)
	for len(todo) > 0 && ctx.Err() == nil {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[at.id] || v.Skip != nil && v.Skip(at.id) {
			continue
		}
		seen[at.id] = true
		n, err := graph.Node(at.id)
		if n == nil && err == nil && at.id == req.Wants[0] {
			err = plumbing.ErrObjectNotFound
		}
		if n != nil {
			err = v.Add(n.ID, n.Tree)
		}
		if errors.Is(err, objects.ErrTooLong) {
			return nil, err
		}
		if err != nil {
			return nil, fmt.Errorf("commit %s: %v", at.id, err) //nolint:errorlint // what is missing there is not missing here
		}
		if n != nil && (depth == 0 || at.depth < depth) {
			for _, p := range n.Parents {
				todo = append(todo, step{p, at.depth + 1})
			}
		}
	}
	return v.List(), nil
}

// untilEnd writes until the context ends.
type untilEnd struct {
	ctx context.Context // it lives as long as one call
	w   io.Writer
}

func (u *untilEnd) Write(b []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.w.Write(b)
}
