package source

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/storage/memory"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/objects"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// giant is a remote that sends a crafted pack.
type giant struct {
	tip  plumbing.Hash
	data []byte
}

func (g *giant) Ask(_ context.Context) (conversation, *packp.AdvRefs, error) {
	refs := packp.NewAdvRefs()
	refs.References["refs/heads/main"] = g.tip
	return g, refs, nil
}
func (*giant) Close() {}
func (g *giant) Pack(_ context.Context, _ *packp.UploadPackRequest, w io.Writer) error {
	_, err := w.Write(g.data)
	return err
}

// raw is an object: its kind and its contents.
type raw struct {
	kind plumbing.ObjectType
	data []byte
}

// sending makes a repository whose remote sends these objects; the last is the head.
func sending(t *testing.T, o Options, sent ...raw) *Repository {
	t.Helper()
	all, ids := memory.NewStorage(), []plumbing.Hash(nil)
	for _, o := range sent {
		id, err := all.SetEncodedObject(objects.NewObject(o.kind, o.data))
		require.NoError(t, err)
		ids = append(ids, id)
	}
	var p bytes.Buffer
	require.NoError(t, (&objects.Store{Objects: all}).WritePack(&p, ids))
	return serveAs(t, o, ids[len(ids)-1], p.Bytes())
}

func serveAs(t *testing.T, o Options, tip plumbing.Hash, pack []byte) *Repository {
	t.Helper()
	o.URL, o.Dir = "/nowhere", filepath.Join(t.TempDir(), "copy")
	r, err := OpenRepository(o)
	require.NoError(t, err)
	r.remote = &giant{tip, pack}
	return r
}

func treeLine(mode filemode.FileMode, name string, id plumbing.Hash) []byte {
	return append(fmt.Appendf(nil, "%o %s\x00", uint32(mode), name), id[:]...)
}

func tree(items ...[]byte) raw { return raw{plumbing.TreeObject, bytes.Join(items, nil)} }

func idOf(o raw) plumbing.Hash { return plumbing.ComputeHash(o.kind, o.data) }

func commitOf(root raw) raw {
	who := "A <a@example.org> 1767323045 +0000"
	return raw{plumbing.CommitObject, fmt.Appendf(nil, "tree %s\nauthor %s\ncommitter %s\n\nfirst\n", idOf(root), who, who)}
}

// An image of zeros takes a thousandth of its size in a pack.
func TestAnObjectThatIsTooLarge(t *testing.T) {
	blob := raw{plumbing.BlobObject, make([]byte, 2<<20)}
	root := tree(treeLine(0o100644, "disk.img", idOf(blob)))
	r := sending(t, Options{largest: 1 << 20}, blob, root, commitOf(root))
	_, err := r.Head(t.Context())
	require.ErrorIs(t, err, objects.ErrTooLarge)
	require.ErrorContains(t, err, "an object of 2 MiB")
	left, err := filepath.Glob(filepath.Join(r.o.Dir, "objects/pack/*"))
	require.NoError(t, err)
	require.Empty(t, left)
	r.disk.largest, r.o.Refusals = 3<<20, Refusals{} // as after a restart with another limit
	_, err = r.Head(t.Context())
	require.NoError(t, err)
}

// entry is an object, or a delta, as it is in a pack.
func entry(t *testing.T, kind plumbing.ObjectType, base, data []byte) []byte {
	t.Helper()
	c, rest := byte(kind)<<4|byte(len(data)&15), len(data)>>4
	var out bytes.Buffer
	for ; rest > 0; rest >>= 7 {
		out.WriteByte(c | 0x80)
		c = byte(rest & 0x7f)
	}
	out.WriteByte(c)
	out.Write(base)
	z := zlib.NewWriter(&out)
	_, err := z.Write(data)
	require.NoError(t, errors.Join(err, z.Close()))
	return out.Bytes()
}

// packOf is a pack that says how many entries it has, and has these.
func packOf(count uint32, entries ...[]byte) []byte {
	all := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), count)
	all = append(all, bytes.Join(entries, nil)...)
	sum := sha1.Sum(all)
	return append(all, sum[:]...)
}

