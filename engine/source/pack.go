package source

import (
	"bytes" // git's name of things, not a matter of trust here
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"

	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// largestObject is the maximum size of one object in bytes: indexing a pack holds some of
// them in memory. An image of a disk full of zeros is a thousandth of its size in a pack.
const largestObject = 256 << 20

// packs are the pack files of a local copy.
type packs []*pack

// pack is one pack file, which never changes. The file stays readable while it is
// open, also when its name is gone; the runtime closes it with the last user.
type pack struct {
	name string // of the checksum, hex
	size int64
	open *openFile

	mu   sync.Mutex // go-git reads with one position and one buffer, and files have many readers
	file *packfile.Packfile
}

// packFile is a file as go-git reads it, with a position of its own.
type packFile struct {
	*openFile
	*io.SectionReader
}

func (p packFile) Read(b []byte) (int, error)             { return p.SectionReader.Read(b) }
func (p packFile) ReadAt(b []byte, at int64) (int, error) { return p.SectionReader.ReadAt(b, at) }
func (p packFile) Seek(at int64, from int) (int64, error) { return p.SectionReader.Seek(at, from) }
func (packFile) Write([]byte) (int, error)                { return 0, errors.ErrUnsupported }
func (packFile) Close() error                             { return nil }
func (packFile) Lock() error                              { return nil }
func (packFile) Unlock() error                            { return nil }

// packFolder is the folder in which go-git finds a pack again, to stream a large object. By its name
// the pack might be gone.
type packFolder struct {
	billy.Filesystem
	file *openFile
	size int64
}

func (p packFolder) Open(string) (billy.File, error) {
	return packFile{p.file, io.NewSectionReader(p.file, 0, p.size)}, nil
}

// streamed is the size in bytes from which on go-git reads an object piece by piece.
const streamed = 1 << 20

// newPack gives the objects of a pack that was checked when it came.
func newPack(f *openFile, index *idxfile.MemoryIndex, shared cache.Object) (*pack, error) {
	size, err := f.size()
	if err != nil {
		return nil, err
	}
	folder := packFolder{file: f, size: size}
	file, _ := folder.Open("")
	return &pack{
		name: plumbing.Hash(index.PackfileChecksum).String(), size: size, open: f,
		file: packfile.NewPackfileWithCache(index, folder, file, shared, streamed),
	}, nil
}

// indexPack checks a pack from another program, and returns the index of its objects. The error is
// errTooLong if an object has more than largest bytes, the disk's if the file could not be read, otherwise errBadPack.
func indexPack(f *openFile, largest int64) (m *idxfile.MemoryIndex, err error) {
	size, err := f.size()
	if err != nil {
		return nil, err
	}
	err = f.parse(badPack, func() error {
		err := checkSizes(io.NewSectionReader(f, 0, size), largest)
		index := new(idxfile.Writer)
		var parser *packfile.Parser
		if err == nil {
			parser, err = packfile.NewParser(packfile.NewScanner(io.NewSectionReader(f, 0, size)), index)
		}
		if err == nil {
			_, err = parser.Parse()
		}
		if err == nil {
			m, err = index.Index()
		}
		return err
	})
	return m, err
}

// errBadPack: the pack is damaged.
var errBadPack = errors.New("bad pack")

func badPack(err error) error {
	if errors.Is(err, objects.ErrTooLong) {
		return err
	}
	return fmt.Errorf("%w: %w", errBadPack, err)
}

// checkSizes reads a pack without holding its objects, which may have at most so many
// bytes. go-git has no such limit.
func checkSizes(f io.ReadSeeker, largest int64) error {
	_, err := f.Seek(0, io.SeekStart)
	s := packfile.NewScanner(f)
	var count uint32
	if err == nil {
		_, count, err = s.Header()
	}
	for range count {
		var h *packfile.ObjectHeader
		if h, err = s.NextObjectHeader(); err != nil {
			break
		}
		size := h.Length
		var begin prefix
		if size <= largest {
			_, _, err = s.NextObject(&begin)
		}
		if err == nil && h.Type.IsDelta() && size <= largest {
			// A delta begins with two numbers: the size of its base, then of its result.
			r := bytes.NewReader(begin.data)
			_, err = binary.ReadUvarint(r)
			var n uint64
			if err == nil {
				n, err = binary.ReadUvarint(r)
			}
			size = int64(min(n, 1<<50))
		}
		if err != nil {
			break
		}
		if size > largest {
			return fmt.Errorf("%w: an object of %d MiB", objects.ErrTooLong, size>>20)
		}
	}
	return err
}

// prefix keeps the beginning of what is written.
type prefix struct{ data []byte }

func (p *prefix) Write(b []byte) (int, error) {
	p.data = append(p.data, b[:min(len(b), 20-len(p.data))]...)
	return len(b), nil
}

func (ps packs) with(id plumbing.Hash) *pack {
	for _, p := range ps {
		if ok, err := p.file.Contains(id); ok && err == nil { // it only reads the index
			return p
		}
	}
	return nil
}

// HasEncodedObject implements objects.
func (ps packs) HasEncodedObject(id plumbing.Hash) error {
	if ps.with(id) == nil {
		return plumbing.ErrObjectNotFound
	}
	return nil
}

// EncodedObjectSize implements objects.
func (ps packs) EncodedObjectSize(id plumbing.Hash) (int64, error) {
	p := ps.with(id)
	if p == nil {
		return 0, plumbing.ErrObjectNotFound
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var n int64
	err := p.open.parse(objects.Damage, func() error {
		at, err := p.file.FindOffset(id)
		if err == nil {
			n, err = p.file.GetSizeByOffset(at)
		}
		return err
	})
	return n, err
}

// EncodedObject implements objects. The kind is not checked.
func (ps packs) EncodedObject(_ plumbing.ObjectType, id plumbing.Hash) (o plumbing.EncodedObject, err error) {
	p := ps.with(id)
	if p == nil {
		return nil, plumbing.ErrObjectNotFound
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err = p.open.parse(objects.Damage, func() error {
		o, err = p.file.Get(id)
		return err
	})
	return packed{o, p}, err
}

// packed is an object of a pack, which may be read from there only when its contents are.
type packed struct {
	plumbing.EncodedObject
	from *pack
}

// Reader returns the contents. Its errors are those of packs.
func (o packed) Reader() (r io.ReadCloser, err error) {
	err = o.from.open.parse(objects.Damage, func() error {
		r, err = o.EncodedObject.Reader()
		return err
	})
	return packedReader{r, o.from}, err
}

type packedReader struct {
	io.ReadCloser
	from *pack
}

func (r packedReader) Read(b []byte) (n int, err error) {
	err = r.from.open.parse(asRead, func() error {
		n, err = r.ReadCloser.Read(b)
		return err
	})
	return n, err
}

// asRead is objects.Damage for readers: the end of the contents is none.
func asRead(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return objects.Damage(err)
}

// size is the bytes of packs on disk, their indexes left out.
func (ps packs) size() int64 {
	var n int64
	for _, p := range ps {
		n += p.size
	}
	return n
}
