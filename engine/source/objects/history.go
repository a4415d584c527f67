package objects

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/homestak/homestak-gitops/engine/model"
)

// Graph has the parents of local commits. It reads them from a store on demand and caches them,
// because reading objects is slow.
type Graph struct {
	Store *Store
	Known map[plumbing.Hash]*Commit
}

// Commit is a commit of a graph.
type Commit struct {
	ID      plumbing.Hash
	Parents []plumbing.Hash // all, also those that are not local
	Tree    plumbing.Hash
	at      time.Time
}

// NewGraph gives the graph of the commits of a store.
func NewGraph(s *Store) *Graph { return &Graph{s, map[plumbing.Hash]*Commit{}} }

// Node returns a commit, or nil if it is not local.
func (g *Graph) Node(id plumbing.Hash) (*Commit, error) {
	if n := g.Known[id]; n != nil {
		return n, nil
	}
	c, err := g.Store.Commit(id)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return nil, nil // history may end anywhere
	}
	if err != nil {
		return nil, err
	}
	n := &Commit{id, c.ParentHashes, c.TreeHash, c.Committer.When}
	g.Known[id] = n
	return n, nil
}

// Past is a set of commits and their ancestors.
type Past map[plumbing.Hash]*Commit

// Past lists local commits and their ancestors.
func (g *Graph) Past(ids ...plumbing.Hash) (Past, error) {
	p := Past{}
	for todo := slices.Clone(ids); len(todo) > 0; {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if p[id] != nil {
			continue
		}
		n, err := g.Node(id)
		if err != nil {
			return nil, err
		}
		if n != nil {
			p[id] = n
			todo = append(todo, n.Parents...)
		}
	}
	return p, nil
}

// Ends lists the commits with a missing parent.
func (p Past) Ends() []plumbing.Hash {
	var out []plumbing.Hash
	for id, n := range p {
		if slices.ContainsFunc(n.Parents, func(parent plumbing.Hash) bool { return p[parent] == nil }) {
			out = append(out, id)
		}
	}
	plumbing.HashesSort(out)
	return out
}

// Sorted lists the commits of a past, each before its parents, and newer ones before
// older ones where the clocks of their authors agree with that.
func (p Past) Sorted() []*Commit {
	oldestFirst := slices.SortedFunc(maps.Values(p), func(a, b *Commit) int {
		return cmp.Or(a.at.Compare(b.at), bytes.Compare(b.ID[:], a.ID[:]))
	})
	out := make([]*Commit, 0, len(p))
	done := make(map[plumbing.Hash]bool, len(p))
	var add func(n *Commit)
	add = func(n *Commit) {
		if n == nil || done[n.ID] {
			return
		}
		done[n.ID] = true
		for _, id := range n.Parents {
			add(p[id]) // one that is not yet there had a clock that was ahead
		}
		out = append(out, n)
	}
	for _, n := range oldestFirst {
		add(n)
	}
	slices.Reverse(out)
	return out
}

// Between lists the commits that to has and from does not have, newest first. It is
// model.ErrUnrelated unless from is an ancestor of to, and also where that is not certain for
// each commit: a branch may have begun below the place where history ends here.
func (g *Graph) Between(from, to plumbing.Hash) ([]*Commit, error) {
	old, err := g.Past(from)
	if err != nil {
		return nil, err
	}
	fresh, err := g.Past(to)
	if err != nil {
		return nil, err
	}
	if fresh[from] == nil || old[from] == nil {
		return nil, fmt.Errorf("%w: commit %.8s, of %.8s: it was never seen here, or the branch was rewritten", model.ErrUnrelated, from, to)
	}
	for id := range old {
		delete(fresh, id)
	}
	unsure, err := g.unsure(fresh, old)
	if err != nil {
		return nil, err
	}
	if unsure {
		return nil, fmt.Errorf("%w: commit %.8s, of %.8s: the history here is incomplete", model.ErrUnrelated, from, to)
	}
	return fresh.Sorted(), nil
}

// unsure reports whether fresh, from which old was removed, may be wrong because
// history ends here somewhere. It checks the lowest commits of fresh: they must not
// continue below, unseen, and they must not be what old has below where it ends.
func (g *Graph) unsure(fresh, old Past) (bool, error) {
	ends := old.Ends()
	for _, n := range fresh {
		lowest := true
		for _, id := range n.Parents {
			if fresh[id] == nil && old[id] == nil {
				return true, nil
			}
			lowest = lowest && fresh[id] == nil
		}
		if !lowest || len(ends) == 0 {
			continue
		}
		below, err := g.Past(n.ID)
		if err != nil {
			return false, err
		}
		for _, id := range ends {
			// Descendants of an end cannot be below it, and neither can newer commits.
			if below[id] == nil && !n.at.After(old[id].at) {
				return true, nil
			}
		}
	}
	return false, nil
}
