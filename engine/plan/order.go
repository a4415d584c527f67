package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// order lists the steps so that each stands behind those it waits for, peers by
// address:
//
//   - making and changing go parents first: behind the making or changing of what is needed, and of what is inside that;
//   - removing goes children first: behind the removal of those that need it by their ownership tags,
//     and behind the changes by which others stop needing it;
//   - who takes over a VMID waits for the one that gives it up;
//   - so does who takes over a MAC or an address, unless that would close a circle;
//   - the guests of a manifest are replaced one after the other.
func (o *ordering) order() {
	g := o.graph()
	for circles := g.circles(); len(circles) > 0; circles = g.circles() {
		for _, c := range circles {
			o.breakUp(c)
		}
		o.follow()
		g = o.graph()
	}
	o.takeTurns(g)
	o.overlap(g)
	for _, i := range g.waves() {
		s := o.steps[g.addrs[i]]
		for _, j := range g.before[i] {
			s.After = append(s.After, g.addrs[j])
		}
		o.plan.Steps = append(o.plan.Steps, *s)
	}
}

// ordering lists the steps that the guard has left.
type ordering struct {
	*guard
	circle map[model.Address]model.Address   // deletions whose ownership tags need each other → the first of them
	inside map[model.Address][]model.Address // guest → what is wanted inside of it
}

// takeTurns lets each replacement of a manifest wait for the one before and for what is created of the manifest, so that the
// first one that fails, or whose checks fail, stops the others, also when a later pass creates what an earlier one removed: each
// destroys data. The turns follow an order of all steps, so that they close no circle.
func (o *ordering) takeTurns(g *graph) {
	replaces := func(i int) bool {
		s := o.steps[g.addrs[i]]
		return s.Action == Replace && s.Want.Guest != nil && s.Manifest != ""
	}
	last := map[string]model.Address{}
	first := map[string][]int{} // manifest → what its next replacement waits for
	for _, i := range g.holding(replaces) {
		s := o.steps[g.addrs[i]]
		switch {
		case replaces(i):
			if before, ok := last[s.Manifest]; ok {
				s.Reason += "; after " + before.String()
			}
			for _, j := range first[s.Manifest] {
				if at, has := slices.BinarySearch(g.before[i], j); !has {
					g.before[i] = slices.Insert(g.before[i], at, j)
					g.after[j] = append(g.after[j], i)
				}
			}
			first[s.Manifest], last[s.Manifest] = []int{i}, s.Address
		case s.Want == nil:
		case s.Want.Guest != nil && s.Action == Create:
			first[s.Manifest] = append(first[s.Manifest], i)
		case o.want[s.Want.Inside] != nil && (s.Action == Create || o.steps[s.Want.Inside] != nil && o.steps[s.Want.Inside].Action == Replace):
			of := o.want[s.Want.Inside].Manifest
			first[of] = append(first[of], i)
		}
	}
}

// graph says which step waits for which; steps are numbered by address.
type graph struct {
	addrs  []model.Address
	before [][]int // direct predecessors, sorted
	after  [][]int // direct successors
}

func (o *ordering) graph() *graph {
	g := &graph{}
	number := make(map[model.Address]int, len(o.steps))
	o.each(func(s *Step) {
		number[s.Address] = len(g.addrs)
		g.addrs = append(g.addrs, s.Address)
	})
	g.before, g.after = make([][]int, len(g.addrs)), make([][]int, len(g.addrs))
	for i, addr := range g.addrs {
		for _, b := range o.waitsFor(o.steps[addr]) {
			j, ok := number[b]
			first, inCircle := o.circle[addr]
			if !ok || j == i || (inCircle && first == o.circle[b] && j > i) {
				continue
			}
			g.before[i] = append(g.before[i], j)
		}
	}
	o.soften(g, number)
	for i := range g.before {
		slices.Sort(g.before[i])
		g.before[i] = slices.Compact(g.before[i])
		for _, j := range g.before[i] {
			g.after[j] = append(g.after[j], i)
		}
	}
	return g
}

// soften makes who takes over an address wait for who gives it up, as far as the two
// are in no circle then. Circles that are there without that stay as they are. It
// visits every edge of the graph once or twice, whatever its shape.
func (o *ordering) soften(g *graph, number map[model.Address]int) {
	if len(o.takes) == 0 {
		return
	}
	hard := make([]int, len(g.addrs)) // the number of before that are mandatory
	for i, addr := range g.addrs {
		hard[i] = len(g.before[i])
		for _, t := range o.takes[addr] {
			if j, ok := number[t.from]; ok {
				g.before[i] = append(g.before[i], j)
			}
		}
	}
	circle := make([]int, len(g.addrs)) // which one a step is in, from 1
	for k, members := range g.circles() {
		for _, a := range members {
			circle[number[a]] = k + 1
		}
	}
	for i, n := range hard {
		kept := slices.DeleteFunc(slices.Clone(g.before[i][n:]), func(j int) bool {
			return circle[i] != 0 && circle[i] == circle[j]
		})
		g.before[i] = append(g.before[i][:n], kept...)
	}
}

