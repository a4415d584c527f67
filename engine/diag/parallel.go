package diag

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// InParallel calls do for each index below n, on all processors, and returns when all calls have returned. A panic in
// do becomes one of InParallel, and calls that have not begun may be left out. Store results by index, so that
// their order does not depend on that of the calls.
//
// A worker takes one index after another: a caller that is locked to its thread, as for a limit of processor time,
// would change threads for each index if each had a goroutine.
func InParallel(n int, do func(i int)) {
	var next atomic.Int64
	var panicked atomic.Pointer[any]
	work := func() {
		defer func() {
			if v := recover(); v != nil {
				panicked.Store(&v)
			}
		}()
		for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
			do(int(i))
		}
	}
	var workers sync.WaitGroup
	for range min(max(runtime.GOMAXPROCS(0), 2), n) { // two show a race also on one processor
		workers.Go(work)
	}
	workers.Wait()
	if v := panicked.Load(); v != nil {
		panic(*v)
	}
}
