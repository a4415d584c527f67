package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
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

// What git's own upload-pack answers, round by round.
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
