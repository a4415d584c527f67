package source

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
)

// When the local copy is made smaller: at mostPacks packs, or when more than twice as
// much lies there as is needed, small sizes aside.
const (
	mostPacks = 32
	smallCopy = 1 << 20
	// spare is how many bytes of older history stay in any case. A branch that is
	// merged later mostly began there, and then need not bring its whole past.
	spare = 64 << 10
)

// compact writes what must stay into one pack and removes the others, if that is
// worth while: the head, the commits kept, what lies between them, and as much of the
// history before as these weigh. Also are further commits that stay this time.
func (r *Repository) compact(changed bool, also ...plumbing.Hash) error {
	have := size(r.objects.packs)
	grown := have > 2*r.weighed+smallCopy || changed && have > smallCopy
	if len(r.objects.packs) <= r.o.packs && !grown {
		return nil
	}
	ids, bytes, err := r.live(also)
	if err != nil {
		return err
	}
	r.weighed = have
	if len(r.objects.packs) <= r.o.packs && have <= 2*bytes+smallCopy {
		return nil
	}
	p, err := r.disk.add(func(w io.Writer) error { return writePack(w, r.objects, ids, math.MaxInt64/4) })
	if p == nil || err != nil { // nothing is here: then nothing is in the way either
		return err
	}
	for _, id := range ids {
		if _, ok := p.find(id); !ok {
			_ = r.disk.drop([]*pack{p}, nil)
			return r.objects.damaged(fmt.Errorf("object %s is not what its id says", id))
		}
	}
	old := r.objects
	now := *old
	now.packs = []*pack{p}
	known := r.graph.known
	r.objects, r.graph = &now, newGraph(&now)
	for _, id := range ids {
		if n := known[id]; n != nil {
			r.graph.known[id] = n // not to be read again
		}
	}
	r.weighed = size(now.packs)
	next := r.state
	if next.ends, err = r.ends(next); err != nil {
		return err
	}
	if err := r.disk.save(next, r.state); err != nil {
		return err
	}
	r.state = next
	return r.disk.drop(old.packs, p)
}

// live lists the objects that stay, and says how many bytes those are that must.
func (r *Repository) live(also []plumbing.Hash) ([]plumbing.Hash, int64, error) {
	now, err := r.graph.past(r.state.head)
	if err != nil {
		return nil, 0, err
	}
	l := lives{store: r.objects, seen: map[plumbing.Hash]bool{}}
	must := map[plumbing.Hash]bool{r.state.head: true}
	roots := map[plumbing.Hash]bool{}
	for _, id := range slices.Concat(r.state.kept, also) {
		if now.all[id] == nil {
			err = r.aside(&l, id)
		} else {
			roots[id] = true
			err = r.since(must, now, id)
		}
		if err != nil {
			return nil, 0, err
		}
	}
	order := now.sorted()
	for _, n := range order {
		if must[n.id] {
			if err := l.add(n); err != nil {
				return nil, 0, err
			}
		}
	}
	bytes := l.bytes
	joints := joints(now, must, roots)
	// The rest in the same order: a commit stays only if all that build upon it do.
	for _, n := range order {
		if l.bytes > 2*max(bytes, spare) && len(joints) == 0 {
			break
		}
		delete(joints, n.id)
		if !must[n.id] {
			if err := l.add(n); err != nil {
				return nil, 0, err
			}
		}
	}
	ids := slices.Collect(maps.Keys(l.seen))
	plumbing.HashesSort(ids)
	return ids, bytes, nil
}

// aside lets a commit stay that the branch no longer has: itself, without history.
func (r *Repository) aside(l *lives, id plumbing.Hash) error {
	n, err := r.graph.node(id)
	if err != nil || n == nil {
		return err
	}
	return l.add(n)
}

// since adds to must the commit old and what the head has and old has not.
func (r *Repository) since(must map[plumbing.Hash]bool, now past, old plumbing.Hash) error {
	p, err := r.graph.past(old)
	if err != nil {
		return err
	}
	for id := range now.all {
		if p.all[id] == nil || id == old {
			must[id] = true
		}
	}
	return nil
}

// joints are where branches that were merged since a kept commit join the history
// before it. Without them it could not be told that they began there.
func joints(now past, must, roots map[plumbing.Hash]bool) map[plumbing.Hash]bool {
	out := map[plumbing.Hash]bool{}
	if len(roots) == 0 {
		return out
	}
	for id := range must {
		for _, parent := range now.all[id].parents {
			if !roots[id] && !must[parent] && now.all[parent] != nil {
				out[parent] = true
			}
		}
	}
	return out
}

// lives gathers what belongs to commits.
type lives struct {
	store *store
	seen  map[plumbing.Hash]bool
	bytes int64
}

func (l *lives) add(n *node) error {
	if l.seen[n.id] {
		return nil
	}
	bytes, err := l.store.reachable(n.tree, l.seen)
	if err != nil {
		return err
	}
	l.seen[n.id] = true
	l.bytes += bytes + 300 // a commit
	return nil
}
