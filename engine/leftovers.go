package engine

import (
	"errors"
	"slices"

	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A VMID that no guest has may still be one under which none can be made: a creation
// that died leaves a volume of its name, and the host refuses to make that anew. Few
// tokens may see such volumes, so the refusal itself is kept, as a hint to draw another
// VMID from then on. Losing it costs one creation that fails.

// mostLeftovers is how many of these VMIDs are kept, the newest of them.
const mostLeftovers = 64

// leftovers lists the VMIDs that are worth another try only where no other is free.
func (a *Agent) leftovers() (list []int) {
	a.edit(func(d *desk) { list = slices.Clone(d.state.Leftovers) })
	return list
}

// noteLeftovers keeps the VMIDs under which this pass could make no guest. One that a
// guest came to have is free of what was left there.
func (a *Agent) noteLeftovers(r Report) {
	before := a.leftovers()
	after := slices.DeleteFunc(slices.Clone(before), func(vmid int) bool { return r.Have.Taken[vmid] != "" })
	for _, res := range r.Results {
		if e, ok := errors.AsType[*model.LeftoverError](res.Err); ok && !slices.Contains(after, e.VMID) {
			after = append(after, e.VMID)
		}
	}
	after = after[max(0, len(after)-mostLeftovers):]
	if !slices.Equal(before, after) {
		a.note(func(s *ledger.State) { s.Leftovers = after })
	}
}

// remembered is what the last look at the host wanted to be told again.
func (a *Agent) remembered() (list []string) {
	a.edit(func(d *desk) { list = slices.Clone(d.state.Recall) })
	return list
}

// noteRecall keeps that for the next pass. A look that failed takes nothing away.
func (a *Agent) noteRecall(r Report) {
	blind := slices.ContainsFunc(r.Have.Unknown, func(u model.Unknown) bool { return u.All })
	if r.want == nil || blind || slices.Equal(a.remembered(), r.Have.Recall) {
		return
	}
	a.note(func(s *ledger.State) { s.Recall = r.Have.Recall })
}
