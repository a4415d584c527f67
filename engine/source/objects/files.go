package objects

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// longestLinks is the number of symbolic links that one name may lead through, as in Linux.
const longestLinks = 40

// longestTarget is the maximum length of the target of a symbolic link.
const longestTarget = 4096

// Tree is the fs.FS of a folder of a commit. It reads the objects as they were at its creation,
// whatever happens to the local copy.
type Tree struct {
	store *Store
	root  plumbing.Hash // the tree of the whole commit
	sub   string        // the folder that is shown
	at    time.Time
	limit int64

	folders sync.Map // plumbing.Hash → []object.TreeEntry: any goroutine may read, and trees never change
}

// Files gives the files of a commit below a folder; none of them may have more than limit bytes.
func (s *Store) Files(id, folder string, limit int64) (*Tree, error) {
	h, err := ParseID(id)
	if err != nil {
		return nil, err
	}
	top, err := s.Commit(h)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return nil, fmt.Errorf("%w: %s", ErrUnknown, id)
	}
	if err != nil {
		return nil, err
	}
	f := &Tree{store: s, root: top.TreeHash, sub: ".", at: top.Committer.When, limit: limit}
	if err := f.below(folder); err != nil {
		return nil, fmt.Errorf("commit %.8s: %w", id, err)
	}
	f.sub = folder
	return f, nil
}

// below fails if a folder of the commit is not there, and says what is.
func (f *Tree) below(folder string) error {
	if folder == "." {
		_, err := f.folder(f.root)
		return err
	}
	at := "."
	for part := range strings.SplitSeq(folder, "/") {
		next := path.Join(at, part)
		n, err := f.find(next, true)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("it has no folder %q%s: %w", next, f.instead(at, part), fs.ErrNotExist)
		case err != nil:
			return err
		case n.Mode != filemode.Dir:
			return fmt.Errorf("%q is not a folder; name the one that the site is in: %w", next, fs.ErrNotExist)
		}
		at = next
	}
	return nil
}

// instead lists what a folder contains where something was not found.
func (f *Tree) instead(at, name string) string {
	n, err := f.find(at, true)
	if err != nil {
		return ""
	}
	items, err := f.folder(n.Hash)
	if err != nil {
		return ""
	}
	var folders []string
	for _, i := range items {
		if i.Mode == filemode.Dir && !strings.HasPrefix(i.Name, ".") {
			folders = append(folders, i.Name)
		}
	}
	if say := diag.DidYouMean(name, folders); say != "" {
		return ", " + say
	}
	return ", nor any other there"
}

func (f *Tree) folder(id plumbing.Hash) ([]object.TreeEntry, error) {
	if items, ok := f.folders.Load(id); ok {
		return items.([]object.TreeEntry), nil
	}
	items, err := f.store.tree(id)
	if err != nil {
		return nil, err
	}
	sort.Slice(items, func(i, j int) bool { return items[i].Name < items[j].Name }) // git sorts folders as if a slash followed
	f.folders.Store(id, items)
	return items, nil
}

