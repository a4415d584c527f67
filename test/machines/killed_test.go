package machines_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// killAt replaces the script of one run by the same one that kills itself, and every
// program that it started, before its nth command.
func (w *world) killAt(run, command int) {
	seen := 0
	w.instead = func(c guest.Command) guest.Command {
		if seen++; seen != run {
			return c
		}
		head := fmt.Sprintf("_n=0; set -T; trap 'if [ $((_n += 1)) -eq %d ]; then kill -9 0; fi' DEBUG\n", command)
		return guest.Command{Args: []string{"bash", "-s"}, Stdin: append([]byte(head), c.Stdin...)}
	}
}

// killed applies a spec and is killed. It reports whether it was.
func (w *world) killed(s *spec.Spec, run, command int) bool {
	w.t.Helper()
	w.killAt(run, command)
	defer func() { w.instead = nil }()
	_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{})
	return err != nil
}

// However an apply is cut off, the next one ends in the same state, and withdrawing leaves
// the same machine behind.
func TestST14KilledAnywhereAppliedAgain(t *testing.T) {
	w := begin(t)
	full, none := w.whole(), parse(t, `"config": {}`)
	w.apply(full)
	wanted := w.snapshot()
	w.apply(none)
	empty := w.snapshot() // with the locked users of the first time
	points := []int{2, 9, 17, 24, 31, 40, 55}
	runs := 21
	if n, err := strconv.Atoi(os.Getenv("HOMESTAK_MACHINES_KILLS")); err == nil {
		points = nil
		for k := 1; k <= n; k++ {
			points = append(points, k)
		}
	}
	killed := 0
	for run := 2; run <= runs; run++ {
		// Each run of an apply is killed at one point, at another one of a withdrawal.
		for i, point := range points {
			if os.Getenv("HOMESTAK_MACHINES_KILLS") == "" && i != run%len(points) {
				continue
			}
			name := fmt.Sprintf("run %d, command %d", run, point)
			if w.killed(full, run, point) {
				killed++
			}
			w.apply(full)
			same(t, wanted, w.snapshot(), "applied after being killed at "+name)
			if w.killed(none, run, point) {
				killed++
			}
			w.apply(none)
			same(t, empty, w.snapshot(), "withdrawn after being killed at "+name)
		}
	}
	t.Logf("killed %d times", killed)
	require.Greater(t, killed, 15)
}
