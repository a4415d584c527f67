package ledger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	halfWritten = ".new-" // how names of files begin that are not whole yet
	// abandoned is the age at which such a file has no writer any more.
	abandoned = time.Minute
	// longest bounds what is read of one file; the receipt of 10,000 steps has some 10 MB.
	longest = 64 << 20
)

// put makes the contents of a file b, whole or not at all, also if the machine
// loses its power meanwhile: it is written beside its place, and moved there when
// it is on the disk.
func put(name string, b []byte) (err error) {
	dir := filepath.Dir(name)
	f, err := os.CreateTemp(dir, halfWritten) // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreAbsent(os.Remove(f.Name())))
		}
	}()
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), name); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes the names in a folder last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// get reads a file that somebody else may have filled.
func get(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", filepath.Base(name))
	case info.Size() > longest:
		err = fmt.Errorf("%s has more than %d MiB", filepath.Base(name), longest>>20)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	b, err := io.ReadAll(io.LimitReader(f, longest))
	return b, errors.Join(err, f.Close())
}

// sweep takes away what a writer that died left half-written. What is young may be
// another's who writes now.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), halfWritten) || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err == nil && time.Since(info.ModTime()) > abandoned {
			err = os.Remove(filepath.Join(dir, e.Name()))
		}
		errs = append(errs, ignoreAbsent(err))
	}
	return errors.Join(errs...)
}

// ignoreAbsent takes what is not there for what was to be.
func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
