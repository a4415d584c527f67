package source

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// giant is a talk that brings a pack somebody made.
type giant struct {
	tipID plumbing.Hash
	fill  func(put func(raw) error) error
	count int
}

func (g *giant) ask(_ context.Context) (talk, error) { return g, nil }
func (g *giant) tip() (plumbing.Hash, error)         { return g.tipID, nil }
func (*giant) close()                                {}
func (g *giant) bring(_ context.Context, _ need, w io.Writer) error {
	return packOf(w, zlib.NewWriter(nil), g.count, func(_ io.Writer, put func(raw) error) error { return g.fill(put) })
}

// serve makes a repository whose remote brings these objects; the last is the head.
func serve(t *testing.T, o Options, objects ...raw) *Repository {
	t.Helper()
	o.URL, o.Dir = "/nowhere", filepath.Join(t.TempDir(), "copy")
	r, err := OpenRepository(o)
	require.NoError(t, err)
	last := objects[len(objects)-1]
	r.remote = &giant{plumbing.ComputeHash(last.kind, last.data), func(put func(raw) error) error {
		for _, o := range objects {
			if err := put(o); err != nil {
				return err
			}
		}
		return nil
	}, len(objects)}
	return r
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
	r := serve(t, Options{largest: 1 << 20}, blob, root, commitOf(root))
	_, err := r.Head(t.Context())
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "an object of 2 MiB")
	left, err := filepath.Glob(filepath.Join(r.o.Dir, "objects/pack/*"))
	require.NoError(t, err)
	require.Empty(t, left)
	r.disk.largest = 3 << 20
	_, err = r.Head(t.Context())
	require.NoError(t, err)
}

// A few bytes of a delta may become any number.
func TestADeltaThatBecomesTooMuch(t *testing.T) {
	var p bytes.Buffer
	base, z := bytes.Repeat([]byte("x"), 0xffff), zlib.NewWriter(nil)
	require.NoError(t, packOf(&p, z, 2, func(out io.Writer, put func(raw) error) error {
		if err := put(raw{plumbing.BlobObject, base}); err != nil {
			return err
		}
		delta := append([]byte{0xff, 0xff, 3}, 0xf0, 0xff, 0x7f) // sizes: 65,535 and 2,097,136
		for range 0x1ffff0 / 0xffff {
			delta = append(delta, 0xb0, 0xff, 0xff)
		}
		id := idOf(raw{plumbing.BlobObject, base})
		return errors.Join(second(out.Write(append(entryHead(plumbing.REFDeltaObject, len(delta)), id[:]...))), deflate(out, delta))
	}))
	require.ErrorIs(t, checkSizes(bytes.NewReader(p.Bytes()), 1<<20), errTooLong)
	require.NoError(t, checkSizes(bytes.NewReader(p.Bytes()), 3<<20))
}

func second(_ int, err error) error { return err }

func deflate(w io.Writer, b []byte) error {
	z := zlib.NewWriter(w)
	_, err := z.Write(b)
	return errors.Join(err, z.Close())
}

// One tree in another ten times, nine times over: a handful of objects, a thousand
// million files for whoever walks through them.
func TestACommitOfTooManyFiles(t *testing.T) {
	blob := raw{plumbing.BlobObject, []byte("x")}
	level := tree(treeLine(0o100644, "a", idOf(blob)))
	objects := []raw{blob, level}
	for range 9 {
		var items [][]byte
		for i := range 10 {
			items = append(items, treeLine(modeFolder, fmt.Sprint("d", i), idOf(level)))
		}
		level = tree(items...)
		objects = append(objects, level)
	}
	_, err := serve(t, Options{}, append(objects, commitOf(level))...).Head(t.Context())
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "more than 1000000 files")
}

func TestACommitOfTooDeepFolders(t *testing.T) {
	nested := func(n int) []raw {
		blob := raw{plumbing.BlobObject, []byte("x")}
		level := tree(treeLine(0o100644, "a", idOf(blob)))
		objects := []raw{blob, level}
		for range n - 1 {
			level = tree(treeLine(modeFolder, "d", idOf(level)))
			objects = append(objects, level)
		}
		return append(objects, commitOf(level))
	}
	_, err := serve(t, Options{}, nested(deepest+1)...).Head(t.Context())
	require.ErrorContains(t, err, "more than 256 folders in each other")
	r := serve(t, Options{}, nested(deepest)...)
	c, err := r.Head(t.Context())
	require.NoError(t, err)
	f, err := r.Files(c.ID)
	require.NoError(t, err)
	_, err = fs.ReadFile(f, strings.Repeat("d/", deepest-1)+"a")
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
	remote.Commit(map[string]string{"a": "0"}, "root")
	remote.Commit(map[string]string{"a": "1"}, "first")
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
	require.Error(t, receive(e, 1<<20, req, io.Discard))
	require.Less(t, e.read, 2<<20)
}

// A disk that is full for a moment, at any of its changes: the same program goes on, and
// loses nothing.
func TestADiskThatIsFullForAMoment(t *testing.T) {
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
		require.NoError(t, again.whole())
		require.Equal(t, commits[len(commits)-1], again.state.head.String(), "%d", n)
	}
}