// A few bytes of a delta may become any number.
func TestADeltaThatBecomesTooMuch(t *testing.T) {
	base := bytes.Repeat([]byte("x"), 0xffff)
	delta := append([]byte{0xff, 0xff, 3}, 0xf0, 0xff, 0x7f) // sizes: 65,535 and 2,097,136
	for range 0x1ffff0 / 0xffff {
		delta = append(delta, 0xb0, 0xff, 0xff)
	}
	id := idOf(raw{plumbing.BlobObject, base})
	p := packOf(2, entry(t, plumbing.BlobObject, nil, base), entry(t, plumbing.REFDeltaObject, id[:], delta))
	require.ErrorIs(t, checkSizes(bytes.NewReader(p), 1<<20), objects.ErrTooLong)
	require.NoError(t, checkSizes(bytes.NewReader(p), 3<<20))
	_, err := serveAs(t, Options{largest: 1 << 20}, id, p).Head(t.Context())
	require.ErrorIs(t, err, objects.ErrTooLarge)
}

// The header of a pack may be false: that costs neither memory nor the local copy.
func TestPacksThatLie(t *testing.T) {
	blob := raw{plumbing.BlobObject, []byte("x")}
	id := idOf(blob)
	whole := entry(t, plumbing.BlobObject, nil, blob.data)
	long := bytes.Clone(whole)
	long[0] = byte(plumbing.BlobObject)<<4 | 15
	for name, p := range map[string][]byte{
		"more objects than there are": packOf(1<<32-1, whole),
		"a base that is missing":      packOf(1, entry(t, plumbing.REFDeltaObject, id[:], []byte{1, 1, 1, 'y'})),
		"a longer object":             packOf(1, long),
		"no pack":                     []byte("<html>"),
		"nothing":                     nil,
	} {
		r := serveAs(t, Options{}, id, p)
		taken := allocated(func() {
			_, err := r.Head(t.Context())
			require.ErrorIs(t, err, errCut, name)
		})
		require.Less(t, taken, uint64(16<<20), name)
		left, err := filepath.Glob(filepath.Join(r.o.Dir, "objects/pack/*"))
		require.NoError(t, err)
		require.Empty(t, left, name)
	}
}

// A tree that contains another ten times, nine levels deep: a handful of objects, and a thousand million files in a walk.
func TestACommitOfTooManyFiles(t *testing.T) {
	blob := raw{plumbing.BlobObject, []byte("x")}
	level := tree(treeLine(0o100644, "a", idOf(blob)))
	sent := []raw{blob, level}
	for range 9 {
		var items [][]byte
		for i := range 10 {
			items = append(items, treeLine(filemode.Dir, fmt.Sprint("d", i), idOf(level)))
		}
		level = tree(items...)
		sent = append(sent, level)
	}
	_, err := sending(t, Options{}, append(sent, commitOf(level))...).Head(t.Context())
	require.ErrorIs(t, err, objects.ErrTooLarge)
	require.ErrorContains(t, err, "more than 1000000 files")
}

func TestACommitOfTooDeepFolders(t *testing.T) {
	nested := func(n int) []raw {
		blob := raw{plumbing.BlobObject, []byte("x")}
		level := tree(treeLine(0o100644, "a", idOf(blob)))
		sent := []raw{blob, level}
		for range n - 1 {
			level = tree(treeLine(filemode.Dir, "d", idOf(level)))
			sent = append(sent, level)
		}
		return append(sent, commitOf(level))
	}
	_, err := sending(t, Options{}, nested(257)...).Head(t.Context())
	require.ErrorContains(t, err, "more than 256 nested folders")
	r := sending(t, Options{}, nested(256)...)
	c, err := r.Head(t.Context())
	require.NoError(t, err)
	f, err := r.Files(c.ID)
	require.NoError(t, err)
	_, err = fs.ReadFile(f, strings.Repeat("d/", 255)+"a")
	require.NoError(t, err)
}

