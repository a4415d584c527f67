package source

import (
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// fileRemote reads a repository on this machine. No git program is run: refs and
// objects are read from its files, as git lets anybody do at any time.
type fileRemote struct {
	o    Options
	from address
	zlib *zlib.Writer // for all packs: they are made one at a time
}

type fileTalk struct {
	r       *fileRemote
	storage *filesystem.Storage
	branch  plumbing.Hash
}

func (r *fileRemote) ask(ctx context.Context) (talk, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	dir, err := r.gitDir()
	if err != nil {
		return nil, err
	}
	t := &fileTalk{r: r}
	t.storage = filesystem.NewStorageWithOptions(osfs.New(dir), cache.NewObjectLRU(4*cache.MiByte),
		filesystem.Options{LargeObjectThreshold: 1 << 20, AlternatesFS: osfs.New("/")})
	ref, err := t.storage.Reference(plumbing.NewBranchReferenceName(r.o.Branch))
	switch {
	case errors.Is(err, plumbing.ErrReferenceNotFound):
		err = t.missing()
	case err != nil:
		err = r.failed(err)
	default:
		t.branch = ref.Hash()
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// gitDir finds the folder that holds refs and objects: the one named, its .git, or
// the one of that name with .git behind it, as in git.
func (r *fileRemote) gitDir() (string, error) {
	for _, dir := range []string{filepath.Join(r.from.path, ".git"), r.from.path, r.from.path + ".git"} {
		info, err := os.Stat(dir)
		if err == nil && !info.IsDir() {
			dir, err = linked(dir)
		}
		if errors.Is(err, fs.ErrPermission) {
			return "", r.failed(err)
		}
		if err != nil || dir == "" {
			continue
		}
		if common, err := os.ReadFile(filepath.Join(dir, "commondir")); err == nil {
			dir = within(dir, strings.TrimSpace(string(common)))
		}
		if _, err := os.Stat(filepath.Join(dir, "objects")); err != nil {
			if errors.Is(err, fs.ErrPermission) {
				return "", r.failed(err)
			}
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "HEAD")); err == nil {
			return dir, nil
		}
	}
	if _, err := os.Stat(r.from.path); err == nil {
		return "", r.fault(ErrNotFound, "the folder is there, but is no git repository", "make one with git init --bare, or name another folder", nil)
	}
	return "", r.fault(ErrNotFound, "no such folder", "look at the path, and whether the disk it is on is mounted", fs.ErrNotExist)
}

// linked reads the file .git of a worktree, which says where the repository is.
func linked(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	dir, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "gitdir: ")
	if !ok {
		return "", nil
	}
	return within(filepath.Dir(file), dir), nil
}

func within(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// missing says what there is instead of the branch.
func (t *fileTalk) missing() error {
	refs, err := t.storage.IterReferences()
	if err != nil {
		return t.r.failed(err)
	}
	defer refs.Close()
	var names []string
	err = refs.ForEach(func(ref *plumbing.Reference) error {
		if ref.Name().IsBranch() && ref.Type() == plumbing.HashReference {
			names = append(names, ref.Name().Short())
		}
		return nil
	})
	switch {
	case err != nil:
		return t.r.failed(err)
	case len(names) == 0:
		return noCommit(t.r.from)
	}
	return noBranch(t.r.from, t.r.o.Branch, names)
}

func (r *fileRemote) fault(kind error, detail, advice string, err error) error {
	return &RemoteError{Kind: kind, Where: r.from.String(), Detail: detail, Advice: advice, Err: err, temporary: false}
}

func (r *fileRemote) failed(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return r.fault(ErrDenied, err.Error(), "let this program's user read the folder", err)
	}
	return &RemoteError{Kind: ErrCut, Where: r.from.String(), Detail: err.Error(), Advice: "it is tried again; if that does not help, run git fsck there", Err: err, temporary: true}
}

func (t *fileTalk) tip() (plumbing.Hash, error) { return t.branch, nil }

func (t *fileTalk) close() { _ = t.storage.Close() }

func (t *fileTalk) bring(ctx context.Context, n need, w io.Writer) error {
	if t.r.zlib == nil {
		t.r.zlib = zlib.NewWriter(nil)
	}
	c := copying{ctx: ctx, from: t.storage, n: n, seen: map[plumbing.Hash]bool{}, left: t.r.o.MaxPack}
	err := c.commits()
	if err == nil {
		err = packOf(w, t.r.zlib, len(c.ids), c.each)
	}
	if err == nil || ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	if errors.Is(err, errLimit) || !errors.Is(err, errRemote) {
		return err
	}
	return t.r.failed(err)
}

// errRemote marks what went wrong while the other repository was read.
var errRemote = errors.New("read the repository")

// copying gathers the objects that are missing here, then hands them out one by one.
type copying struct {
	ctx  context.Context // it lives as long as one call
	from *filesystem.Storage
	n    need
	seen map[plumbing.Hash]bool
	ids  []plumbing.Hash
	left int64
}

// commits walks from what is wanted down to what is here. A parent that the other
// repository lacks is where its own history ends.
func (c *copying) commits() error {
	type step struct {
		id    plumbing.Hash
		depth int
	}
	todo := []step{{c.n.want, 1}}
	if c.n.depth == everything {
		for _, id := range c.n.ends {
			todo = append(todo, step{id, 1})
		}
	}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if err := c.ctx.Err(); err != nil {
			return err
		}
		end := c.n.depth == everything && c.isEnd(s.id)
		if c.seen[s.id] || c.n.has(s.id) && !end {
			continue
		}
		commit, err := object.GetCommit(c.from, s.id)
		if errors.Is(err, plumbing.ErrObjectNotFound) && s.id != c.n.want {
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: commit %s: %w", errRemote, s.id, err)
		}
		if end {
			c.seen[s.id] = true // it is here already, and only leads on
		} else if err := c.add(s.id, commit.TreeHash); err != nil {
			return err
		}
		if c.n.depth == 0 || c.n.depth == everything || s.depth < c.n.depth {
			for _, p := range commit.ParentHashes {
				todo = append(todo, step{p, s.depth + 1})
			}
		}
	}
	return nil
}

