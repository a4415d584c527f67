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
	"strings"

	"github.com/go-git/go-git/v5/plumbing"

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
	r := &Repository{o: Options{Path: clean, MaxFile: defaultFile}}
	r.objects = &store{loose: map[plumbing.Hash]raw{}}
	r.graph = newGraph(r.objects)
	return &Memory{r}, nil
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
	add := adding{from: tree, to: maps.Clone(m.r.objects.loose)}
	root, err := add.folder(".")
	if err != nil {
		return model.Commit{}, fmt.Errorf("make a commit: %w", err)
	}
	for p := m.r.o.Path; p != "."; p = path.Dir(p) {
		root = add.put(plumbing.TreeObject, treeLine(modeFolder, path.Base(p), root))
	}
	text, err := commitText(root, c)
	if err != nil {
		return model.Commit{}, fmt.Errorf("make a commit: %w", err)
	}
	id := add.put(plumbing.CommitObject, text)
	// A new store, as after a fetch: who reads files of an older commit is not disturbed.
	s := &store{loose: add.to}
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
	if err == nil && p.all[h] == nil {
		err = fmt.Errorf("%w: %s", ErrUnknown, id)
	}
	if err != nil {
		return err
	}
	l := lives{store: m.r.objects, seen: map[plumbing.Hash]bool{}}
	for _, n := range p.sorted() {
		if err := l.add(n); err != nil {
			return err
		}
	}
	ids := slices.Collect(maps.Keys(l.seen))
	plumbing.HashesSort(ids)
	return writePack(w, m.r.objects, ids, math.MaxInt64/4)
}

// adding turns files into objects.
type adding struct {
	from fs.FS
	to   map[plumbing.Hash]raw
}

func (a adding) put(kind plumbing.ObjectType, data []byte) plumbing.Hash {
	id := plumbing.ComputeHash(kind, data)
	a.to[id] = raw{kind, data}
	return id
}

func (a adding) folder(name string) (plumbing.Hash, error) {
	list, err := fs.ReadDir(a.from, name)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	// git sorts a folder as if a slash followed its name
	key := func(e fs.DirEntry) string {
		if e.IsDir() {
			return e.Name() + "/"
		}
		return e.Name()
	}
	slices.SortFunc(list, func(x, y fs.DirEntry) int { return strings.Compare(key(x), key(y)) })
	var lines bytes.Buffer
	for _, e := range list {
		if strings.EqualFold(e.Name(), ".git") {
			continue
		}
		line, err := a.entry(path.Join(name, e.Name()), e)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		lines.Write(line)
	}
	return a.put(plumbing.TreeObject, lines.Bytes()), nil
}

// emptyTree is the id of a folder without files.
const emptyTree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

func (a adding) entry(name string, e fs.DirEntry) ([]byte, error) {
	if e.IsDir() {
		id, err := a.folder(name)
		if err != nil || id.String() == emptyTree {
			return nil, err
		}
		return treeLine(modeFolder, e.Name(), id), nil
	}
	if e.Type()&fs.ModeSymlink != 0 {
		target, err := fs.ReadLink(a.from, name)
		return treeLine(modeLink, e.Name(), a.put(plumbing.BlobObject, []byte(target))), err
	}
	info, err := e.Info()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file that git can hold", name)
	}
	if info.Size() > defaultFile {
		return nil, fmt.Errorf("%s: %w: more than %d MiB", name, ErrTooLarge, defaultFile>>20)
	}
	data, err := fs.ReadFile(a.from, name)
	mode := uint32(0o100644)
	if info.Mode()&modeExec != 0 {
		mode = 0o100755
	}
	return treeLine(mode, e.Name(), a.put(plumbing.BlobObject, data)), err
}

func treeLine(mode uint32, name string, id plumbing.Hash) []byte {
	return append(fmt.Appendf(nil, "%o %s\x00", mode, name), id[:]...)
}

// commitText is a commit as git writes it.
func commitText(tree plumbing.Hash, c model.Commit) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "tree %s\n", tree)
	for _, p := range c.Parents {
		if id, err := hex.DecodeString(p); err != nil || len(id) != sumSize {
			return nil, fmt.Errorf("%q is no id of a parent", p)
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
			return nil, fmt.Errorf("%q is no key of a trailer: use letters, digits and dashes", key)
		}
		b.WriteString(line + "\n")
	}
	return b.Bytes(), nil
}
