package source

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
)

func (d disk) openPack(name string) (*pack, error) {
	idx, err := os.Open(d.path(packDir + "/pack-" + name + ".idx"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = idx.Close() }()
	m := idxfile.NewMemoryIndex()
	if err := idxfile.NewDecoder(bufio.NewReader(idx)).Decode(m); err != nil {
		return nil, err
	}
	f, err := os.Open(d.path(packDir + "/pack-" + name + ".pack"))
	if err != nil {
		return nil, err
	}
	p, err := newPack(name, f, m)
	if err != nil {
		_ = f.Close()
	}
	return p, err
}

func newPack(name string, f *os.File, m *idxfile.MemoryIndex) (*pack, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	sum, err := checkSum(f, info.Size())
	if err != nil {
		return nil, err
	}
	if sum != plumbing.Hash(m.PackfileChecksum) {
		return nil, errors.New("its index belongs to another pack")
	}
	index, err := spots(m)
	if err != nil {
		return nil, err
	}
	starts := make([]int64, len(index))
	for i, s := range index {
		starts[i] = s.at
	}
	slices.Sort(starts)
	return &pack{name, f, info.Size(), index, starts}, nil
}

// drop removes packs that are no longer needed. Who reads from them goes on reading.
func (d disk) drop(packs []*pack, but *pack) error {
	var errs []error
	for _, p := range packs {
		if but != nil && p.name == but.name {
			continue // what was written anew is what was there
		}
		for _, ext := range []string{".idx", ".pack"} { // without its index a pack is nothing
			if err := d.remove(packDir + "/pack-" + p.name + ext); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// add makes a pack of what fill writes, and puts it beside the others. It gives nil
// for a pack without objects. An error of fill is given as it is.
func (d disk) add(fill func(w io.Writer) error) (p *pack, err error) {
	var f *os.File
	err = d.do("create", packDir+"/"+tmpPrefix, func() error {
		f, err = os.CreateTemp(d.path(packDir), tmpPrefix+"*.pack")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("write the local copy: %w", err)
	}
	tmp := packDir + "/" + filepath.Base(f.Name())
	defer func() {
		if p == nil {
			err = errors.Join(err, f.Close())
			_ = d.remove(tmp) // else at the next start
		}
	}()
	if err := fill(f); err != nil {
		return nil, err
	}
	return d.install(f, tmp)
}

// install checks and indexes a pack that was written, and gives it its name.
func (d disk) install(f *os.File, tmp string) (*pack, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := checkSum(f, info.Size()); err != nil {
		return nil, fmt.Errorf("%w: what came is no whole pack: %w", errBadPack, err)
	}
	if info.Size() == packHead+sumSize {
		return nil, nil // it has no objects, and that is no error
	}
	m, err := d.index(f)
	if err != nil {
		return nil, err
	}
	name := plumbing.Hash(m.PackfileChecksum).String()
	var idx bytes.Buffer
	if _, err := idxfile.NewEncoder(&idx).Encode(m); err != nil {
		return nil, err
	}
	full := packDir + "/pack-" + name
	if err = d.sync(tmp); err == nil {
		err = d.rename(tmp, full+".pack")
	}
	if err != nil {
		return nil, fmt.Errorf("write the local copy: %w", err)
	}
	p, err := newPack(name, f, m)
	if err != nil {
		return nil, err
	}
	if err := d.write(full+".idx", idx.Bytes()); err != nil {
		return nil, err
	}
	return p, nil
}

// index makes the index of a pack, once its objects are known to be of a bearable size.
func (d disk) index(f *os.File) (*idxfile.MemoryIndex, error) {
	_, err := f.Seek(0, io.SeekStart)
	if err == nil {
		err = checkSizes(f, d.largest)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	var m *idxfile.MemoryIndex
	if err == nil {
		m, err = indexPack(f)
	}
	if err != nil && !errors.Is(err, errTooLong) {
		err = fmt.Errorf("%w: %w", errBadPack, err)
	}
	return m, err
}

// errBadPack is of a pack that came damaged.
var errBadPack = errors.New("bad pack")

// size is the bytes of packs on disk, their indexes left out.
func size(packs []*pack) int64 {
	var n int64
	for _, p := range packs {
		n += p.size
	}
	return n
}
