package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func never() error { return errors.New("there was nothing to wait for") }

func (s *spool) state() (items, idle int, size int64, built int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.items), len(s.idle), s.bytes, s.built
}

// All who want the same at one time get it from one build, whoever goes away meanwhile.
func TestSpoolBuildsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t.TempDir(), 1<<20)
		half, rest := strings.Repeat("a", 100<<10), strings.Repeat("b", 100<<10)
		proceed := make(chan struct{})
		build := func(_ context.Context, w io.Writer) error {
			_, _ = io.WriteString(w, half)
			<-proceed
			_, err := io.WriteString(w, rest)
			return err
		}
		leaver, leave := context.WithCancel(t.Context())
		outs := make([]bytes.Buffer, 20)
		errs := make([]error, len(outs))
		var wait sync.WaitGroup
		for n := range outs {
			ctx := t.Context()
			if n == 0 {
				ctx = leaver
			}
			wait.Go(func() { errs[n] = s.copy(ctx, "key", build, &outs[n], func() error { return nil }) })
			synctest.Wait()
		}
		require.NotZero(t, outs[19].Len(), "what is there comes at once")
		leave() // the one whose request began the build
		synctest.Wait()
		close(proceed)
		wait.Wait()
		require.ErrorIs(t, errs[0], context.Canceled)
		for n := range outs[1:] {
			require.NoError(t, errs[n+1])
			require.Equal(t, half+rest, outs[n+1].String())
		}
		var again bytes.Buffer
		require.NoError(t, s.copy(t.Context(), "key", func(context.Context, io.Writer) error { return errors.New("it is there") }, &again, never))
		require.Equal(t, half+rest, again.String())
		items, idle, size, built := s.state()
		require.Equal(t, []any{1, 1, int64(200 << 10), 1}, []any{items, idle, size, built})
		left, err := filepath.Glob(filepath.Join(s.dir, "*"))
		require.NoError(t, err)
		require.Empty(t, left, "files have no names, so a crash leaves none")
	})
}

// A build ends with the last client that wants it, and a failure is not kept.
func TestSpoolForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t.TempDir(), 1<<20)
		ctx, cancel := context.WithCancel(t.Context())
		ended := false
		var wait sync.WaitGroup
		wait.Go(func() {
			err := s.copy(ctx, "key", func(ctx context.Context, w io.Writer) error {
				_, _ = io.WriteString(w, "begun")
				<-ctx.Done()
				ended = true
				return ctx.Err()
			}, io.Discard, never)
			require.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		cancel()
		wait.Wait()
		require.True(t, ended)
		failure := errors.New("failure")
		require.ErrorIs(t, s.copy(t.Context(), "key", func(_ context.Context, w io.Writer) error {
			_, err := w.Write(make([]byte, 100<<10))
			return errors.Join(err, failure)
		}, io.Discard, never), failure)
		var out bytes.Buffer
		require.NoError(t, s.copy(t.Context(), "key", func(_ context.Context, w io.Writer) error { _, err := io.WriteString(w, "right"); return err }, &out, never))
		require.Equal(t, "right", out.String())
		items, idle, size, built := s.state()
		require.Equal(t, []any{1, 1, int64(5), 3}, []any{items, idle, size, built})
	})
}

// What nobody reads makes room; what is read does not, and then nothing more is built.
func TestSpoolIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t.TempDir(), 1<<20)
		fill := func(n int) func(context.Context, io.Writer) error {
			return func(_ context.Context, w io.Writer) error { _, err := w.Write(make([]byte, n)); return err }
		}
		for n := range 100 {
			require.NoError(t, s.copy(t.Context(), fmt.Sprint(n), fill(100<<10), io.Discard, never))
			_, idle, size, _ := s.state()
			require.LessOrEqual(t, size, int64(1<<20))
			require.LessOrEqual(t, idle, mostIdle)
		}
		for n := range 100 {
			require.NoError(t, s.copy(t.Context(), fmt.Sprint("small", n), fill(1), io.Discard, never))
		}
		items, idle, _, _ := s.state()
		require.Equal(t, []int{mostIdle, mostIdle}, []int{items, idle})

		// A client that stops reading keeps its file, and nothing else.
		r, w := io.Pipe()
		var wait sync.WaitGroup
		wait.Go(func() { _ = s.copy(t.Context(), "stopped", fill(400<<10), w, never) })
		synctest.Wait()
		require.NoError(t, s.copy(t.Context(), "next", fill(100<<10), io.Discard, never), "others are served")
		r2, w2 := io.Pipe()
		wait.Go(func() { _ = s.copy(WithClient(t.Context(), "other"), "stopped, too", fill(500<<10), w2, never) })
		synctest.Wait()
		require.ErrorIs(t, s.copy(WithClient(t.Context(), "third"), "too much", fill(200<<10), io.Discard, never), errFull)
		require.NoError(t, r.Close())
		require.NoError(t, r2.Close())
		wait.Wait()
		require.NoError(t, s.copy(t.Context(), "too much", fill(200<<10), io.Discard, never))
	})
}

// No more builds run at a time than allowed, and who waits gives signs of life.
func TestSpoolQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t.TempDir(), 1<<20)
		proceed := make(chan struct{})
		running, most, waited := 0, 0, 0
		var mu sync.Mutex
		var wait sync.WaitGroup
		for n := range 5 {
			wait.Go(func() {
				require.NoError(t, s.copy(WithClient(t.Context(), fmt.Sprint(n)), fmt.Sprint(n), func(context.Context, io.Writer) error {
					mu.Lock()
					running++
					most = max(most, running)
					mu.Unlock()
					<-proceed
					mu.Lock()
					running--
					mu.Unlock()
					return nil
				}, io.Discard, func() error {
					mu.Lock()
					defer mu.Unlock()
					if waited++; waited == 10 {
						close(proceed)
					}
					return nil
				}))
			})
		}
		wait.Wait()
		require.Equal(t, mostBuilds, most)
		require.Equal(t, 10, waited, "two rounds of five")
	})
}

func TestSpoolWithoutAFolder(t *testing.T) {
	s := newSpool(filepath.Join(t.TempDir(), "missing"), 1<<20)
	require.ErrorIs(t, s.copy(t.Context(), "key", func(context.Context, io.Writer) error { return nil }, io.Discard, never), os.ErrNotExist)
	items, _, _, _ := s.state()
	require.Zero(t, items)
}
