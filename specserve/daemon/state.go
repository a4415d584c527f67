package daemon

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/homestak/homestak-gitops/engine/source"
)

// stateOf sums up what the folder of a site, its secrets and the files that may have age identities look like
// from outside: names, sizes and times of all files, and the commit. Equal sums, equal contents. Hidden folders are
// not part of a site. An identity counts although it does not exist: it may come.
func stateOf(dir, secrets string, identities []string) ([]byte, error) {
	sum := sha256.New()
	tree, err := source.OpenWorktree(dir)
	if err != nil {
		return nil, err
	}
	head, err := tree.Head()
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(sum, "%s\n", head)
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != dir && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir():
			return nil // its files are what counts
		}
		return add(sum, name)
	})
	if err == nil && secrets != "" {
		err = add(sum, secrets)
	}
	if err != nil {
		return nil, fmt.Errorf("read the site folder: %w", err)
	}
	for _, name := range identities {
		if err := add(sum, name); err != nil {
			fmt.Fprintf(sum, "%q: %v", name, err)
		}
	}
	return sum.Sum(nil), nil
}

// add adds a file, and of a link also what it leads to.
func add(sum hash.Hash, name string) error {
	info, err := os.Lstat(name)
	if err != nil {
		return err
	}
	if err := addInfo(sum, name, info); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return err
	}
	if target, err := os.Stat(name); err == nil {
		return addInfo(sum, name, target)
	}
	fmt.Fprintf(sum, "%q leads nowhere", name) // its reader reports the error
	return nil
}

// addInfo adds what is known of a file. The time when its inode changed cannot be set by a program.
func addInfo(sum hash.Hash, name string, info fs.FileInfo) error {
	fmt.Fprintf(sum, "%q %d %v %d", name, info.Size(), info.Mode(), info.ModTime().UnixNano())
	if inode, ok := info.Sys().(*syscall.Stat_t); ok {
		return binary.Write(sum, binary.BigEndian, []uint64{inode.Ino, uint64(inode.Ctim.Sec), uint64(inode.Ctim.Nsec)})
	}
	return nil
}

// watched is a folder whose changes are noticed once they are complete.
type watched struct {
	served  []byte // state of what was loaded last, for better or worse
	pending []byte // state at the last check, where it differs
}

// changed reports whether there is something to load: the state differs from the one that was loaded, and did not
// change since the last check, so that no write is in progress.
func (w *watched) changed(state []byte) bool {
	switch {
	case bytes.Equal(state, w.served):
		w.pending = nil
		return false
	case bytes.Equal(state, w.pending):
		return true
	default:
		w.pending = state
		return false
	}
}

// loaded records what was loaded.
func (w *watched) loaded(state []byte) { w.served, w.pending = state, nil }
