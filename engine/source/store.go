package source

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/homestak/homestak-gitops/engine/model"
)

// store is the objects that are here, as of one moment. It never changes: a fetch or
// a compaction makes a new one, and who reads from the old one goes on undisturbed.
type store struct {
	packs []*pack
	loose map[plumbing.Hash]raw // of a Memory
	// spoiled is called when an object turns out to be damaged. It may be nil.
	spoiled func()
}

func (s *store) has(id plumbing.Hash) bool {
	if _, ok := s.loose[id]; ok {
		return true
	}
	for _, p := range s.packs {
		if _, ok := p.find(id); ok {
			return true
		}
	}
	return false
}

// read gives an object of at most limit bytes. What it gives is what the id says:
// the contents are held against it.
func (s *store) read(id plumbing.Hash, limit int64) (raw, error) {
	if o, ok := s.loose[id]; ok {
		if int64(len(o.data)) > limit {
			return raw{}, errTooLong
		}
		return o, nil
	}
	for _, p := range s.packs {
		at, ok := p.find(id)
		if !ok {
			continue
		}
		o, err := p.read(at, limit)
		if errors.Is(err, errTooLong) {
			return raw{}, errTooLong
		}
		if err == nil && plumbing.ComputeHash(o.kind, o.data) != id {
			err = errors.New("its contents are not what its id says")
		}
		if err != nil {
			return raw{}, s.damaged(fmt.Errorf("object %s: %w", id, err))
		}
		return o, nil
	}
	return raw{}, plumbing.ErrObjectNotFound
}

// length gives an object's size without reading its contents.
func (s *store) length(id plumbing.Hash) (int64, error) {
	if o, ok := s.loose[id]; ok {
		return int64(len(o.data)), nil
	}
	for _, p := range s.packs {
		if at, ok := p.find(id); ok {
			_, n, err := p.length(at)
			if err != nil {
				return 0, s.damaged(fmt.Errorf("object %s: %w", id, err))
			}
			return n, nil
		}
	}
	return 0, plumbing.ErrObjectNotFound
}

func (s *store) damaged(err error) error {
	if s.spoiled != nil {
		s.spoiled()
	}
	return fmt.Errorf("%w: %w; it is fetched anew at the next look at the repository", ErrDamaged, err)
}

// typed reads an object that must be of a kind.
func (s *store) typed(id plumbing.Hash, kind plumbing.ObjectType, limit int64) ([]byte, error) {
	o, err := s.read(id, limit)
	if err != nil {
		return nil, err
	}
	if o.kind != kind {
		return nil, s.damaged(fmt.Errorf("object %s is a %s where a %s should be", id, o.kind, kind))
	}
	return o.data, nil
}

// commit reads a commit. One that is not here is plumbing.ErrObjectNotFound.
func (s *store) commit(id plumbing.Hash) (*object.Commit, error) {
	data, err := s.typed(id, plumbing.CommitObject, maxPlain)
	if err != nil {
		return nil, err
	}
	o := &plumbing.MemoryObject{}
	o.SetType(plumbing.CommitObject)
	if _, err := o.Write(data); err != nil {
		return nil, err
	}
	c := new(object.Commit)
	if err := c.Decode(o); err != nil {
		return nil, fmt.Errorf("commit %s cannot be understood: %w", id, err)
	}
	return c, nil
}

// item is one line of a tree.
type item struct {
	mode uint32 // as git has it: 0o40000 folder, 0o120000 link, 0o160000 submodule
	name string
	id   plumbing.Hash
}

const (
	modeFolder    = 0o40000
	modeLink      = 0o120000
	modeSubmodule = 0o160000
	modeExec      = 0o100
)

func (i item) folder() bool { return i.mode == modeFolder }

func (s *store) tree(id plumbing.Hash) ([]item, error) {
	data, err := s.typed(id, plumbing.TreeObject, maxPlain)
	if err != nil {
		return nil, err
	}
	items, err := parseTree(data)
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", id, err)
	}
	return items, nil
}

func parseTree(data []byte) ([]item, error) {
	var out []item
	for len(data) > 0 {
		space, zero := bytes.IndexByte(data, ' '), bytes.IndexByte(data, 0)
		if space <= 0 || space > 7 || zero < space || len(data) < zero+1+sumSize {
			return nil, errors.New("cannot be understood")
		}
		e := item{name: string(data[space+1 : zero])}
		for _, c := range data[:space] {
			if c < '0' || c > '7' {
				return nil, errors.New("cannot be understood")
			}
			e.mode = e.mode<<3 | uint32(c-'0')
		}
		copy(e.id[:], data[zero+1:])
		data = data[zero+1+sumSize:]
		if e.name == "" || e.name == "." || e.name == ".." || strings.Contains(e.name, "/") {
			return nil, fmt.Errorf("holds a file of the impossible name %q", e.name)
		}
		out = append(out, e)
	}
	return out, nil
}

// reachable adds to seen every object of a tree that is not yet in it, and gives the
// sum of their sizes. It fails if one is missing.
func (s *store) reachable(tree plumbing.Hash, seen map[plumbing.Hash]bool) (int64, error) {
	if seen[tree] {
		return 0, nil
	}
	items, err := s.tree(tree)
	if err != nil {
		return 0, err
	}
	seen[tree] = true
	sum := int64(len(items)) * 40
	for _, e := range items {
		var n int64
		switch {
		case e.mode == modeSubmodule || seen[e.id]:
		case e.folder():
			n, err = s.reachable(e.id, seen)
		default:
			seen[e.id] = true
			n, err = s.length(e.id)
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %w", e.name, err)
		}
		sum += n
	}
	return sum, nil
}

// about tells of a commit what others need to know.
func about(c *object.Commit) model.Commit {
	message := strings.ToValidUTF8(c.Message, "\uFFFD")
	subject, _, _ := strings.Cut(strings.TrimLeft(message, "\n"), "\n")
	m := model.Commit{
		ID:       c.Hash.String(),
		Author:   model.Person{Name: strings.ToValidUTF8(c.Author.Name, "\uFFFD"), Email: strings.ToValidUTF8(c.Author.Email, "\uFFFD")},
		At:       c.Committer.When,
		Subject:  strings.TrimSpace(subject),
		Trailers: parseTrailers(message),
	}
	for _, p := range c.ParentHashes {
		m.Parents = append(m.Parents, p.String())
	}
	return m
}

// parseID reads a commit's id as model.Commit has it.
func parseID(id string) (plumbing.Hash, error) {
	if !plumbing.IsHash(id) {
		return plumbing.ZeroHash, fmt.Errorf("%w: %q is no full id of a commit", ErrUnknown, oneLine(id))
	}
	return plumbing.NewHash(id), nil
}
