package pmxcfs

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Every is how often the files are read. A change is to be noticed within two seconds, and each reading wakes the processor.
const Every = 1500 * time.Millisecond

// Watcher calls Changed when a guest that matters is not as it was.
type Watcher struct {
	Root    string             // of the node; "" for /
	Changed func(guests []int) // which, sorted; none: it cannot be said

	mu      sync.Mutex // for moments: passes say what does not matter, others ask how it is
	ignored map[int]bool
	err     error
}

// Ignore names the guests that do not matter: those of somebody else. One that is new matters until then.
func (w *Watcher) Ignore(vmids []int) {
	ignored := make(map[int]bool, len(vmids))
	for _, id := range vmids {
		ignored[id] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ignored = ignored
}

// Err is why the files cannot be read; nil if they can.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Run reads the files until ctx ends. What cannot be read now may be there later.
func (w *Watcher) Run(ctx context.Context) {
	r := &Reader{Root: w.Root}
	var before State
	ticker := time.NewTicker(Every)
	defer ticker.Stop()
	for {
		now, err := r.Read()
		if changed, all := now.Since(before); err == nil && before.Began != 0 {
			if changed = w.those(changed); all || len(changed) > 0 {
				w.Changed(changed)
			}
		}
		if err == nil {
			before = now
		}
		w.note(err)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (w *Watcher) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// those are the guests among some that matter.
func (w *Watcher) those(guests []int) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(guests, func(id int) bool { return w.ignored[id] })
}