// What counts after a power cut is on the disk before it gets its name, and so is the
// name before anything relies on it.
func TestAFetchLastsOverAPowerCut(t *testing.T) {
	remote := sourcetest.New(t)
	remote.Commit(map[string]string{"a": "1"}, "first")
	var did []string
	o := Options{URL: remote.URL(), Dir: filepath.Join(sourcetest.TempDir(t), "copy")}
	r, err := open(o, func(op, name string) error { did = append(did, op+" "+name); return nil })
	require.NoError(t, err)
	did = nil
	_, err = r.Head(t.Context())
	require.NoError(t, err)
	names := 0
	for i, op := range did {
		if name, ok := strings.CutPrefix(op, "rename "); ok {
			names++
			require.Contains(t, did[i-1], "sync ")
			require.Contains(t, did[i-1], tmpPrefix)
			require.Equal(t, "sync "+filepath.Dir(name), did[i+1])
		}
	}
	require.GreaterOrEqual(t, names, 3, "pack, index, refs: %v", did)
}

// After a restart it is still known where history ends here, and so the gap is closed
// that the merge of an old branch opens.
func TestEndsAreKnownAfterARestart(t *testing.T) {
	remote := sourcetest.New(t)
	for i := range firstDepth + 1 {
		remote.Commit(map[string]string{"a": strconv.Itoa(i)}, "change")
	}
	o := Options{URL: remote.URL(), Dir: filepath.Join(sourcetest.TempDir(t), "copy")}
	r, err := OpenRepository(o)
	require.NoError(t, err)
	_, err = r.Head(t.Context())
	require.NoError(t, err)
	ends := r.state.ends
	require.NotEmpty(t, ends)
	r, err = OpenRepository(o)
	require.NoError(t, err)
	require.Equal(t, ends, r.state.ends)
}

// endless is a server that never comes to its pack.
type endless struct{ read int }

func (e *endless) Read(b []byte) (int, error) {
	const line = "0035shallow 0123456789012345678901234567890123456789\n"
	for i := range b {
		b[i] = line[(e.read+i)%len(line)]
	}
	e.read += len(b)
	return len(b), nil
}

func TestAnAnswerThatDoesNotEnd(t *testing.T) {
	e, req := &endless{}, packp.NewUploadPackRequest()
	req.Depth = packp.DepthCommits(1)
	require.Error(t, receive(io.LimitReader(e, 1<<20), req, io.Discard))
	require.Less(t, e.read, 2<<20)
}

// A disk that is full for a moment, at any of its changes: the same program goes on, and
// loses nothing.
func TestADiskThatIsFullForAMoment(t *testing.T) {
	t.Parallel()
	remote := sourcetest.New(t)
	var commits []string
	for i := range 11 {
		commits = append(commits, remote.Commit(map[string]string{"a": fmt.Sprint(i), fmt.Sprint("f", i): "x"}, fmt.Sprint("commit ", i)))
	}
	dir := sourcetest.TempDir(t)
	for n, full := 0, true; full; n++ {
		left := n
		full = false
		remote.Reset(commits[0])
		o := Options{URL: remote.URL(), Dir: filepath.Join(dir, fmt.Sprint(n)), packs: 4}
		r, err := OpenRepository(o)
		require.NoError(t, err)
		r.disk.before = func(op, _ string) error {
			if !changes(op) {
				return nil
			}
			if left--; left == -1 && op != "remove" {
				full = true
				return syscall.ENOSPC
			}
			full = full || left < 0
			return nil
		}
		for try := range 2 * len(commits) {
			id := commits[min(try, len(commits)-1)]
			remote.Reset(id)
			c, err := r.Head(t.Context())
			if err != nil {
				require.ErrorIs(t, err, syscall.ENOSPC)
				c, err = r.Head(t.Context())
			}
			require.NoError(t, err, n)
			require.Equal(t, id, c.ID)
			if err := r.Keep(commits[min(try/2, len(commits)-1)]); err != nil {
				require.ErrorIs(t, err, syscall.ENOSPC)
			}
		}
		again, err := OpenRepository(o)
		require.NoError(t, err)
		_, err = whole(again.graph, again.state)
		require.NoError(t, err)
		require.Equal(t, commits[len(commits)-1], again.state.head.String(), "%d", n)
	}
}

// allocated is how many bytes f takes from the heap, given back or not.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
