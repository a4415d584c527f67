package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/memory"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// history is a repository in memory, a commit after the other.
type history struct {
	t       testing.TB
	objects *memory.Storage
	head    plumbing.Hash
	n       int
}

func newHistory(t testing.TB) *history { return &history{t: t, objects: memory.NewStorage()} }

func (h *history) put(o interface {
	Encode(plumbing.EncodedObject) error
},
) plumbing.Hash {
	e := h.objects.NewEncodedObject()
	require.NoError(h.t, o.Encode(e))
	id, err := h.objects.SetEncodedObject(e)
	require.NoError(h.t, err)
	return id
}

// commit makes a commit with one file.
func (h *history) commit(text string) string {
	blob, err := h.objects.SetEncodedObject(objects.NewObject(plumbing.BlobObject, []byte(text)))
	require.NoError(h.t, err)
	tree := h.put(&object.Tree{Entries: []object.TreeEntry{{Name: "site.hcl", Mode: filemode.Regular, Hash: blob}}})
	h.n++
	who := object.Signature{Name: "Ada", Email: "ada@example.org", When: time.Unix(int64(h.n), 0).UTC()}
	c := &object.Commit{Author: who, Committer: who, Message: "change\n", TreeHash: tree}
	if !h.head.IsZero() {
		c.ParentHashes = []plumbing.Hash{h.head}
	}
	h.head = h.put(c)
	return h.head.String()
}

func (h *history) snapshot(c Content) *Snapshot {
	h.t.Helper()
	if c.Branch == "" {
		c.Branch = "main"
	}
	s, err := New(objects.NewGraph(&objects.Store{Objects: h.objects}), 1<<20, c)
	require.NoError(h.t, err)
	return s
}

func pkt(lines ...string) string {
	var b strings.Builder
	for _, l := range lines {
		if l == "" {
			b.WriteString("0000")
		} else {
			fmt.Fprintf(&b, "%04x%s", len(l)+4, l)
		}
	}
	return b.String()
}

func ask(s *server, lines ...string) (string, error) {
	var out bytes.Buffer
	err := s.UploadPack(context.Background(), strings.NewReader(pkt(lines...)), &out)
	return out.String(), err
}

// A client that was promised a commit gets it for a while after another one is in force.
func TestOverlap(t *testing.T) {
	now := time.Unix(0, 0)
	s := newServer(Options{now: func() time.Time { return now }})
	h := newHistory(t)
	var ids []string
	publish := func() {
		ids = append(ids, h.commit(fmt.Sprint(len(ids))))
		s.Publish(h.snapshot(Content{InForce: ids[len(ids)-1]}))
	}
	served := func() (out []int) {
		for n, id := range ids {
			answer, err := ask(s, "want "+id+"\n", "", "done\n")
			require.NoError(t, err)
			if strings.HasPrefix(answer, "0008NAK\nPACK") {
				out = append(out, n)
			} else {
				require.Contains(t, answer, "ERR upload-pack: not our ref "+id)
			}
		}
		return out
	}
	publish()
	publish()
	require.Equal(t, []int{0, 1}, served())
	for range 100 {
		s.Publish(h.snapshot(Content{InForce: ids[1]})) // the same once more
	}
	now = now.Add(overlap - 1)
	publish()
	require.Equal(t, []int{0, 1, 2}, served())
	now = now.Add(1)
	require.Equal(t, []int{1, 2}, served())
	for range 6 {
		publish()
	}
	require.Equal(t, []int{4, 5, 6, 7, 8}, served(), "no more than so many")
	now = now.Add(overlap)
	require.Equal(t, []int{8}, served())
	publish()
	s.Publish(nil)
	require.Empty(t, func() (out []string) {
		for _, id := range ids {
			answer, _ := ask(s, "want "+id+"\n", "", "done\n")
			require.Equal(t, pkt("ERR no commit is in force yet; try again\n"), answer)
		}
		return out
	}())
	_, err := s.File("HEAD", "site.hcl")
	require.ErrorIs(t, err, errNothing)
}

