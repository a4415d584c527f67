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

	"github.com/homestak/homestak-gitops/engine/durable"
)

const (
	// abandoned is the age at which an incomplete file no longer has a writer.
	abandoned = time.Minute
	// longest bounds what is read of one file; the receipt of 10,000 steps has some 10 MB.
	longest = 64 << 20
)

// get reads a file that another program may have written.
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

// sweep removes incomplete files of dead writers. Recent ones may belong to a running writer.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), durable.Unfinished) || !e.Type().IsRegular() {
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

// ignoreAbsent treats a missing file as success.
func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
