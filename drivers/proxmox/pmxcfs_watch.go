package proxmox

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"
)

// watchEvery is the interval at which the files are read. A change is to be noticed within two seconds, and each reading wakes the processor.
const watchEvery = 1500 * time.Millisecond

// watchAbsent is the longest pause while the files are not there. An agent that is not on a node of Proxmox VE never sees them; on
// a node they are gone for a moment while the file system of the cluster restarts.
const watchAbsent = time.Minute

// Watcher calls Changed when a guest that matters is not as it was.
type Watcher struct {
	Root    string             // of the node; "" for /
	Changed func(guests []int) // which, sorted; none: it cannot be said

	mu      sync.Mutex // for moments: passes say what does not matter, others ask how it is
	ignored map[int]bool
	err     error
}

// Ignore names the guests that do not matter: unmanaged ones. A new guest matters until then.
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

// Run reads the files until ctx ends. Missing files may appear later: until then each pause is twice as long as the
// one before, up to watchAbsent.
func (w *Watcher) Run(ctx context.Context) {
	r := &nodeReader{Root: w.Root}
	var before nodeState
	timer := time.NewTimer(watchEvery)
	defer timer.Stop()
	for pause := watchEvery; ; {
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
		if pause = min(2*pause, watchAbsent); !errors.Is(err, fs.ErrNotExist) {
			pause = watchEvery
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
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