// The answers of git's own upload-pack, round by round.
func TestAnswers(t *testing.T) {
	h := newHistory(t)
	a, b, c := h.commit("a"), h.commit("b"), h.commit("c")
	s := newServer(Options{})
	s.Publish(h.snapshot(Content{InForce: c, LastGood: b}))
	unknown := strings.Repeat("1", 40)
	want := "want " + c
	for _, x := range []struct {
		name   string
		ask    []string
		answer string
		pack   bool
	}{
		{"clone", []string{want + "\n", "", "done\n"}, pkt("NAK\n"), true},
		{"nothing after the wants", []string{want + "\n", ""}, "", false},
		{"plain, common", []string{want + "\n", "", "have " + a + "\n", "have " + b + "\n", "done\n"}, pkt("ACK " + a + "\n"), true},
		{"plain, unknown", []string{want + "\n", "", "have " + unknown + "\n", ""}, pkt("NAK\n"), false},
		{"plain, round", []string{want + "\n", "", "have " + a + "\n", ""}, pkt("ACK " + a + "\n"), false},
		{"multi_ack", []string{want + " multi_ack\n", "", "have " + unknown + "\n", "have " + a + "\n", "have " + unknown + "\n", ""}, pkt("ACK "+a+" continue\n", "ACK "+unknown+" continue\n", "NAK\n"), false},
		{"multi_ack, done", []string{want + " multi_ack\n", "", "have " + a + "\n", "done\n"}, pkt("ACK "+a+" continue\n", "ACK "+a+"\n"), true},
		{"detailed", []string{want + " multi_ack_detailed\n", "", "have " + a + "\n", ""}, pkt("ACK "+a+" common\n", "ACK "+a+" ready\n", "NAK\n"), false},
		{"detailed, unknown first", []string{want + " multi_ack_detailed\n", "", "have " + unknown + "\n", ""}, pkt("NAK\n"), false},
		{"detailed, unknown later", []string{want + " multi_ack_detailed\n", "", "have " + a + "\n", "have " + unknown + "\n", ""}, pkt("ACK "+a+" common\n", "ACK "+unknown+" ready\n", "NAK\n"), false},
		{"detailed, done", []string{want + " multi_ack_detailed\n", "", "have " + unknown + "\n", "done\n"}, pkt("NAK\n"), true},
		{"no-done", []string{want + " multi_ack_detailed no-done\n", "", "have " + b + "\n", ""}, pkt("ACK "+b+" common\n", "ACK "+b+" ready\n", "NAK\n", "ACK "+b+"\n"), true},
		{"two wants, one met", []string{want + " multi_ack_detailed no-done\n", "want " + b + "\n", "", "have " + c + "\n", ""}, pkt("ACK "+c+" common\n", "NAK\n"), false},
		{"depth", []string{want + "\n", "deepen 2\n", ""}, pkt("shallow "+b, ""), false},
		{"depth, done", []string{want + "\n", "deepen 1\n", "", "done\n"}, pkt("shallow "+c, "", "NAK\n"), true},
		{"depth of all", []string{want + "\n", "deepen 2147483647\n", "", "done\n"}, pkt("", "NAK\n"), true},
		{"deeper", []string{want + "\n", "shallow " + c + "\n", "deepen 2\n", "", "have " + c + "\n", "done\n"}, pkt("shallow "+b, "unshallow "+c, "", "ACK "+c+"\n"), true},
	} {
		t.Run(x.name, func(t *testing.T) {
			answer, err := ask(s, x.ask...)
			require.NoError(t, err)
			head, pack, found := strings.Cut(answer, "PACK")
			require.Equal(t, x.pack, found, answer)
			require.Equal(t, x.answer, head)
			require.Equal(t, found, strings.HasPrefix(pack, "\x00\x00\x00\x02"))
		})
	}
}

// Where history ends, and where it must not go on.
func TestEnds(t *testing.T) {
	h := newHistory(t)
	a, b := h.commit("a"), h.commit("b")
	c := h.commit("c")
	delete(h.objects.Commits, plumbing.NewHash(a))
	delete(h.objects.Objects, plumbing.NewHash(a))
	s := h.snapshot(Content{InForce: c})
	require.Contains(t, string(s.Refs()), pkt("shallow "+b+"\n", ""))
	s = h.snapshot(Content{InForce: c, Withheld: func(id string) bool { return id == b }})
	require.Contains(t, string(s.Refs()), pkt("shallow "+c+"\n", ""))
	s = h.snapshot(Content{InForce: c, LastGood: b, Withheld: func(string) bool { return true }})
	require.Contains(t, string(s.Refs()), pkt("shallow "+b+"\n", ""), "what is to be shown is not asked about")
	for _, content := range []Content{{InForce: a}, {InForce: "main"}, {InForce: c, LastGood: a}, {InForce: c, LastGood: "x"}} {
		_, err := New(objects.NewGraph(&objects.Store{Objects: h.objects}), 1<<20, content)
		require.ErrorIs(t, err, objects.ErrUnknown)
	}
}

// An object that cannot be read ends the answer with a message, or the connection where the
// protocol has no room for one.
func TestDamage(t *testing.T) {
	h := newHistory(t)
	id := h.commit("a")
	s := newServer(Options{})
	snapshot := h.snapshot(Content{InForce: id})
	s.Publish(snapshot)
	blob := plumbing.ComputeHash(plumbing.BlobObject, []byte("a"))
	delete(h.objects.Blobs, blob)
	delete(h.objects.Objects, blob)
	answer, err := ask(s, "want "+id+" side-band-64k\n", "", "done\n")
	require.ErrorIs(t, err, plumbing.ErrObjectNotFound)
	require.NotErrorIs(t, err, ErrCut)
	require.Equal(t, pkt("NAK\n", "\x03the repository cannot be read; see the log of the server\n"), answer)
	_, err = ask(s, "want "+id+"\n", "", "done\n")
	require.ErrorIs(t, err, ErrCut)
}

