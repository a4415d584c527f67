// Package durable replaces files atomically: a reader sees the old content or the new one, even after a crash or a
// power failure.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Unfinished is the name prefix of files that a crash left incomplete: the owner of a folder may
// remove them when nothing writes there.
const Unfinished = ".new-"

// Replace writes a file, with mode 0600. It writes the content to a temporary file beside it, syncs
// that, and renames it.
func Replace(name string, content []byte) (err error) {
	dir := filepath.Dir(name)
	f, err := os.CreateTemp(dir, Unfinished) // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			if removed := os.Remove(f.Name()); !errors.Is(removed, fs.ErrNotExist) {
				err = errors.Join(err, removed)
			}
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), name); err != nil {
		return err
	}
	return sync(dir)
}

// ReplaceIn is Replace for a file below a folder, which no link in the name can leave, with a mode.
func ReplaceIn(root *os.Root, name string, content []byte, mode fs.FileMode) error {
	fresh := filepath.Join(filepath.Dir(name), Unfinished+filepath.Base(name))
	f, err := root.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(fresh, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(fresh))
	}
	d, err := root.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// sync syncs the names in a folder to disk.
func sync(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
