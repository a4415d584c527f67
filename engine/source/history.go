package source

import (
	"container/heap"
	"errors"
	"fmt"
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
type past struct {
	all map[plumbing.Hash]*node
	cut bool // some parent is not here: history goes on, unseen
}

func (g *graph) past(ids ...plumbing.Hash) (past, error) {
	p := past{all: map[plumbing.Hash]*node{}}
	for todo := slices.Clone(ids); len(todo) > 0; {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if p.all[id] != nil {
			continue
		}
		n, err := g.node(id)
		if err != nil {
			return past{}, err
		}
		if n == nil {
			p.cut = true
			continue
		}
		p.all[id] = n
		todo = append(todo, n.parents...)
	}
	return p, nil
}

// ends lists the commits of which a parent is not here.
func (p past) ends() []plumbing.Hash {
	var out []plumbing.Hash
	for id, n := range p.all {
		for _, parent := range n.parents {
			if p.all[parent] == nil {
				out = append(out, id)
				break
			}
		}
	}
	plumbing.HashesSort(out)
	return out
}

// sorted lists the commits of a past, each before its parents, and newer ones before
// older ones where that leaves a choice, as git log --date-order does.
func (p past) sorted() []*node {
	children := map[plumbing.Hash]int{}
	for _, n := range p.all {
		for _, id := range n.parents {
			children[id]++
		}
	}
	ready := &byTime{}
	for id, n := range p.all {
		if children[id] == 0 {
			ready.nodes = append(ready.nodes, n)
		}
	}
	heap.Init(ready)
	out := make([]*node, 0, len(p.all))
	for ready.Len() > 0 {
		n := heap.Pop(ready).(*node)
		out = append(out, n)
		for _, id := range n.parents {
			children[id]--
			if parent := p.all[id]; parent != nil && children[id] == 0 {
				heap.Push(ready, parent)
			}
		}
	}
	return out
}

// byTime is a heap of commits, the newest on top.
type byTime struct{ nodes []*node }

func (h *byTime) Len() int      { return len(h.nodes) }
func (h *byTime) Swap(i, j int) { h.nodes[i], h.nodes[j] = h.nodes[j], h.nodes[i] }
func (h *byTime) Push(x any)    { h.nodes = append(h.nodes, x.(*node)) }

func (h *byTime) Less(i, j int) bool {
	a, b := h.nodes[i], h.nodes[j]
	if !a.at.Equal(b.at) {
		return a.at.After(b.at)
	}
	return a.id.String() < b.id.String()
}

func (h *byTime) Pop() any {
	n := h.nodes[len(h.nodes)-1]
	h.nodes = h.nodes[:len(h.nodes)-1]
	return n
}

// between lists what to has and from has not, newest first. It is ErrUnrelated
// unless from is an ancestor of to, and also where that cannot be told for each
// commit: a branch may have begun below the place where history ends here.
func (g *graph) between(from, to plumbing.Hash) ([]*node, error) {
	old, err := g.past(from)
	if err != nil {
		return nil, err
	}
	fresh, err := g.past(to)
	if err != nil {
		return nil, err
	}
	if fresh.all[from] == nil || old.all[from] == nil {
		return nil, fmt.Errorf("%w: commit %.8s, of %.8s: it was never seen here, or the branch was rewritten", ErrUnrelated, from, to)
	}
	for id := range old.all {
		delete(fresh.all, id)
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

// unsure reports whether fresh, from which old was taken away, may be wrong because
// history ends here somewhere. It goes by the lowest commits of fresh: they must not
// go on below, unseen, and they must not be what old has below where it ends.
func (g *graph) unsure(fresh, old past) (bool, error) {
	ends := old.ends()
	for _, n := range fresh.all {
		lowest := true
		for _, id := range n.parents {
			if fresh.all[id] == nil && old.all[id] == nil {
				return true, nil
			}
			lowest = lowest && fresh.all[id] == nil
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
			if below.all[id] == nil && !n.at.After(old.all[id].at) {
				return true, nil
			}
		}
	}
	return false, nil
}
