package objects

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// maxPlain bounds a commit or a tree, in bytes.
const maxPlain = 32 << 20

// Errors about commits and their storage.
var (
	// ErrUnknown: the commit is not local. It was never fetched, or was removed.
	ErrUnknown = errors.New("no such commit here")
	// ErrDamaged: a checksum or the format of a file of the local copy is wrong, or a file is missing. The next Head replaces the
	// copy. Any other error of a read, such as a missing permission, is not damage.
	ErrDamaged = errors.New("the local copy is damaged")
	// ErrTooLarge: a file, an object or a pack is over its limit.
	ErrTooLarge = errors.New("too large")
)

// storage is a storage of git objects: the packs of a local copy, or the folder of another repository. The methods are those of go-git's storages. An
// object that is missing is plumbing.ErrObjectNotFound.
type storage interface {
	HasEncodedObject(id plumbing.Hash) error
	EncodedObjectSize(id plumbing.Hash) (int64, error)
	EncodedObject(kind plumbing.ObjectType, id plumbing.Hash) (plumbing.EncodedObject, error)
}

// Damage turns an error of a check of the local copy into ErrDamaged. Call it only for checksums and parsing. The
// result wraps no other error: a missing part of a file is not a missing object.
func Damage(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrDamaged, err.Error())
}

// Store reads objects of one moment. It never changes: a fetch or a compaction creates a new one,
// and does not affect readers of the old one.
type Store struct {
	Objects storage
	// Damaged is called when an object turns out to be damaged. It may be nil.
	Damaged func()
}

// ErrTooLong means that an object is larger than the reader accepts, or a commit has too many files.
var ErrTooLong = errors.New("too long")

// Has reports whether an object is local.
func (s *Store) Has(id plumbing.Hash) bool { return s.Objects.HasEncodedObject(id) == nil }

// length gives the size of an object without its contents.
func (s *Store) length(id plumbing.Hash) (int64, error) {
	n, err := s.Objects.EncodedObjectSize(id)
	return n, s.check(id, err)
}

// read returns an object of at most limit bytes. Its contents are compared with its id.
func (s *Store) read(id plumbing.Hash, limit int64) (plumbing.ObjectType, []byte, error) {
	size, err := s.length(id)
	if err != nil {
		return 0, nil, err
	}
	if size > limit {
		return 0, nil, ErrTooLong
	}
	o, err := s.Objects.EncodedObject(plumbing.AnyObject, id)
	if err != nil {
		return 0, nil, s.check(id, err)
	}
	r, err := o.Reader()
	if err != nil {
		return 0, nil, s.check(id, err)
	}
	defer func() { _ = r.Close() }()
	data := make([]byte, size)
	switch _, err = io.ReadFull(r, data); {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		err = Damage(errors.New("it is cut off"))
	case err == nil && plumbing.ComputeHash(o.Type(), data) != id:
		err = Damage(errors.New("its contents do not match its id"))
	}
	return o.Type(), data, s.check(id, err)
}

// check names the object that could not be read, and reports damage.
func (s *Store) check(id plumbing.Hash, err error) error {
	if err == nil || errors.Is(err, plumbing.ErrObjectNotFound) {
		return err
	}
	if !errors.Is(err, ErrDamaged) || s.Damaged == nil {
		return fmt.Errorf("read object %s: %w", id, err)
	}
	s.Damaged()
	return fmt.Errorf("read object %s: %w; it is fetched again at the next check of the repository", id, err)
}

// typed reads an object that must be of a kind.
func (s *Store) typed(id plumbing.Hash, kind plumbing.ObjectType, limit int64) ([]byte, error) {
	found, data, err := s.read(id, limit)
	if err == nil && found != kind {
		err = fmt.Errorf("object %s is a %s and should be a %s", id, found, kind) // the repository is wrong, not the copy
	}
	return data, err
}

// decode reads a commit or a tree into o.
func (s *Store) decode(id plumbing.Hash, kind plumbing.ObjectType, o interface {
	Decode(plumbing.EncodedObject) error
},
) error {
	data, err := s.typed(id, kind, maxPlain)
	if err != nil {
		return err
	}
	if err := o.Decode(NewObject(kind, data)); err != nil {
		return fmt.Errorf("%s %s cannot be parsed: %w", kind, id, err)
	}
	return nil
}

// NewObject gives an object of a kind with these contents.
func NewObject(kind plumbing.ObjectType, data []byte) *plumbing.MemoryObject {
	o := &plumbing.MemoryObject{}
	o.SetType(kind)
	_, _ = o.Write(data)
	return o
}

// Commit reads a commit.
func (s *Store) Commit(id plumbing.Hash) (*object.Commit, error) {
	c := new(object.Commit)
	return c, s.decode(id, plumbing.CommitObject, c)
}

