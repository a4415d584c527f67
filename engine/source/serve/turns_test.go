package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// yard is a spool whose builds a test lets end one by one.
type yard struct {
	*spool
	t       *testing.T
	mu      sync.Mutex
	running []string // keys, in the order in which they began
	proceed map[string]chan struct{}
	wait    sync.WaitGroup
}

func newYard(t *testing.T, most int64) *yard {
	t.Helper()
	return &yard{spool: newSpool(t.TempDir(), most), t: t, proceed: map[string]chan struct{}{}}
}

// ask asks for something as a client. The result has the error when it is there.
func (y *yard) ask(ctx context.Context, client, key string) (result *error) {
	result = new(error)
	*result = errors.New("no answer yet")
	y.wait.Go(func() {
		*result = y.copy(WithClient(ctx, client), key, func(ctx context.Context, w io.Writer) error {
			y.mu.Lock()
			y.running = append(y.running, key)
			over := make(chan struct{})
			y.proceed[key] = over
			y.mu.Unlock()
			select {
			case <-over:
				_, err := io.WriteString(w, key)
				return err
			case <-ctx.Done():
				y.mu.Lock()
				defer y.mu.Unlock()
				delete(y.proceed, key)
				return ctx.Err()
			}
		}, io.Discard, func() error { return nil })
	})
	synctest.Wait()
	return result
}

// end lets a build end.
func (y *yard) end(key string) {
	y.t.Helper()
	y.mu.Lock()
	at := y.proceed[key]
	require.NotNil(y.t, at, "%s does not run", key)
	delete(y.proceed, key)
	close(at)
	y.mu.Unlock()
	synctest.Wait()
}

// now are the builds that run.
func (y *yard) now() []string {
	y.mu.Lock()
	defer y.mu.Unlock()
	var out []string
	for _, key := range y.running {
		if y.proceed[key] != nil {
			out = append(out, key)
		}
	}
	return out
}

// A client with 120 requests does not keep its siblings waiting: one begins at once, and more take turns with it.
func TestS6ManyRequestsOfOneClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, 1<<20)
		ctx, cancel := context.WithCancel(t.Context())
		for n := range 120 {
			y.ask(ctx, "greedy", fmt.Sprint("deepen ", n))
		}
		require.Equal(t, []string{"deepen 0"}, y.now())
		a := y.ask(t.Context(), "a", "clone of a")
		require.Equal(t, []string{"deepen 0", "clone of a"}, y.now(), "at once, though none of the other's has ended")
		b := y.ask(t.Context(), "b", "clone of b")
		again := y.ask(t.Context(), "a", "fetch of a")
		y.end("clone of a")
		require.NoError(t, *a)
		require.Equal(t, []string{"deepen 0", "clone of b"}, y.now(), "who has waited longest")
		y.end("deepen 0")
		require.Equal(t, []string{"clone of b", "fetch of a"}, y.now(), "turns go by client, not by request")
		y.end("clone of b")
		require.Equal(t, []string{"fetch of a", "deepen 1"}, y.now())
		y.end("fetch of a")
		require.NoError(t, errors.Join(*b, *again))
		require.Equal(t, []string{"deepen 1"}, y.now(), "a slot is left for others")
		for n := 1; n < 60; n++ {
			y.end(fmt.Sprint("deepen ", n))
		}
		cancel() // some run, the others wait
		y.wait.Wait()
		require.Equal(t, turns{clients: map[string]*client{}, order: []*client{}}, y.turns)
	})
}

// What several want is built when it is the turn of the first of them, and no turn is lost when one leaves.
func TestS6SharedBuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, 1<<20)
		greedy, leave := context.WithCancel(t.Context())
		for n := range 10 {
			y.ask(greedy, "greedy", fmt.Sprint("deepen ", n))
		}
		y.ask(greedy, "greedy", "clone")
		a := y.ask(t.Context(), "a", "clone")
		require.Equal(t, []string{"deepen 0", "clone"}, y.now(), "it does not wait behind the others of the first who asked")
		b := y.ask(t.Context(), "b", "deepen 5")
		leave()
		synctest.Wait()
		require.Equal(t, []string{"clone", "deepen 5"}, y.now())
		y.end("clone")
		y.end("deepen 5")
		y.wait.Wait()
		require.NoError(t, errors.Join(*a, *b))
	})
}

// The files that one client does not read take half of the room at most. What another one reads, too, counts for that one.
func TestS6RoomOfOneClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t.TempDir(), 1<<20)
		fill := func(n int) func(context.Context, io.Writer) error {
			return func(_ context.Context, w io.Writer) error { _, err := w.Write(make([]byte, n)); return err }
		}
		as := func(name string) context.Context { return WithClient(t.Context(), name) }
		var wait sync.WaitGroup
		var stopped []*io.PipeReader
		slow := func(name, key string) {
			r, w := io.Pipe()
			stopped = append(stopped, r)
			wait.Go(func() { _ = s.copy(as(name), key, fill(300<<10), w, never) })
			synctest.Wait()
		}
		slow("greedy", "one")
		require.ErrorIs(t, s.copy(as("greedy"), "two", fill(300<<10), io.Discard, never), errShare)
		require.NoError(t, s.copy(as("a"), "two", fill(300<<10), io.Discard, never))
		slow("b", "one")
		require.ErrorIs(t, s.copy(as("greedy"), "three", fill(300<<10), io.Discard, never), errShare)
		require.NoError(t, stopped[0].Close())
		synctest.Wait()
		require.NoError(t, s.copy(as("greedy"), "three", fill(300<<10), io.Discard, never))
		require.ErrorIs(t, s.copy(as("b"), "four", fill(300<<10), io.Discard, never), errShare)
		require.NoError(t, stopped[1].Close())
		wait.Wait()
		var out bytes.Buffer
		require.NoError(t, s.copy(as("b"), "one", fill(1), &out, never))
		require.Equal(t, 300<<10, out.Len(), "it is kept for the next one")
		require.Empty(t, s.turns.clients)
	})
}
