package source

// On the command line a site is a folder in a checkout of git. It has the commit of the checkout, unless the
// folder differs from that commit.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// DirtySuffix is the suffix of a commit id whose folder differs from that commit.
const DirtySuffix = "-dirty"

// Worktree is a folder on disk and the git checkout that it is in.
type Worktree struct {
	dir    string          // absolute, without symbolic links
	inside string          // the folder as seen from the root of the checkout, with slashes; "." for the root itself
	repo   *git.Repository // nil where no checkout is
}

// OpenWorktree finds the git checkout around a folder. A folder without one is not an error; a
// checkout that cannot be read is.
func OpenWorktree(dir string) (*Worktree, error) {
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return nil, fmt.Errorf("open site folder: %w", err)
	}
	w := &Worktree{dir: abs}
	w.repo, err = git.PlainOpenWithOptions(abs, &git.PlainOpenOptions{DetectDotGit: true, EnableDotGitCommonDir: true})
	if errors.Is(err, git.ErrRepositoryNotExists) {
		return w, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the git checkout around %s: %w", abs, err)
	}
	tree, err := w.repo.Worktree()
	if errors.Is(err, git.ErrIsBareRepository) {
		w.repo = nil // a folder inside a bare repository is not a checkout of it
		return w, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the git checkout around %s: %w", abs, err)
	}
	root, err := filepath.EvalSymlinks(tree.Filesystem.Root())
	if err == nil {
		w.inside, err = filepath.Rel(root, abs)
	}
	if err != nil {
		return nil, fmt.Errorf("locate %s in its git checkout: %w", abs, err)
	}
	w.inside = filepath.ToSlash(w.inside)
	return w, nil
}

// Tracks reports whether git has a file of the folder in its index; name is
// relative to the folder.
func (w *Worktree) Tracks(name string) (bool, error) {
	if w.repo == nil {
		return false, nil
	}
	index, err := w.repo.Storer.Index()
	if err != nil {
		return false, fmt.Errorf("read the git index of %s: %w", w.dir, err)
	}
	full := path.Join(w.inside, filepath.ToSlash(name))
	for _, e := range index.Entries {
		if e.Name == full {
			return true, nil
		}
	}
	return false, nil
}

// Commit is the checked-out commit. If the folder differs from it, only an id is known, with the suffix Dirty; the
// zero Commit without a checkout or a commit.
//
// The folder differs when a file of the commit has other contents or is missing, or when it has an HCL file that
// the commit lacks. Changes elsewhere in the checkout do not count, and neither do permissions.
func (w *Worktree) Commit() (model.Commit, error) {
	if w.repo == nil {
		return model.Commit{}, nil
	}
	head, err := w.repo.Head()
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return model.Commit{}, nil
	}
	if err != nil {
		return model.Commit{}, fmt.Errorf("read the commit of %s: %w", w.dir, err)
	}
	id := head.Hash().String()
	c, err := w.repo.CommitObject(head.Hash())
	same := false
	if err == nil {
		same, err = w.matches(c)
	}
	if err != nil {
		return model.Commit{}, fmt.Errorf("compare %s with commit %.8s: %w", w.dir, id, err)
	}
	if !same {
		return model.Commit{ID: id + DirtySuffix}, nil
	}
	return (&objects.Store{Objects: w.repo.Storer}).Describe(c), nil
}

func (w *Worktree) matches(c *object.Commit) (bool, error) {
	tree, err := c.Tree()
	if err == nil && w.inside != "." {
		tree, err = tree.Tree(w.inside)
	}
	if errors.Is(err, object.ErrDirectoryNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	known := map[string]bool{}
	walker := object.NewTreeWalker(tree, true, nil)
	defer walker.Close()
	for {
		name, entry, err := walker.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, err
		}
		if entry.Mode == filemode.Dir || entry.Mode == filemode.Submodule {
			continue
		}
		known[name] = true
		same, err := sameBlob(filepath.Join(w.dir, filepath.FromSlash(name)), entry)
		if err != nil || !same {
			return false, err
		}
	}
	return w.onlyKnown(known)
}

// onlyKnown reports whether each HCL file of the folder is one of the commit's.
// Hidden folders are not part of a site.
func (w *Worktree) onlyKnown(known map[string]bool) (bool, error) {
	all := true
	err := fs.WalkDir(os.DirFS(w.dir), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !d.IsDir() && path.Ext(name) == ".hcl" && !known[name]:
			all = false
			return fs.SkipAll
		}
		return nil
	})
	return all, err
}

// sameBlob compares a file with an entry of a tree by git's hash of its contents;
// of a symbolic link those are its target.
func sameBlob(file string, entry object.TreeEntry) (bool, error) {
	info, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if isLink := info.Mode()&fs.ModeSymlink != 0; isLink || entry.Mode == filemode.Symlink {
		if !isLink || entry.Mode != filemode.Symlink {
			return false, nil
		}
		target, err := os.Readlink(file)
		return plumbing.ComputeHash(plumbing.BlobObject, []byte(target)) == entry.Hash, err
	}
	if !info.Mode().IsRegular() {
		return false, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	h := plumbing.NewHasher(plumbing.BlobObject, info.Size())
	if _, err := io.Copy(h, f); err != nil {
		return false, err
	}
	return h.Sum() == entry.Hash, nil
}
