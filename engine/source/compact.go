package source

import (
	"io"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// The local copy is compacted at mostPacks packs, or when it is twice as large as after the last
// compaction, apart from small sizes.
const (
	mostPacks = 32
	smallCopy = 1 << 20
	// spare is the number of bytes of older history that are always kept. A branch that is merged later
	// mostly started there, so its whole past need not be fetched.
	spare = 64 << 10
)

// compact writes what must stay into one pack and removes the others, if that is worthwhile: the
// head, the kept commits, everything between them, and older history of about the same size. The
// commits of also stay this time, too.
func (r *Repository) compact(also ...plumbing.Hash) error {
	if len(r.packs) <= r.o.packs && r.packs.size() <= 2*r.compacted+smallCopy {
		return nil
	}
	live, needed, err := r.live(also)
	if err != nil {
		return err
	}
	if have := r.packs.size(); len(r.packs) <= r.o.packs && have <= 2*needed+smallCopy {
		r.compacted = have // most of it must stay
		return nil
	}
	p, err := r.disk.add(func(w io.Writer) error { return r.objects.WritePack(w, live.List()) })
	if p == nil || err != nil { // nothing is here: then nothing is in the way either
		return err
	}
	old, known := r.packs, r.graph.Known
	r.hold(packs{p})
	for id, n := range known {
		if live.IDs[id] {
			r.graph.Known[id] = n // not to be read again
		}
	}
	next := r.state
	if next.ends, err = r.ends(next); err != nil {
		return err
	}
	if err := r.disk.save(next, r.state); err != nil {
		return err
	}
	r.state = next
	return r.disk.drop(old, p)
}

// live collects the objects that stay, and returns the size of those that must stay.
func (r *Repository) live(also []plumbing.Hash) (*objects.Inventory, int64, error) {
	now, err := r.graph.Past(r.state.head)
	if err != nil {
		return nil, 0, err
	}
	v := r.objects.Inventory()
	must, kept := objects.Past{}, objects.Past{}
	if n := now[r.state.head]; n != nil {
		must[n.ID] = n
	}
	for _, id := range slices.Concat(r.state.kept, also) {
		n, err := r.graph.Node(id)
		if err == nil && n != nil && now[id] == nil {
			err = v.Add(id, n.Tree) // the branch no longer has it: it stays without its history
		} else if err == nil && n != nil {
			kept[id] = n
			var below objects.Past
			below, err = r.graph.Past(id)
			for id, n := range now { // what the head has and the kept commit does not have
				if below[id] == nil {
					must[id] = n
				}
			}
			must[id] = n
		}
		if err != nil {
			return nil, 0, err
		}
	}
	// Branches that were merged since a kept commit join the history before it at these commits. They show that the
	// branches began there.
	joints := objects.Past{}
	for id, n := range must {
		for _, parent := range n.Parents {
			if kept[id] == nil && len(kept) > 0 && must[parent] == nil && now[parent] != nil {
				joints[parent] = now[parent]
			}
		}
	}
	for _, n := range must {
		if err := v.Add(n.ID, n.Tree); err != nil {
			return nil, 0, err
		}
	}
	needed := v.Bytes
	for _, n := range now.Sorted() { // a commit stays only if all that build upon it do
		if v.Bytes > 2*max(needed, spare) && len(joints) == 0 {
			break
		}
		delete(joints, n.ID)
		if err := v.Add(n.ID, n.Tree); err != nil {
			return nil, 0, err
		}
	}
	return v, needed, nil
}