// waitsFor lists the steps that must come first; it may name addresses without one.
func (o *ordering) waitsFor(s *Step) []model.Address {
	var out []model.Address
	if s.Want != nil {
		for _, n := range s.Want.Needs {
			if b := o.steps[n]; b != nil && b.Action != Delete {
				out = append(out, n)
			}
			for _, in := range o.inside[n] {
				if s.Want.Inside != n && o.steps[in] != nil {
					out = append(out, in)
				}
			}
		}
		if b, ok := o.reuse[s.Address]; ok {
			out = append(out, b)
		}
	}
	if s.Action == Delete || s.Action == Replace {
		for _, y := range o.observedBy[s.Address] {
			b := o.steps[y]
			if b != nil && (b.Action == Delete || !slices.Contains(b.Want.Needs, s.Address)) {
				out = append(out, y)
			}
		}
	}
	return out
}

// breakUp handles cycles of steps. Deletions form one when their ownership tags were edited; they run in the order
// of their names then, because nothing else would free them. In any other cycle at least one step would lack its
// precondition, so its creations and changes are refused.
func (o *ordering) breakUp(circle []model.Address) {
	names := make([]string, len(circle))
	making := false
	for i, a := range circle {
		names[i] = a.String()
		making = making || o.steps[a].Action != Delete
	}
	who := strings.Join(names, ", ")
	if making {
		for _, a := range circle {
			if s := o.steps[a]; s.Action != Delete {
				o.refuse(s, diag.FromGuard, fmt.Sprintf("%s depend on each other in a cycle", who),
					"remove one dependency or one VMID from the cycle, and restore it in a later commit")
			}
		}
		return
	}
	for _, a := range circle {
		o.circle[a] = circle[0]
	}
	o.find(circle[0], diag.Finding{
		Severity: diag.Warning, Source: diag.FromGuard,
		Summary: fmt.Sprintf("%s need each other by their ownership tags", who),
		Detail:  "the tags were edited; they are deleted all the same, and their names decide who goes first",
	})
}

// waves lists the numbers in the order of the steps: first those that wait for
// nothing, then those that waited for these only, and so on. The graph has no circle.
func (g *graph) waves() []int {
	open := make([]int, len(g.addrs))
	var wave, order []int
	for i := range g.addrs {
		if open[i] = len(g.before[i]); open[i] == 0 {
			wave = append(wave, i)
		}
	}
	for len(wave) > 0 {
		order = append(order, wave...)
		var next []int
		for _, i := range wave {
			for _, j := range g.after[i] {
				if open[j]--; open[j] == 0 {
					next = append(next, j)
				}
			}
		}
		slices.Sort(next)
		wave = next
	}
	return order
}

// holding lists the numbers in an order of the steps in which those of late come one by one, each when nothing else can go on.
func (g *graph) holding(late func(i int) bool) []int {
	open := make([]int, len(g.addrs))
	var ready, held, order []int
	put := func(i int) {
		if !late(i) {
			ready = append(ready, i)
			return
		}
		at, _ := slices.BinarySearch(held, i)
		held = slices.Insert(held, at, i)
	}
	for i := range g.addrs {
		if open[i] = len(g.before[i]); open[i] == 0 {
			put(i)
		}
	}
	for len(ready)+len(held) > 0 {
		if len(ready) == 0 {
			ready, held = []int{held[0]}, held[1:]
		}
		i := ready[0]
		ready, order = ready[1:], append(order, i)
		for _, j := range g.after[i] {
			if open[j]--; open[j] == 0 {
				put(j)
			}
		}
	}
	return order
}

// circles finds the groups of steps that wait for each other (Tarjan's strongly
// connected components of more than one), each sorted, and they by their first.
func (g *graph) circles() [][]model.Address {
	var (
		out     [][]model.Address
		stack   []int
		visited int
		number  = make([]int, len(g.addrs)) // order of the visit, from 1; 0: not yet
		low     = make([]int, len(g.addrs))
		onStack = make([]bool, len(g.addrs))
		visit   func(i int)
	)
	visit = func(i int) {
		visited++
		number[i], low[i], onStack[i] = visited, visited, true
		stack = append(stack, i)
		for _, j := range g.before[i] {
			switch {
			case number[j] == 0:
				visit(j)
				low[i] = min(low[i], low[j])
			case onStack[j]:
				low[i] = min(low[i], number[j])
			}
		}
		if low[i] != number[i] {
			return
		}
		var members []int
		for onStack[i] {
			last := len(stack) - 1
			members = append(members, stack[last])
			onStack[stack[last]] = false
			stack = stack[:last]
		}
		if len(members) == 1 {
			return
		}
		slices.Sort(members)
		circle := make([]model.Address, len(members))
		for k, m := range members {
			circle[k] = g.addrs[m]
		}
		out = append(out, circle)
	}
	for i := range g.addrs {
		if number[i] == 0 {
			visit(i)
		}
	}
	slices.SortFunc(out, func(a, b []model.Address) int { return a[0].Compare(b[0]) })
	return out
}
