package serve

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"

	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// lastGood is the ref of the last good commit. It is not below refs/heads, where the site
// may have a branch of any name.
const lastGood = "refs/homestak/last-good"

// Content describes a snapshot.
type Content struct {
	Branch   string // what HEAD is, without refs/heads/
	InForce  string // the commit that HEAD and the branch are at
	LastGood string // the commit of the ref lastGood; "" for none

	// Withheld reports whether a commit must not be served, for what its files hold: a
	// secret that was pushed by mistake stays in the history of the commit that removes it.
	// History ends above such a commit. It is called once for each commit but the two
	// above; nil withholds none.
	Withheld func(id string) bool
}

// Snapshot is the state of a repository at one moment: two refs, their commits, and the
// history of these as far as it is here and may be served. It never changes, and any
// goroutine may use it.
type Snapshot struct {
	store   *objects.Store
	refs    []ref
	commits objects.Past // what is served
	ends    map[plumbing.Hash]bool
	advert  []byte
	trees   map[plumbing.Hash]*objects.Tree // of the tips
}

// ref is a name that clients see. The first one of a snapshot is HEAD.
type ref struct {
	name string
	id   plumbing.Hash
}

// capabilities are those of the server. It lacks thin-pack, since every pack is complete in itself, and ofs-delta,
// since none has deltas.
const capabilities = "multi_ack multi_ack_detailed no-done side-band side-band-64k shallow no-progress object-format=sha1 agent=homestak-gitops"

// New makes a snapshot of commits that graph has. Only the caller's goroutine uses graph,
// and only during the call.
func New(graph *objects.Graph, largest int64, c Content) (*Snapshot, error) {
	head, err := objects.ParseID(c.InForce)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{
		store: graph.Store, commits: objects.Past{}, ends: map[plumbing.Hash]bool{}, trees: map[plumbing.Hash]*objects.Tree{},
		refs: []ref{{"HEAD", head}, {"refs/heads/" + c.Branch, head}},
	}
	if c.LastGood != "" {
		good, err := objects.ParseID(c.LastGood)
		if err != nil {
			return nil, err
		}
		s.refs = append(s.refs, ref{lastGood, good})
	}
	for _, r := range s.refs {
		if s.trees[r.id] != nil {
			continue
		}
		if s.trees[r.id], err = s.store.Files(r.id.String(), ".", largest); err != nil {
			return nil, err
		}
	}
	if err := s.walk(graph, c.Withheld); err != nil {
		return nil, err
	}
	s.advert, err = s.advertise(c.Branch)
	return s, err
}

// walk gathers the commits that are served. A commit with a parent that is not served is an
// end of history; clients then take it for one without parents, so all its parents are left
// out.
func (s *Snapshot) walk(graph *objects.Graph, withheld func(id string) bool) error {
	decided := map[plumbing.Hash]bool{}
	served := func(id plumbing.Hash) (bool, error) {
		if yes, ok := decided[id]; ok {
			return yes, nil
		}
		n, err := graph.Node(id)
		yes := n != nil && (s.trees[id] != nil || withheld == nil || !withheld(id.String()))
		decided[id] = yes
		return yes, err
	}
	var todo []plumbing.Hash
	for _, r := range s.refs {
		todo = append(todo, r.id)
	}
	for len(todo) > 0 {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if s.commits[id] != nil {
			continue
		}
		n, err := graph.Node(id)
		if err != nil {
			return err
		}
		if n == nil {
			return fmt.Errorf("%w: %s", objects.ErrUnknown, id)
		}
		s.commits[id] = n
		for _, parent := range n.Parents {
			yes, err := served(parent)
			if err != nil {
				return err
			}
			if !yes {
				s.ends[id] = true
			}
		}
		todo = append(todo, s.parents(id)...)
	}
	return nil
}

// parents gives the parents of a commit that is served, which are served too.
func (s *Snapshot) parents(id plumbing.Hash) []plumbing.Hash {
	if s.ends[id] {
		return nil
	}
	return s.commits[id].Parents
}

// advertise makes the list of refs as git's protocol has it in version 0. A client that
// offers a newer version accepts it.
func (s *Snapshot) advertise(branch string) ([]byte, error) {
	var b bytes.Buffer
	e := pktline.NewEncoder(&b)
	err := errors.Join(e.EncodeString("# service=git-upload-pack\n"), e.Flush())
	for i, r := range s.refs {
		line := r.id.String() + " " + r.name
		if i == 0 {
			line += "\x00" + capabilities + " symref=HEAD:refs/heads/" + branch
		}
		err = errors.Join(err, e.EncodeString(line+"\n"))
	}
	for _, id := range sorted(s.ends) {
		err = errors.Join(err, e.EncodeString("shallow "+id.String()+"\n"))
	}
	err = errors.Join(err, e.Flush())
	return b.Bytes(), err
}

// Refs is the body of the answer to info/refs.
func (s *Snapshot) Refs() []byte { return s.advert }

// offers reports whether each of these is the commit of a ref.
func (s *Snapshot) offers(ids []plumbing.Hash) bool {
	for _, id := range ids {
		if s.trees[id] == nil {
			return false
		}
	}
	return true
}

// past lists the commits from which some can be reached. Those for which cut is true count
// as having no parents.
func (s *Snapshot) past(ids []plumbing.Hash, cut map[plumbing.Hash]bool) objects.Past {
	p := objects.Past{}
	for todo := slices.Clone(ids); len(todo) > 0; {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if n := s.commits[id]; n != nil && p[id] == nil {
			p[id] = n
			if !cut[id] {
				todo = append(todo, s.parents(id)...)
			}
		}
	}
	return p
}

// within lists the commits that are at most so many generations away, with the generation
// of each; it is 1 for ids.
func (s *Snapshot) within(ids []plumbing.Hash, depth int) map[plumbing.Hash]int {
	found := map[plumbing.Hash]int{}
	for level := 1; level <= depth && len(ids) > 0; level++ {
		var next []plumbing.Hash
		for _, id := range ids {
			if s.commits[id] != nil && found[id] == 0 {
				found[id] = level
				next = append(next, s.parents(id)...)
			}
		}
		ids = next
	}
	return found
}

func sorted(set map[plumbing.Hash]bool) []plumbing.Hash {
	ids := make([]plumbing.Hash, 0, len(set))
	for id, yes := range set {
		if yes {
			ids = append(ids, id)
		}
	}
	plumbing.HashesSort(ids)
	return ids
}