func (c *copying) isEnd(id plumbing.Hash) bool {
	return slices.Contains(c.n.ends, id)
}

func (c *copying) add(commit, tree plumbing.Hash) error {
	if err := c.one(commit); err != nil {
		return err
	}
	return c.tree(tree, 1)
}

// one notes an object to be copied.
func (c *copying) one(id plumbing.Hash) error {
	size, err := c.from.EncodedObjectSize(id)
	if err != nil {
		return fmt.Errorf("%w: object %s: %w", errRemote, id, err)
	}
	c.seen[id] = true
	c.ids = append(c.ids, id)
	if c.left -= size; c.left < 0 {
		return errLimit
	}
	return nil
}

func (c *copying) tree(id plumbing.Hash, depth int) error {
	if c.seen[id] || c.n.has(id) {
		return nil
	}
	if depth > deepest {
		return fmt.Errorf("%w: more than %d folders in each other", errTooLong, deepest)
	}
	t, err := object.GetTree(c.from, id)
	if err != nil {
		return fmt.Errorf("%w: tree %s: %w", errRemote, id, err)
	}
	if err := c.one(id); err != nil {
		return err
	}
	for _, e := range t.Entries {
		switch {
		case e.Mode == modeSubmodule || c.seen[e.Hash] || c.n.has(e.Hash):
		case e.Mode == modeFolder:
			err = c.tree(e.Hash, depth+1)
		default:
			err = c.one(e.Hash)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// each reads the objects; only one of them is in memory at a time.
func (c *copying) each(_ io.Writer, put func(raw) error) error {
	for _, id := range c.ids {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		o, err := c.read(id)
		if err != nil {
			return fmt.Errorf("%w: object %s: %w", errRemote, id, err)
		}
		if err := put(o); err != nil {
			return err
		}
	}
	return nil
}

func (c *copying) read(id plumbing.Hash) (raw, error) {
	o, err := c.from.EncodedObject(plumbing.AnyObject, id)
	if err != nil {
		return raw{}, err
	}
	r, err := o.Reader()
	if err != nil {
		return raw{}, err
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(r)
	if err == nil && plumbing.ComputeHash(o.Type(), data) != id {
		err = errors.New("its contents are not what its id says")
	}
	return raw{o.Type(), data}, err
}
