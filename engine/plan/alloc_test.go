package plan_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/plan"
)

// An agent plans each minute what is nearly always the same. It may not list the
// attributes of a guest for that more than once, nor into a list of its own.
func TestAGuestThatIsTheSameCostsLittle(t *testing.T) {
	const guests = 200
	want, have := fleet(guests, 0)
	for _, r := range have { // as a driver hands them out, with what it alone knows
		if v, ok := r.Spec.(*VM); ok {
			v.seen = map[string]string{"digest": "x"}
			slices.Reverse(v.Disks)
		}
	}
	in := input(want, have)
	each := testing.AllocsPerRun(5, func() { plan.Make(in) }) / guests
	require.LessOrEqual(t, each, 45.0, "allocations for each guest")
}
