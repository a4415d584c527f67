// Package durable replaces files so that a reader sees the old content or the new one, also after a
// crash or a power failure.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Unfinished is how the names of files begin that a crash left half-written: who owns a folder may
// remove them when nothing writes there.
const Unfinished = ".new-"

// Replace makes a file have a content, with mode 0600. The content is written beside the file,
// and renamed to it once it is on the disk.
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
	return Sync(dir)
}

// Sync makes the names in a folder last.
func Sync(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