// find follows a path, which begins at the root of the commit. Symbolic links on the
// way are followed, and also the last one if follow says so.
func (f *Tree) find(name string, follow bool) (object.TreeEntry, error) {
	here := []object.TreeEntry{{Mode: filemode.Dir, Name: ".", Hash: f.root}} // the folders on the way, the root first
	todo, links := strings.Split(name, "/"), 0
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		last := here[len(here)-1]
		switch part {
		case "", ".":
			continue
		case "..":
			if len(here) == 1 {
				return object.TreeEntry{}, errOutside
			}
			here = here[:len(here)-1]
			continue
		}
		next, err := f.child(last, part)
		if err != nil {
			return object.TreeEntry{}, err
		}
		if next.Mode != filemode.Symlink || len(todo) == 0 && !follow {
			here = append(here, next)
			continue
		}
		if links++; links > longestLinks {
			return object.TreeEntry{}, errLoop
		}
		target, err := f.target(next)
		if err != nil {
			return object.TreeEntry{}, err
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return here[len(here)-1], nil
}

// Errors of symbolic links.
var (
	errOutside = errors.New("a symbolic link points outside the repository; put the file itself there")
	errLoop    = errors.New("symbolic links form a loop")
)

func (f *Tree) child(folder object.TreeEntry, name string) (object.TreeEntry, error) {
	if folder.Mode != filemode.Dir {
		return object.TreeEntry{}, fs.ErrNotExist // a file, or a submodule, which is an empty folder
	}
	items, err := f.folder(folder.Hash)
	if err != nil {
		return object.TreeEntry{}, err
	}
	i, ok := slices.BinarySearchFunc(items, name, func(e object.TreeEntry, name string) int { return strings.Compare(e.Name, name) })
	if !ok {
		return object.TreeEntry{}, fs.ErrNotExist
	}
	return items[i], nil
}

// target returns the target of a link, which must be inside the repository.
func (f *Tree) target(link object.TreeEntry) (string, error) {
	data, err := f.store.typed(link.Hash, plumbing.BlobObject, longestTarget)
	if err != nil {
		return "", err
	}
	if path.IsAbs(string(data)) {
		return "", errOutside
	}
	return string(data), nil
}

func (f *Tree) lookup(op, name string, follow bool) (object.TreeEntry, error) {
	if !fs.ValidPath(name) {
		return object.TreeEntry{}, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	i, err := f.find(path.Join(f.sub, name), follow)
	if err != nil {
		return object.TreeEntry{}, &fs.PathError{Op: op, Path: name, Err: err}
	}
	i.Name = path.Base(name) // a link keeps its own name
	return i, nil
}

// Open opens a file or folder.
func (f *Tree) Open(name string) (fs.File, error) {
	i, err := f.lookup("open", name, true)
	if err != nil {
		return nil, err
	}
	info, err := f.info(i)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	if info.IsDir() {
		list, err := f.ReadDir(name)
		return &openFolder{info, list}, err
	}
	return &openFile{f: f, item: i, info: info, path: name}, nil
}

// ReadFile reads a file; no other object is read for it but the folders above.
func (f *Tree) ReadFile(name string) ([]byte, error) {
	i, err := f.lookup("read", name, true)
	if err != nil {
		return nil, err
	}
	if i.Mode == filemode.Dir || i.Mode == filemode.Submodule {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errors.New("is a folder")}
	}
	data, err := f.content(i)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return data, nil
}

func (f *Tree) content(i object.TreeEntry) ([]byte, error) {
	data, err := f.store.typed(i.Hash, plumbing.BlobObject, f.limit)
	if errors.Is(err, ErrTooLong) {
		return nil, fmt.Errorf("%w: more than %d MiB in one file; a site does not need it", ErrTooLarge, f.limit>>20)
	}
	return data, err
}

// ReadDir lists a folder by name. A submodule has no files.
func (f *Tree) ReadDir(name string) ([]fs.DirEntry, error) {
	i, err := f.lookup("readdir", name, true)
	if err != nil {
		return nil, err
	}
	if i.Mode == filemode.Submodule {
		return []fs.DirEntry{}, nil
	}
	if i.Mode != filemode.Dir {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errors.New("is not a folder")}
	}
	items, err := f.folder(i.Hash)
	if err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	out := make([]fs.DirEntry, 0, len(items))
	for _, i := range items {
		out = append(out, &dirEntry{f, i})
	}
	return out, nil
}

// Stat describes a file; for a symbolic link, what it leads to.
func (f *Tree) Stat(name string) (fs.FileInfo, error) { return f.stat("stat", name, true) }

// Lstat describes a file, or the symbolic link itself.
func (f *Tree) Lstat(name string) (fs.FileInfo, error) { return f.stat("lstat", name, false) }

func (f *Tree) stat(op, name string, follow bool) (fs.FileInfo, error) {
	i, err := f.lookup(op, name, follow)
	if err != nil {
		return nil, err
	}
	info, err := f.info(i)
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return info, nil
}

// ReadLink gives the target of a symbolic link.
func (f *Tree) ReadLink(name string) (string, error) {
	i, err := f.lookup("readlink", name, false)
	if err != nil {
		return "", err
	}
	if i.Mode != filemode.Symlink {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	data, err := f.store.typed(i.Hash, plumbing.BlobObject, longestTarget)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return string(data), nil
}

func (f *Tree) info(i object.TreeEntry) (*fileInfo, error) {
	info := &fileInfo{name: i.Name, mode: fileMode(i.Mode), at: f.at, id: i.Hash.String()}
	if info.mode.IsDir() {
		return info, nil
	}
	n, err := f.store.length(i.Hash)
	info.size = n
	return info, err
}

func fileMode(m filemode.FileMode) fs.FileMode {
	switch {
	case m == filemode.Dir, m == filemode.Submodule:
		return fs.ModeDir | 0o555
	case m == filemode.Symlink:
		return fs.ModeSymlink | 0o777
	case m&0o100 != 0:
		return 0o555
	default:
		return 0o444
	}
}
