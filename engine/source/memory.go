package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// Memory is a repository without a remote and without a folder, for commits that were never pushed.
// It has the methods of a Repository, and like it is for one goroutine.
type Memory struct {
	commits
	head plumbing.Hash
}

// NewMemory returns an empty repository with the site in the folder path; "" is its root.
func NewMemory(path string) (*Memory, error) {
	clean, err := cleanPath(path)
	if err != nil {
		return nil, err
	}
	m := &Memory{commits: commits{path: clean, maxFile: defaultFile}}
	m.use(&objects.Store{Objects: heap{}})
	return m, nil
}

// heap is objects in memory.
type heap map[plumbing.Hash]*plumbing.MemoryObject

// HasEncodedObject implements objects.
func (h heap) HasEncodedObject(id plumbing.Hash) error {
	if h[id] == nil {
		return plumbing.ErrObjectNotFound
	}
	return nil
}

// EncodedObjectSize implements objects.
func (h heap) EncodedObjectSize(id plumbing.Hash) (int64, error) {
	if h[id] == nil {
		return 0, plumbing.ErrObjectNotFound
	}
	return h[id].Size(), nil
}

// EncodedObject implements objects.
func (h heap) EncodedObject(_ plumbing.ObjectType, id plumbing.Hash) (plumbing.EncodedObject, error) {
	return h[id], h.HasEncodedObject(id)
}

// Synthesize returns the id that git would compute for a commit of a tree, without storing it.
// Equal trees and equal c give equal ids.
func Synthesize(tree fs.FS, c model.Commit) (string, error) {
	m, err := NewMemory("")
	if err != nil {
		return "", err
	}
	made, err := m.Add(tree, c)
	return made.ID, err
}

// Add creates a commit from the files of a tree and makes it the head. Of c it takes Parents,
// Author (who is the committer too), At to the second, and as the message Subject and Trailers,
// sorted by key; its ID is computed. What git does not know is left out: empty folders, and
// anything named .git.
func (m *Memory) Add(tree fs.FS, c model.Commit) (model.Commit, error) {
	add := adding{from: tree, to: maps.Clone(m.objects.Objects.(heap))}
	id, err := add.folder(".")
	for p := m.path; p != "." && err == nil; p = path.Dir(p) {
		id, err = add.put(&object.Tree{Entries: []object.TreeEntry{{Name: path.Base(p), Mode: filemode.Dir, Hash: id}}})
	}
	if err == nil {
		id, err = add.commit(id, c)
	}
	if err != nil {
		return model.Commit{}, fmt.Errorf("create a commit: %w", err)
	}
	m.use(&objects.Store{Objects: add.to}) // as after a fetch: readers of an older commit are not disturbed
	m.head = id
	return m.commit(id)
}

// Head is the commit that was added last.
func (m *Memory) Head(context.Context) (model.Commit, error) {
	if m.head.IsZero() {
		return model.Commit{}, ErrEmpty
	}
	return m.commit(m.head)
}

// Keep does nothing: all stays as long as the Memory does.
func (*Memory) Keep(...string) error { return nil }

// Pack writes a git pack of a commit with its past and all their files.
func (m *Memory) Pack(w io.Writer, id string) error {
	h, err := objects.ParseID(id)
	if err != nil {
		return err
	}
	p, err := m.graph.Past(h)
	if err == nil && p[h] == nil {
		err = fmt.Errorf("%w: %s", objects.ErrUnknown, id)
	}
	v := m.objects.Inventory()
	for _, n := range p {
		if err == nil {
			err = v.Add(n.ID, n.Tree)
		}
	}
	if err != nil {
		return err
	}
	return objects.WritePack(w, m.objects, v.List())
}

// adding turns files into objects.
type adding struct {
	from fs.FS
	to   heap
}

// put stores a tree or a commit.
func (a adding) put(from interface {
	Encode(plumbing.EncodedObject) error
},
) (plumbing.Hash, error) {
	o := &plumbing.MemoryObject{}
	err := from.Encode(o)
	a.to[o.Hash()] = o
	return o.Hash(), err
}

func (a adding) file(data []byte) plumbing.Hash {
	o := objects.NewObject(plumbing.BlobObject, data)
	a.to[o.Hash()] = o
	return o.Hash()
}

func (a adding) folder(name string) (plumbing.Hash, error) {
	list, err := fs.ReadDir(a.from, name)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	var t object.Tree
	for _, e := range list {
		if strings.EqualFold(e.Name(), ".git") {
			continue
		}
		entry, err := a.entry(path.Join(name, e.Name()), e)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		if entry.Hash.String() != emptyTree {
			t.Entries = append(t.Entries, entry)
		}
	}
	sort.Sort(object.TreeEntrySorter(t.Entries))
	return a.put(&t)
}

// emptyTree is the id of a folder without files.
const emptyTree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

func (a adding) entry(name string, e fs.DirEntry) (object.TreeEntry, error) {
	if e.IsDir() {
		id, err := a.folder(name)
		return object.TreeEntry{Name: e.Name(), Mode: filemode.Dir, Hash: id}, err
	}
	if e.Type()&fs.ModeSymlink != 0 {
		target, err := fs.ReadLink(a.from, name)
		return object.TreeEntry{Name: e.Name(), Mode: filemode.Symlink, Hash: a.file([]byte(target))}, err
	}
	info, err := e.Info()
	if err != nil {
		return object.TreeEntry{}, err
	}
	if !info.Mode().IsRegular() {
		return object.TreeEntry{}, fmt.Errorf("%s is not a file that git can store", name)
	}
	if info.Size() > defaultFile {
		return object.TreeEntry{}, fmt.Errorf("%s: %w: more than %d MiB", name, objects.ErrTooLarge, defaultFile>>20)
	}
	data, err := fs.ReadFile(a.from, name)
	mode := filemode.Regular
	if info.Mode()&0o100 != 0 {
		mode = filemode.Executable
	}
	return object.TreeEntry{Name: e.Name(), Mode: mode, Hash: a.file(data)}, err
}

// commit makes a commit as git writes it.
func (a adding) commit(tree plumbing.Hash, c model.Commit) (plumbing.Hash, error) {
	clean := strings.NewReplacer("<", "", ">", "", "\n", " ", "\x00", "")
	who := object.Signature{Name: strings.TrimSpace(clean.Replace(c.Author.Name)), Email: strings.TrimSpace(clean.Replace(c.Author.Email)), When: c.At}
	if who.Name == "" {
		who.Name = "homestak"
	}
	if strings.Contains(c.Subject, "\n") || strings.TrimSpace(c.Subject) == "" {
		return plumbing.ZeroHash, errors.New("its subject must be one line")
	}
	made := object.Commit{Author: who, Committer: who, TreeHash: tree, Message: c.Subject + "\n"}
	for _, p := range c.Parents {
		if !plumbing.IsHash(p) {
			return plumbing.ZeroHash, fmt.Errorf("%q is not an id of a parent", p)
		}
		made.ParentHashes = append(made.ParentHashes, plumbing.NewHash(p))
	}
	for i, key := range slices.Sorted(maps.Keys(c.Trailers)) {
		if i == 0 {
			made.Message += "\n"
		}
		line := key + ": " + strings.Join(strings.Fields(c.Trailers[key]), " ")
		if !objects.IsTrailerKey(key) {
			return plumbing.ZeroHash, fmt.Errorf("%q is not a key of a trailer: use letters, digits and dashes", key)
		}
		made.Message += line + "\n"
	}
	return a.put(&made)
}
