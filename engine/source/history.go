package source

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
)

// graph is which commit has which parents, as far as the commits are here. It is
// read from a store when asked, and remembered: reading objects is the slow part.
type graph struct {
	store *store
	known map[plumbing.Hash]*node
}

type node struct {
	id      plumbing.Hash
	parents []plumbing.Hash // all, also those that are not here
	tree    plumbing.Hash
	at      time.Time
}

func newGraph(s *store) *graph { return &graph{s, map[plumbing.Hash]*node{}} }

// node gives a commit, or nil if it is not here.
func (g *graph) node(id plumbing.Hash) (*node, error) {
	if n := g.known[id]; n != nil {
		return n, nil
	}
	c, err := g.store.commit(id)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return nil, nil // history may end anywhere
	}
	if err != nil {
		return nil, err
	}
	n := &node{id, c.ParentHashes, c.TreeHash, c.Committer.When}
	g.known[id] = n
	return n, nil
}

// past is the commits that some can be reached from, those included.
type past map[plumbing.Hash]*node

func (g *graph) past(ids ...plumbing.Hash) (past, error) {
	p := past{}
	for todo := slices.Clone(ids); len(todo) > 0; {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if p[id] != nil {
			continue
		}
		n, err := g.node(id)
		if err != nil {
			return nil, err
		}
		if n != nil {
			p[id] = n
			todo = append(todo, n.parents...)
		}
	}
	return p, nil
}

// ends lists the commits of which a parent is not here.
func (p past) ends() []plumbing.Hash {
	var out []plumbing.Hash
	for id, n := range p {
		if slices.ContainsFunc(n.parents, func(parent plumbing.Hash) bool { return p[parent] == nil }) {
			out = append(out, id)
		}
	}
	plumbing.HashesSort(out)
	return out
}

// sorted lists the commits of a past, each before its parents, and newer ones before
// older ones where the clocks of their authors agree with that.
func (p past) sorted() []*node {
	oldestFirst := slices.SortedFunc(maps.Values(p), func(a, b *node) int {
		return cmp.Or(a.at.Compare(b.at), bytes.Compare(b.id[:], a.id[:]))
	})
	out := make([]*node, 0, len(p))
	done := make(map[plumbing.Hash]bool, len(p))
	var add func(n *node)
	add = func(n *node) {
		if n == nil || done[n.id] {
			return
		}
		done[n.id] = true
		for _, id := range n.parents {
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

// between lists the commits that to has and from does not have, newest first. It is
// ErrUnrelated unless from is an ancestor of to, and also where that is not certain for
// each commit: a branch may have begun below the place where history ends here.
func (g *graph) between(from, to plumbing.Hash) ([]*node, error) {
	old, err := g.past(from)
	if err != nil {
		return nil, err
	}
	fresh, err := g.past(to)
	if err != nil {
		return nil, err
	}
	if fresh[from] == nil || old[from] == nil {
		return nil, fmt.Errorf("%w: commit %.8s, of %.8s: it was never seen here, or the branch was rewritten", ErrUnrelated, from, to)
	}
	for id := range old {
		delete(fresh, id)
	}
	unsure, err := g.unsure(fresh, old)
	if err != nil {
		return nil, err
	}
	if unsure {
		return nil, fmt.Errorf("%w: commit %.8s, of %.8s: history is not here in full", ErrUnrelated, from, to)
	}
	return fresh.sorted(), nil
}

// unsure reports whether fresh, from which old was removed, may be wrong because
// history ends here somewhere. It checks the lowest commits of fresh: they must not
// continue below, unseen, and they must not be what old has below where it ends.
func (g *graph) unsure(fresh, old past) (bool, error) {
	ends := old.ends()
	for _, n := range fresh {
		lowest := true
		for _, id := range n.parents {
			if fresh[id] == nil && old[id] == nil {
				return true, nil
			}
			lowest = lowest && fresh[id] == nil
		}
		if !lowest || len(ends) == 0 {
			continue
		}
		below, err := g.past(n.id)
		if err != nil {
			return false, err
		}
		for _, id := range ends {
			// What builds upon an end cannot be below it, and neither can what is newer.
			if below[id] == nil && !n.at.After(old[id].at) {
				return true, nil
			}
		}
	}
	return false, nil
}