// tree lists the entries of a folder.
func (s *Store) tree(id plumbing.Hash) ([]object.TreeEntry, error) {
	t := new(object.Tree)
	if err := s.decode(id, plumbing.TreeObject, t); err != nil {
		return nil, err
	}
	for _, e := range t.Entries {
		if e.Name == "" || e.Name == "." || e.Name == ".." || strings.Contains(e.Name, "/") {
			return nil, fmt.Errorf("tree %s: contains a file with the invalid name %q", id, e.Name)
		}
	}
	return t.Entries, nil
}

// Bounds of a commit: a folder that is in its commit a million times is one object.
const (
	mostEntries = 1_000_000 // files and folders, as a walk through the commit counts them
	deepest     = 256       // folders in folders
)

// Inventory is a set of objects, collected commit by commit with all their files.
type Inventory struct {
	store *Store
	Skip  func(id plumbing.Hash) bool // objects that are skipped; nil: none
	IDs   map[plumbing.Hash]bool
	trees map[plumbing.Hash]extent // of the trees in ids
	Bytes int64
}

// extent is the size of a tree for a walk through it.
type extent struct{ entries, height int }

// Inventory returns an empty one.
func (s *Store) Inventory() *Inventory {
	return &Inventory{store: s, IDs: map[plumbing.Hash]bool{}, trees: map[plumbing.Hash]extent{}}
}

// Add gathers a commit and its files. It fails if an object is missing, and with
// errTooLong if the commit has more files, or deeper folders, than any site.
func (v *Inventory) Add(commit, tree plumbing.Hash) error {
	if v.IDs[commit] {
		return nil
	}
	if _, err := v.tree(tree, 1); err != nil {
		return err
	}
	v.IDs[commit] = true
	v.Bytes += 300 // about the size of a commit
	return nil
}

// tree gathers a tree that is inside so many folders. Each object is read once,
// however often it is in the commit.
func (v *Inventory) tree(id plumbing.Hash, depth int) (extent, error) {
	e, ok := v.trees[id]
	if !ok && (v.Skip == nil || !v.Skip(id)) {
		if depth > deepest {
			return e, fmt.Errorf("%w: more than %d nested folders", ErrTooLong, deepest)
		}
		entries, err := v.store.tree(id)
		if err != nil {
			return e, err
		}
		e = extent{len(entries), 1}
		v.Bytes += int64(len(entries)) * 40
		for _, entry := range entries {
			var below extent
			switch entry.Mode {
			case filemode.Submodule:
			case filemode.Dir:
				below, err = v.tree(entry.Hash, depth+1)
			default:
				err = v.file(entry.Hash)
			}
			if err != nil {
				return e, err
			}
			e.entries, e.height = e.entries+below.entries, max(e.height, below.height+1)
			if e.entries > mostEntries {
				return e, fmt.Errorf("%w: more than %d files", ErrTooLong, mostEntries)
			}
		}
		v.trees[id], v.IDs[id] = e, true
	}
	if depth+e.height > deepest+1 {
		return e, fmt.Errorf("%w: more than %d nested folders", ErrTooLong, deepest)
	}
	return e, nil
}

func (v *Inventory) file(id plumbing.Hash) error {
	if v.IDs[id] || v.Skip != nil && v.Skip(id) {
		return nil
	}
	n, err := v.store.length(id)
	v.IDs[id] = true
	v.Bytes += n
	return err
}

// List gives the objects in the order of their ids.
func (v *Inventory) List() []plumbing.Hash {
	ids := slices.Collect(maps.Keys(v.IDs))
	plumbing.HashesSort(ids)
	return ids
}

// describe converts a commit for callers, but for RevertsExactly.
func describe(c *object.Commit) model.Commit {
	message := strings.ToValidUTF8(c.Message, "\uFFFD")
	subject, _, _ := strings.Cut(strings.TrimLeft(message, "\n"), "\n")
	m := model.Commit{
		ID:       c.Hash.String(),
		Author:   model.Person{Name: diag.Line(c.Author.Name), Email: diag.Line(c.Author.Email)},
		At:       c.Committer.When,
		Subject:  diag.Line(subject),
		Trailers: parseTrailers(message),
		Message:  clip(message), Signer: signer(c), Reverts: reverted(message),
	}
	for _, p := range c.ParentHashes {
		m.Parents = append(m.Parents, p.String())
	}
	return m
}

// ParseID reads a commit's id as model.Commit has it.
func ParseID(id string) (plumbing.Hash, error) {
	if !plumbing.IsHash(id) {
		return plumbing.ZeroHash, fmt.Errorf("%w: %.100q is not a full id of a commit", ErrUnknown, id)
	}
	return plumbing.NewHash(id), nil
}
