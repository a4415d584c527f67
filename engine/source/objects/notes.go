package objects

import (
	"bytes"
	"errors"
	"io/fs"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// lfsHead is the beginning of a git-lfs pointer.
const lfsHead = "version https://git-lfs.github.com/spec/v1\n"

// longestPointer is the maximum size of a pointer.
const longestPointer = 1024

// Notes warns of parts of a commit that its files do not show.
func (f *Tree) Notes() diag.List {
	var out diag.List
	_ = fs.WalkDir(f, ".", func(name string, d fs.DirEntry, err error) error {
		if e, ok := d.(*dirEntry); ok && err == nil {
			out = append(out, f.note(name, e.item)...)
		}
		return nil
	})
	return out
}

func (f *Tree) note(name string, i object.TreeEntry) diag.List {
	at := diag.Range{File: name, Start: diag.Pos{Line: 1, Column: 1}}
	switch i.Mode { //nolint:exhaustive // the others are files
	case filemode.Dir:
		return nil
	case filemode.Submodule:
		return diag.List{diag.Warnf(at, "a submodule is not read", "%s is another repository, and is read as an empty folder; put its files into this one.", name)}
	case filemode.Symlink:
		_, err := f.Stat(name)
		switch {
		case errors.Is(err, errOutside):
			return diag.List{diag.Warnf(at, "a symbolic link points outside the repository", "%s cannot be read; put the file itself there.", name)}
		case errors.Is(err, errLoop):
			return diag.List{diag.Warnf(at, "symbolic links form a loop", "%s cannot be read.", name)}
		case errors.Is(err, fs.ErrNotExist):
			return diag.List{diag.Warnf(at, "a symbolic link is broken", "%s cannot be read.", name)}
		}
		return nil
	}
	n, err := f.store.length(i.Hash)
	if err != nil || n > longestPointer {
		return nil
	}
	data, err := f.store.typed(i.Hash, plumbing.BlobObject, longestPointer)
	if err == nil && bytes.HasPrefix(data, []byte(lfsHead)) {
		return diag.List{diag.Warnf(at, "a file is a git-lfs pointer", "%s is only a pointer: git-lfs files are not fetched. Commit it without git-lfs.", name)}
	}
	return nil
}
