package site

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/policy"
)

// loadWithin is Load within the limits of a Sandbox, for a command that ends anyhow: what does not end
// is left behind in this process. It gives an error when ctx ends first, with the position.
func (l *Loader) loadWithin(ctx context.Context, tree fs.FS, in Input) (engine.Desired, error) {
	if l.Sandbox != nil {
		return l.Load(ctx, tree, in), nil
	}
	l.position = &hcl.Position{}
	asked := make(chan struct{})
	l.asks = sync.OnceFunc(func() { close(asked) })
	rules := &policy.Position{}
	done := make(chan engine.Desired, 1)
	clock := make(chan func() time.Duration, 1)
	base := heapObjects()
	go func() {
		read, release := policy.ThreadClock()
		defer release()
		start := read()
		clock <- func() time.Duration { return read() - start }
		done <- l.Load(policy.WithPosition(ctx, rules), tree, in)
	}()
	used, gone := <-clock, ctx.Done()
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	var over <-chan time.Time // that policies have to notice the end of ctx
	for {
		select {
		case d := <-done:
			return d, nil
		case <-gone:
			gone, over = nil, time.After(endsWithin)
		case <-over:
			return engine.Desired{}, errors.Join(unfinished(l.position, rules), context.Cause(ctx))
		case <-asked: // policies have limits of their own
			asked = nil
			tick.Stop()
		case <-tick.C:
			if harm := exceededHere(limits{}, l.position.Read(), used(), base); harm != nil {
				harm.At = l.position.At()
				f, lasting := harmOf(harm)
				found := append(append(diag.List{}, in.Found...), quoted(tree, diag.List{f})...)
				return engine.Desired{Commit: in.Commit.ID, Findings: found.Sorted(), Harmful: lasting}, nil
			}
		}
	}
}

// endsWithin limits the time in which a load notices that its context ended. Policies do, and say where
// they were; the language does not.
const endsWithin = time.Second / 2

// unfinished says what was evaluated when the time was over.
func unfinished(site *hcl.Position, rules *policy.Position) error {
	at := rules.At()
	if at.IsZero() {
		at = site.At()
	}
	if at.IsZero() {
		return errors.New("the site is not loaded yet")
	}
	return fmt.Errorf("the site is not loaded yet: %s is still evaluated", at)
}

// exceededHere says which limit a load in this process has passed, nil for none.
func exceededHere(l limits, read int64, used time.Duration, base uint64) *harmError {
	cpu, memory := l.of(read)
	if used > cpu {
		return overCPU(cpu)
	}
	if heapObjects() < base+uint64(memory) {
		return nil
	}
	if runtime.GC(); heapObjects() < base+uint64(memory) { // what was dropped is not counted
		return nil
	}
	return overMemory(memory)
}

// heapObjects returns the number of bytes that the objects of this process take.
func heapObjects() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
