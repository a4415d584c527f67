package serve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// Bounds of what is built for clients.
const (
	mostBuilds = 2        // packs and files that are built at a time, for different clients
	mostIdle   = 32       // that stay for the next client
	idleBytes  = 64 << 20 // that these have together

	waitTime = 5 * time.Second // between signs of life to a client that waits
)

// spool builds responses: each once, into an unnamed file, which all clients read while it grows. So a client that
// stops reading delays no other, and no pack is in memory.
type spool struct {
	dir  string // of the files; the system's if empty
	most int64  // bytes of all files together

	mu    sync.Mutex // requests of many clients share what is built
	turns turns      // whose build runs next
	items map[string]*item
	idle  []*item // complete, without readers; the longest unused first
	bytes int64   // of all files
	built int     // so many builds began
}

// item is one thing that is built, or was. Its fields are guarded by the spool's lock.
type item struct {
	key      string
	clients  map[*client]int // how many requests of each want it
	payer    *client         // the one of them whose share of the files it counts for; nil: none wants it
	building bool
	queued   bool               // it waits for its turn
	turn     chan struct{}      // closed when the build may begin
	runner   *client            // whose turn it has; nil: it has none
	cancel   context.CancelFunc // ends the build
	over     chan struct{}      // closed when the build has ended

	file  *os.File
	size  int64
	err   error         // why the build failed; io.EOF if it did not
	grown chan struct{} // closed and replaced when size or err changes
}

// Why nothing more is built.
const (
	errFull  = requestError("too much is being sent to other clients; try again in a few minutes")
	errShare = requestError("too much is being sent to this client at once; end other requests, or try again in a few minutes")
)

func newSpool(dir string, most int64) *spool {
	return &spool{dir: dir, most: most, turns: turns{clients: map[string]*client{}}, items: map[string]*item{}}
}

// copy writes the item with this key to w. If it does not exist, build writes it. While there is nothing to write
// yet, wait is called every few seconds.
func (s *spool) copy(ctx context.Context, key string, build func(context.Context, io.Writer) error, w io.Writer, wait func() error) error {
	i, by, start := s.take(ctx, key)
	if start != nil {
		go s.build(start, i, build)
		defer func() { <-i.over }() // also if this client goes away while others want the rest
	}
	defer s.put(i, by)
	return s.follow(ctx, i, w, wait)
}

// take gives the item of a key. If it is new, the caller builds it with the context start,
// which ends when no client wants it. By is who asks.
func (s *spool) take(ctx context.Context, key string) (i *item, by *client, start context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i = s.items[key]
	if i == nil {
		i = &item{key: key, clients: map[*client]int{}, building: true, queued: true, turn: make(chan struct{}), over: make(chan struct{}), grown: make(chan struct{})}
		start, i.cancel = context.WithCancel(context.WithoutCancel(ctx))
		s.items[key] = i
		s.built++
	}
	if at := slices.Index(s.idle, i); at >= 0 {
		s.idle = slices.Delete(s.idle, at, at+1)
	}
	by = s.turns.enter(clientOf(ctx))
	if i.clients[by]++; i.payer == nil {
		i.pay(by)
	}
	if i.queued && i.clients[by] == 1 {
		by.queue = append(by.queue, i)
		s.turns.next()
	}
	return i, by, start
}

// put ends what take began.
func (s *spool) put(i *item, by *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.clients[by]--; i.clients[by] == 0 {
		delete(i.clients, by)
		if i.payer == by {
			i.pay(i.cheapest())
		}
	}
	s.turns.leave(by)
	if len(i.clients) == 0 && i.building {
		i.cancel()
		i.queued = false
		delete(s.items, i.key) // later clients start again
	}
	s.rest(i)
}

// rest keeps an item for the next client, or removes it, once it has no readers.
func (s *spool) rest(i *item) {
	switch {
	case len(i.clients) > 0 || i.building:
		return
	case i.file == nil:
	case s.items[i.key] == i:
		s.idle = append(s.idle, i)
	default:
		s.close(i)
	}
	s.trim(idleBytes)
}

// trim removes items without readers until they have at most so many bytes.
func (s *spool) trim(most int64) {
	var n int64
	for _, i := range s.idle {
		n += i.size
	}
	for len(s.idle) > 0 && (n > most || len(s.idle) > mostIdle) {
		i := s.idle[0]
		s.idle, n = s.idle[1:], n-i.size
		delete(s.items, i.key)
		s.close(i)
	}
}

func (s *spool) close(i *item) {
	_ = i.file.Close() // it has no name, so nothing of it is left
	s.bytes -= i.size
}

// build runs f, and says how it ended.
func (s *spool) build(ctx context.Context, i *item, f func(context.Context, io.Writer) error) {
	defer close(i.over)
	defer i.cancel()
	err := s.fill(ctx, i, f)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.err = err; err == nil {
		i.err = io.EOF
	} else if s.items[i.key] == i {
		delete(s.items, i.key) // the next client tries again
	}
	i.building = false
	close(i.grown)
	s.turns.end(i)
	s.rest(i)
}

func (s *spool) fill(ctx context.Context, i *item, f func(context.Context, io.Writer) error) error {
	select {
	case <-i.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	file, err := os.CreateTemp(s.dir, "homestak-gitops-*")
	if err == nil {
		err = os.Remove(file.Name())
	}
	if err != nil {
		return fmt.Errorf("make a temporary file: %w", err)
	}
	s.mu.Lock()
	i.file = file
	s.mu.Unlock()
	out := bufio.NewWriterSize(&filling{ctx, s, i}, 64<<10)
	if err := f(ctx, out); err != nil {
		return err
	}
	return out.Flush()
}

// filling is the writer of a build.
type filling struct {
	ctx   context.Context // of the build
	spool *spool
	item  *item
}

func (f *filling) Write(b []byte) (int, error) {
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	s, i := f.spool, f.item
	n, err := i.file.Write(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	i.size += int64(n)
	s.bytes += int64(n)
	if i.payer != nil {
		i.payer.bytes += int64(n)
	}
	close(i.grown)
	i.grown = make(chan struct{})
	if s.bytes > s.most {
		s.trim(0)
	}
	if err == nil && s.bytes > s.most {
		err = errFull
	}
	if err == nil && i.payer != nil && i.payer.bytes > s.most/2 {
		if i.pay(i.cheapest()); i.payer.bytes > s.most/2 {
			err = errShare
		}
	}
	return n, err
}

// follow writes an item as it grows.
func (s *spool) follow(ctx context.Context, i *item, w io.Writer, wait func() error) error {
	tick := time.NewTicker(waitTime)
	defer tick.Stop()
	var buf []byte
	for at := int64(0); ; {
		s.mu.Lock()
		file, size, end, grown := i.file, i.size, i.err, i.grown
		s.mu.Unlock()
		if at == size && errors.Is(end, io.EOF) {
			return nil
		}
		if at == size && end != nil {
			return end
		}
		if at == size {
			select {
			case <-grown:
			case <-tick.C:
				if err := wait(); err != nil {
					return err
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			continue
		}
		if buf == nil {
			buf = make([]byte, min(size, 16<<10))
		}
		n, err := file.ReadAt(buf[:min(int64(len(buf)), size-at)], at)
		if err != nil {
			return fmt.Errorf("read a temporary file: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return &writeError{err}
		}
		at += int64(n)
	}
}

// writeError is of a client that takes no more.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }
