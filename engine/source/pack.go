package source

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"crypto/sha1" // git's name of things, not a matter of trust here
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// The parts of a pack, in bytes: what comes before its objects, and the checksum
// behind them.
const (
	packHead = 12
	sumSize  = sha1.Size
)

// longestChain is how many deltas may build upon each other, as in git.
const longestChain = 4095

// raw is an object: its kind and its contents.
type raw struct {
	kind plumbing.ObjectType
	data []byte
}

// pack is one pack file and where its objects begin. It never changes, and may be
// read by any number of goroutines. The file stays readable while it is open, also
// when its name is gone; the runtime closes it with the last user.
type pack struct {
	name  string // of the checksum, hex
	file  io.ReaderAt
	size  int64
	index []spot // sorted by id

	starts []int64 // of all objects, sorted: each ends where the next begins
}

type spot struct {
	id plumbing.Hash
	at int64
}

func (p *pack) find(id plumbing.Hash) (int64, bool) {
	i, ok := slices.BinarySearchFunc(p.index, id, func(s spot, id plumbing.Hash) int { return bytes.Compare(s.id[:], id[:]) })
	if !ok {
		return 0, false
	}
	return p.index[i].at, true
}

// entry is an object as it lies in a pack.
type entry struct {
	kind plumbing.ObjectType
	size int64 // of what is inflated: an object, or a delta
	base int64 // where the base of a delta begins
	body *bufio.Reader
}

func (p *pack) entry(at int64) (entry, error) {
	if at < packHead || at >= p.size-sumSize {
		return entry{}, errors.New("an object begins outside of the pack")
	}
	e := entry{body: bufio.NewReader(io.NewSectionReader(p.file, at, p.size-sumSize-at))}
	c, err := e.body.ReadByte()
	if err != nil {
		return e, err
	}
	e.kind, e.size = plumbing.ObjectType(c>>4&7), int64(c&15)
	for shift := 4; c&0x80 != 0; shift += 7 {
		if c, err = e.body.ReadByte(); err != nil || shift > 50 {
			return e, errors.Join(err, errors.New("bad size of an object"))
		}
		e.size |= int64(c&0x7f) << shift
	}
	switch e.kind {
	case plumbing.OFSDeltaObject:
		back, err := binaryOffset(e.body)
		if err != nil || back <= 0 || back > at {
			return e, errors.Join(err, errors.New("bad base of a delta"))
		}
		e.base = at - back
	case plumbing.REFDeltaObject:
		var id plumbing.Hash
		if _, err := io.ReadFull(e.body, id[:]); err != nil {
			return e, err
		}
		base, ok := p.find(id)
		if !ok {
			return e, errors.New("the base of a delta is missing")
		}
		e.base = base
	case plumbing.CommitObject, plumbing.TreeObject, plumbing.BlobObject, plumbing.TagObject:
	default:
		return e, fmt.Errorf("unknown kind %d of an object", e.kind)
	}
	return e, nil
}

// binaryOffset reads how far back the base of a delta lies, in git's own encoding.
func binaryOffset(r io.ByteReader) (int64, error) {
	c, err := r.ReadByte()
	n := int64(c & 0x7f)
	for i := 0; err == nil && c&0x80 != 0; i++ {
		if i > 7 {
			return 0, errors.New("bad base of a delta")
		}
		c, err = r.ReadByte()
		n = (n+1)<<7 | int64(c&0x7f)
	}
	return n, err
}

// errTooLong is of an object that has more bytes than the reader will take.
var errTooLong = errors.New("too long")

// read gives the object that begins at an offset, of at most limit bytes.
func (p *pack) read(at, limit int64) (raw, error) {
	var deltas [][]byte // last one first
	for {
		e, err := p.entry(at)
		if err != nil {
			return raw{}, err
		}
		if e.size > limit {
			return raw{}, errTooLong
		}
		data, err := inflate(e.body, e.size)
		if err != nil {
			return raw{}, err
		}
		if e.base == 0 {
			return patch(raw{e.kind, data}, deltas, limit)
		}
		if len(deltas) == longestChain {
			return raw{}, errors.New("too many deltas upon each other")
		}
		deltas, at = append(deltas, data), e.base
	}
}

func patch(o raw, deltas [][]byte, limit int64) (raw, error) {
	for _, d := range slices.Backward(deltas) {
		if size, err := patchedSize(bytes.NewReader(d)); err != nil || size > limit {
			return raw{}, errors.Join(err, errTooLong)
		}
		data, err := packfile.PatchDelta(o.data, d)
		if err != nil {
			return raw{}, err
		}
		o.data = data
	}
	return o, nil
}

// length gives kind and size of an object without reading all of it.
func (p *pack) length(at int64) (kind plumbing.ObjectType, size int64, err error) {
	size = -1
	for range longestChain + 1 {
		e, err := p.entry(at)
		switch {
		case err != nil:
			return 0, 0, err
		case e.base == 0 && size < 0:
			return e.kind, e.size, nil
		case e.base == 0:
			return e.kind, size, nil
		case size < 0: // the outermost delta says what comes out
			z, err := zlib.NewReader(e.body)
			if err != nil {
				return 0, 0, err
			}
			if size, err = patchedSize(bufio.NewReaderSize(z, 32)); err != nil {
				return 0, 0, err
			}
		}
		at = e.base
	}
	return 0, 0, errors.New("too many deltas upon each other")
}

// patchedSize reads the head of a delta: the size of its base, then of its result.
func patchedSize(r io.ByteReader) (int64, error) {
	if _, err := binary.ReadUvarint(r); err != nil {
		return 0, err
	}
	n, err := binary.ReadUvarint(r)
	if n > 1<<50 {
		return 0, errTooLong
	}
	return int64(n), err
}

// inflate reads exactly size bytes.
func inflate(r io.Reader, size int64) ([]byte, error) {
	z, err := zlib.NewReader(r)
	if err != nil {
		return nil, err
	}
	// No more is set aside than has come: a size may be a lie.
	b := bytes.NewBuffer(make([]byte, 0, min(size, 1<<20)+bytes.MinRead))
	n, err := b.ReadFrom(io.LimitReader(z, size+1))
	if err == nil && n != size {
		err = errors.New("an object is not as long as it says")
	}
	return b.Bytes(), err
}

// checkSum holds what a file says about itself, in its last bytes, against the rest,
// and gives that checksum.
func checkSum(r io.ReaderAt, size int64) (plumbing.Hash, error) {
	var want plumbing.Hash
	if size < packHead+sumSize {
		return want, errors.New("too short")
	}
	h := sha1.New()
	if _, err := io.Copy(h, io.NewSectionReader(r, 0, size-sumSize)); err != nil {
		return want, err
	}
	if _, err := r.ReadAt(want[:], size-sumSize); err != nil && !errors.Is(err, io.EOF) {
		return want, err
	}
	if !bytes.Equal(h.Sum(nil), want[:]) {
		return want, errors.New("its checksum does not match")
	}
	return want, nil
}

// indexPack reads a whole pack and gives the index of its objects. Every delta must
// have its base in the same pack.
func indexPack(f io.ReadSeeker) (*idxfile.MemoryIndex, error) {
	w := new(idxfile.Writer)
	p, err := packfile.NewParser(packfile.NewScanner(f), w)
	if err != nil {
		return nil, err
	}
	if _, err := p.Parse(); err != nil {
		return nil, err
	}
	return w.Index()
}

// spots makes the index that is used from the one that git reads.
func spots(m *idxfile.MemoryIndex) ([]spot, error) {
	n, err := m.Count()
	if err != nil {
		return nil, err
	}
	out := make([]spot, 0, n)
	it, err := m.Entries()
	if err != nil {
		return nil, err
	}
	defer func() { _ = it.Close() }()
	for {
		e, err := it.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		out = append(out, spot{e.Hash, int64(e.Offset)})
	}
	if !slices.IsSortedFunc(out, func(a, b spot) int { return bytes.Compare(a.id[:], b.id[:]) }) {
		return nil, errors.New("the index is not sorted")
	}
	return out, nil
}

// writePack writes a pack of the objects that ids names, each in full. Only one of
// them is in memory at a time; one that lies in full in a pack is copied as it is.
func writePack(w io.Writer, s *store, ids []plumbing.Hash, limit int64) error {
	return packOf(w, zlib.NewWriter(nil), len(ids), func(out io.Writer, put func(raw) error) error {
		for _, id := range ids {
			if done, err := s.copyTo(out, id); done || err != nil {
				if err != nil {
					return fmt.Errorf("object %s: %w", id, err)
				}
				continue
			}
			o, err := s.read(id, limit)
			if err != nil {
				return fmt.Errorf("object %s: %w", id, err)
			}
			if err := put(o); err != nil {
				return err
			}
		}
		return nil
	})
}

// copyTo copies an object as it lies in a pack, if it is there in full. Nobody looks
// at its contents: who makes a pack of it looks when that is indexed.
func (s *store) copyTo(w io.Writer, id plumbing.Hash) (bool, error) {
	for _, p := range s.packs {
		at, ok := p.find(id)
		if !ok {
			continue
		}
		e, err := p.entry(at)
		if err != nil || e.base != 0 {
			return false, err
		}
		next, _ := slices.BinarySearch(p.starts, at+1)
		end := p.size - sumSize
		if next < len(p.starts) {
			end = p.starts[next]
		}
		_, err = io.Copy(w, io.NewSectionReader(p.file, at, end-at))
		return true, err
	}
	return false, nil
}

// packOf writes a pack of count objects. fill puts them one by one, or writes them to
// out as they lie in another pack. Making z is slow, so who writes many packs keeps it.
func packOf(w io.Writer, z *zlib.Writer, count int, fill func(out io.Writer, put func(raw) error) error) error {
	sum := sha1.New()
	out := bufio.NewWriter(io.MultiWriter(w, sum))
	head := append([]byte("PACK\x00\x00\x00\x02"), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(head[8:], uint32(count))
	if _, err := out.Write(head); err != nil {
		return err
	}
	if err := fill(out, func(o raw) error {
		if _, err := out.Write(entryHead(o.kind, len(o.data))); err != nil {
			return err
		}
		z.Reset(out)
		if _, err := z.Write(o.data); err != nil {
			return err
		}
		return z.Close()
	}); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}

func entryHead(kind plumbing.ObjectType, size int) []byte {
	c, rest := byte(kind)<<4|byte(size&15), size>>4
	var out []byte
	for rest > 0 {
		out = append(out, c|0x80)
		c, rest = byte(rest&0x7f), rest>>7
	}
	return append(out, c)
}
