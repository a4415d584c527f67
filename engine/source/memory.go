package source

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Memory is a repository without a remote and without a folder: for commits that
// nobody pushed. It has the methods of a Repository, and is for one goroutine like it.
type Memory struct{ r *Repository }

// NewMemory makes an empty repository, in which the site is in the folder path; "" is
// its root.
func NewMemory(path string) (*Memory, error) {
	clean, err := cleanPath(path)
	if err != nil {
		return nil, err
	}
	r := &Repository{o: Options{Path: clean, MaxFile: defaultFile}, objects: &store{objects: heap{}}}
	r.graph = newGraph(r.objects)
	return &Memory{r}, nil
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

// Synthesize gives the id that git would give to a commit of a tree, without keeping
// anything. Equal trees and equal c give equal ids.
func Synthesize(tree fs.FS, c model.Commit) (string, error) {
	m, err := NewMemory("")
	if err != nil {
		return "", err
	}
	made, err := m.Add(tree, c)
	return made.ID, err
}

// Add makes a commit of the files of a tree and takes it as the head. Of c it takes
// Parents, Author (who is the committer too), At to the second, and as the message
// Subject and Trailers, sorted by key; its ID is computed. What git does not know is
// left out: empty folders, and anything named .git.
func (m *Memory) Add(tree fs.FS, c model.Commit) (model.Commit, error) {
	add := adding{from: tree, to: maps.Clone(m.r.objects.objects.(heap))}
	root, err := add.folder(".")
	for p := m.r.o.Path; p != "." && err == nil; p = path.Dir(p) {
		root, err = add.tree(object.Tree{Entries: []object.TreeEntry{{Name: path.Base(p), Mode: filemode.Dir, Hash: root}}})
	}
	if err != nil {
		return model.Commit{}, fmt.Errorf("make a commit: %w", err)
	}
	text, err := commitText(root, c)
	if err != nil {
		return model.Commit{}, fmt.Errorf("make a commit: %w", err)
	}
	id := add.put(plumbing.CommitObject, text)
	// A new store, as after a fetch: readers of an older commit are not disturbed.
	s := &store{objects: add.to}
	m.r.objects, m.r.graph.store, m.r.state.head = s, s, id
	return m.r.commit(id)
}

// Head is the commit that was added last.
func (m *Memory) Head(context.Context) (model.Commit, error) {
	if m.r.state.head.IsZero() {
		return model.Commit{}, ErrEmpty
	}
	return m.r.commit(m.r.state.head)
}

// Commit is as that of Repository.
func (m *Memory) Commit(ctx context.Context, id string) (model.Commit, error) {
	return m.r.Commit(ctx, id)
}

// Since is as that of Repository.
func (m *Memory) Since(ctx context.Context, from, to string) ([]model.Commit, error) {
	return m.r.Since(ctx, from, to)
}

// Keep does nothing: all stays as long as the Memory does.
func (*Memory) Keep(...string) error { return nil }

// Files is as that of Repository.
func (m *Memory) Files(id string) (fs.FS, error) { return m.r.Files(id) }

// Notes is as that of Repository.
func (m *Memory) Notes(id string) diag.List { return m.r.Notes(id) }

// Pack writes a git pack of a commit with its past and all their files.
func (m *Memory) Pack(w io.Writer, id string) error {
	h, err := parseID(id)
	if err != nil {
		return err
	}
	p, err := m.r.graph.past(h)
	if err == nil && p[h] == nil {
		err = fmt.Errorf("%w: %s", ErrUnknown, id)
	}
	v := m.r.objects.inventory()
	for _, n := range p {
		if err == nil {
			err = v.add(n.id, n.tree)
		}
	}
	if err != nil {
		return err
	}
	ids := slices.Collect(maps.Keys(v.ids))
	plumbing.HashesSort(ids)
	return writePack(w, m.r.objects, ids, math.MaxInt64)
}

// adding turns files into objects.
type adding struct {
	from fs.FS
	to   heap
}

func (a adding) put(kind plumbing.ObjectType, data []byte) plumbing.Hash {
	o := memoryObject(kind, data)
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
	return a.tree(t)
}

func (a adding) tree(t object.Tree) (plumbing.Hash, error) {
	sort.Sort(object.TreeEntrySorter(t.Entries))
	o := &plumbing.MemoryObject{}
	err := t.Encode(o)
	a.to[o.Hash()] = o
	return o.Hash(), err
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
		return object.TreeEntry{Name: e.Name(), Mode: filemode.Symlink, Hash: a.put(plumbing.BlobObject, []byte(target))}, err
	}
	info, err := e.Info()
	if err != nil {
		return object.TreeEntry{}, err
	}
	if !info.Mode().IsRegular() {
		return object.TreeEntry{}, fmt.Errorf("%s is not a file that git can hold", name)
	}
	if info.Size() > defaultFile {
		return object.TreeEntry{}, fmt.Errorf("%s: %w: more than %d MiB", name, ErrTooLarge, defaultFile>>20)
	}
	data, err := fs.ReadFile(a.from, name)
	mode := filemode.Regular
	if info.Mode()&0o100 != 0 {
		mode = filemode.Executable
	}
	return object.TreeEntry{Name: e.Name(), Mode: mode, Hash: a.put(plumbing.BlobObject, data)}, err
}

// commitText is a commit as git writes it.
func commitText(tree plumbing.Hash, c model.Commit) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "tree %s\n", tree)
	for _, p := range c.Parents {
		if id, err := hex.DecodeString(p); err != nil || len(id) != len(tree) {
			return nil, fmt.Errorf("%q is not an id of a parent", p)
		}
		fmt.Fprintf(&b, "parent %s\n", strings.ToLower(p))
	}
	clean := strings.NewReplacer("<", "", ">", "", "\n", " ", "\x00", "")
	name, email := strings.TrimSpace(clean.Replace(c.Author.Name)), strings.TrimSpace(clean.Replace(c.Author.Email))
	if name == "" {
		name = "homestak"
	}
	who := fmt.Sprintf("%s <%s> %d %s", name, email, max(c.At.Unix(), 0), c.At.Format("-0700"))
	fmt.Fprintf(&b, "author %s\ncommitter %s\n\n", who, who)
	if strings.Contains(c.Subject, "\n") || strings.TrimSpace(c.Subject) == "" {
		return nil, errors.New("its subject must be one line")
	}
	b.WriteString(c.Subject + "\n")
	for i, key := range slices.Sorted(maps.Keys(c.Trailers)) {
		if i == 0 {
			b.WriteByte('\n')
		}
		line := key + ": " + strings.Join(strings.Fields(c.Trailers[key]), " ")
		if key != trim(key) || separator(line) != len(key) || len(key) == 0 {
			return nil, fmt.Errorf("%q is not a key of a trailer: use letters, digits and dashes", key)
		}
		b.WriteString(line + "\n")
	}
	return b.Bytes(), nil
}