func TestMostPack(t *testing.T) {
	h := newHistory(t)
	id := h.commit(strings.Repeat("x", 2<<20))
	s := newServer(Options{MostPack: 1 << 20})
	s.Publish(h.snapshot(Content{InForce: id}))
	answer, err := ask(s, "want "+id+" side-band-64k\n", "", "done\n")
	require.NoError(t, err)
	require.Equal(t, pkt("NAK\n", "\x03the request is for more than 1 MiB; use --depth 1, or ask for less at a time\n"), answer)
}

// A client that waits for its pack gets empty packets.
func TestSignsOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHistory(t)
		id := h.commit("a")
		s := newServer(Options{})
		s.Publish(h.snapshot(Content{InForce: id}))
		go func() { // the same client has a build already
			_ = s.spool.copy(t.Context(), "other", func(context.Context, io.Writer) error {
				<-time.After(2*waitTime + 1)
				return nil
			}, io.Discard, func() error { return nil })
		}()
		synctest.Wait()
		var out flushed
		require.NoError(t, s.UploadPack(t.Context(), strings.NewReader(pkt("want "+id+" side-band-64k\n", "", "done\n")), &out))
		require.True(t, strings.HasPrefix(out.String(), pkt("NAK\n", "\x01", "\x01")), out.String())
		require.True(t, strings.HasSuffix(out.String(), "0000"))
		require.Equal(t, 2, out.times)
	})
}

// flushed counts how often it is flushed.
type flushed struct {
	bytes.Buffer
	times int
}

func (f *flushed) Flush() error { f.times++; return nil }

// The packets of both sizes carry the same pack.
func TestSideBands(t *testing.T) {
	h := newHistory(t)
	id := h.commit(noise(200_000))
	s := newServer(Options{})
	s.Publish(h.snapshot(Content{InForce: id}))
	plain, err := ask(s, "want "+id+"\n", "", "done\n")
	require.NoError(t, err)
	for _, band := range []string{"side-band", "side-band-64k", "side-band side-band-64k"} {
		answer, err := ask(s, "want "+id+" "+band+"\n", "", "done\n")
		require.NoError(t, err)
		in := strings.NewReader(strings.TrimPrefix(answer, pkt("NAK\n")))
		var pack bytes.Buffer
		for {
			var n int
			head := make([]byte, 4)
			_, err := io.ReadFull(in, head)
			require.NoError(t, err)
			_, err = fmt.Sscanf(string(head), "%04x", &n)
			require.NoError(t, err)
			if n == 0 {
				break
			}
			data := make([]byte, n-4)
			_, err = io.ReadFull(in, data)
			require.NoError(t, err)
			require.LessOrEqual(t, n, map[string]int{"side-band": 1000}[band]+map[bool]int{band != "side-band": 65520}[true])
			require.Equal(t, byte(1), data[0])
			pack.Write(data[1:])
		}
		require.Zero(t, in.Len())
		require.Equal(t, strings.TrimPrefix(plain, pkt("NAK\n")), pack.String())
	}
	_, _, _, built := s.spool.state()
	require.Equal(t, 1, built, "all these are one pack")
}

// noise is text that does not get smaller when it is compressed.
func noise(n int) string {
	b, x := make([]byte, n), uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return string(b)
}

func TestFile(t *testing.T) {
	h := newHistory(t)
	good := h.commit("good")
	id := h.commit("now")
	s := newServer(Options{MostFile: 3})
	s.Publish(h.snapshot(Content{Branch: "env/prod", InForce: id, LastGood: good}))
	read := func(commit string) (string, error) {
		f, err := s.File(commit, "site.hcl")
		if err != nil {
			return "", err
		}
		var out bytes.Buffer
		require.NoError(t, f.Copy(t.Context(), &out))
		require.Equal(t, plumbing.ComputeHash(plumbing.BlobObject, out.Bytes()).String(), f.ID)
		return out.String(), nil
	}
	for _, name := range []string{"HEAD", "env/prod", id} {
		text, err := read(name)
		require.NoError(t, err)
		require.Equal(t, "now", text)
	}
	_, err := read("last-good")
	require.ErrorIs(t, err, objects.ErrTooLarge)
	for _, name := range []string{"", "main", "refs/heads/env/prod", "prod", id[:8], strings.ToUpper(id)} {
		_, err := read(name)
		if name == strings.ToUpper(id) {
			require.NoError(t, err, "an id in capitals is the same id")
			continue
		}
		require.ErrorIs(t, err, errNoRef, name)
	}
	for _, path := range []string{"", ".", "..", "/", "site.hcl/", "/site.hcl", "../site.hcl", "a/../site.hcl", "\x00"} {
		_, err := s.File("HEAD", path)
		require.True(t, errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) || errors.Is(err, errNotFile), "%q: %v", path, err)
	}
}

func never() error { return errors.New("there was nothing to wait for") }

func (s *spool) state() (items, idle int, size int64, built int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.items), len(s.idle), s.bytes, s.built
}

// Concurrent requests for one pack share one build, even if some clients leave.
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

// A pack without readers makes room. One that is read does not, and then no other is built.
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

// A pack that several clients want is built at the turn of the first one, and no turn is lost when one leaves.
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
