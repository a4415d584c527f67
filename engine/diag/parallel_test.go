package diag

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInParallel(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 1000} {
		got := make([]int, n)
		InParallel(n, func(i int) { got[i] += i + 1 })
		for i := range got {
			require.Equal(t, i+1, got[i], "each index once")
		}
	}
	require.PanicsWithValue(t, "broken", func() {
		InParallel(1000, func(i int) {
			if i == 10 {
				panic("broken")
			}
		})
	})
}

// With one worker the race detector, which make race runs with one processor, would never see two calls at once.
func TestTwoWorkersOnOneProcessor(_ *testing.T) { //nolint:paralleltest // the number of processors is that of all tests
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	met := make(chan bool)
	InParallel(2, func(i int) {
		if i == 0 {
			met <- true
		} else {
			<-met
		}
	})
}
