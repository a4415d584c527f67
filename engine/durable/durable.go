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

// sync syncs the names in a folder to disk.
func sync(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
