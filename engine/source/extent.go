package source

import (
	"fmt"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// Bounds of what a few bytes of a pack may become. An image of a disk full of zeros is
// a thousandth of its size there, and a folder that is in its commit a million times is
// one object.
const (
	largestObject = 256 << 20 // bytes of one object: indexing a pack holds some of them in memory
	mostEntries   = 1_000_000 // files and folders of a commit, as who walks through it counts them
	deepest       = 256       // folders in folders
)

// checkSizes looks whether every object of a pack has at most so many bytes. Nothing of
// that size is in memory meanwhile.
func checkSizes(f io.ReadSeeker, largest int64) error {
	s := packfile.NewScanner(f)
	_, count, err := s.Header()
	if err != nil {
		return err
	}
	for range count {
		h, err := s.NextObjectHeader()
		if err != nil {
			return err
		}
		size := h.Length
		var head deltaHead
		if size <= largest {
			if _, _, err := s.NextObject(&head); err != nil {
				return err
			}
		}
		if h.Type.IsDelta() && size <= largest {
			if size, err = patchedSize(&head); err != nil {
				return err
			}
		}
		if size > largest {
			return fmt.Errorf("%w: an object of %d MiB", errTooLong, size>>20)
		}
	}
	return nil
}

// deltaHead keeps the beginning of what is written: two numbers of at most ten bytes.
type deltaHead struct {
	data [20]byte
	n, r int
}

func (h *deltaHead) Write(b []byte) (int, error) {
	h.n += copy(h.data[h.n:], b)
	return len(b), nil
}

// ReadByte gives it back.
func (h *deltaHead) ReadByte() (byte, error) {
	if h.r == h.n {
		return 0, io.ErrUnexpectedEOF
	}
	h.r++
	return h.data[h.r-1], nil
}

// extent is how much a tree is to who walks through it.
type extent struct{ entries, height int }

// extent measures a tree that lies so deep. It is errTooLong where that, or the number
// of its files, is beyond all reason. Each object is looked at once, however often it is
// there: known is what was measured before.
func (s *store) extent(tree plumbing.Hash, depth int, known map[plumbing.Hash]extent) (extent, error) {
	e, ok := known[tree]
	if !ok {
		if depth > deepest {
			return e, fmt.Errorf("%w: more than %d folders in each other", errTooLong, deepest)
		}
		items, err := s.tree(tree)
		if err != nil {
			return e, err
		}
		e.height = 1
		for _, i := range items {
			e.entries++
			if !i.folder() {
				continue
			}
			below, err := s.extent(i.id, depth+1, known)
			if err != nil {
				return e, err
			}
			e.entries, e.height = e.entries+below.entries, max(e.height, below.height+1)
			if e.entries > mostEntries {
				return e, fmt.Errorf("%w: more than %d files", errTooLong, mostEntries)
			}
		}
		known[tree] = e
	}
	if depth+e.height > deepest+1 {
		return e, fmt.Errorf("%w: more than %d folders in each other", errTooLong, deepest)
	}
	return e, nil
}
