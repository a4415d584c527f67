package source

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync/atomic"

	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// folder is the folder of a local copy, with all reads and changes of its files.
type folder struct {
	dir string
	// before is called before each access, with what it is and the name of the file; its error prevents that access. It is nil
	// outside tests.
	before func(op, name string) error
}

func (d folder) do(op, name string, f func() error) error {
	if d.before != nil {
		if err := d.before(op, name); err != nil {
			return &fs.PathError{Op: op, Path: d.path(name), Err: err}
		}
	}
	return f()
}

func (d folder) path(name string) string { return filepath.Join(d.dir, filepath.FromSlash(name)) }

func (d folder) list(name string) (found []fs.DirEntry, err error) {
	err = d.do("readdir", name, func() error {
		found, err = os.ReadDir(d.path(name))
		return err
	})
	return found, err
}

// read returns a file. Something else of that name, such as a folder, is damage.
func (d folder) read(name string) (data []byte, err error) {
	err = d.do("read", name, func() error {
		info, err := os.Lstat(d.path(name))
		if err == nil && !info.Mode().IsRegular() {
			err = objects.Damage(fmt.Errorf("%s is not a file", name))
		}
		if err == nil {
			data, err = os.ReadFile(d.path(name))
		}
		return err
	})
	return data, err
}

// open opens a file for reading.
func (d folder) open(name string) (o *openFile, err error) {
	err = d.do("open", name, func() error {
		f, err := os.Open(d.path(name))
		o = &openFile{File: f, in: d, name: name}
		return err
	})
	return o, err
}

// createTemp creates a file with a name of its own.
func (d folder) createTemp(dir, pattern string) (o *openFile, err error) {
	err = d.do("create", dir+"/"+tmpPrefix, func() error {
		f, err := os.CreateTemp(d.path(dir), pattern)
		if err == nil {
			o = &openFile{File: f, in: d, name: dir + "/" + filepath.Base(f.Name())}
		}
		return err
	})
	return o, err
}

func (d folder) mkdir(name string) error {
	if err := d.do("mkdir", name, func() error { return os.MkdirAll(d.path(name), 0o700) }); err != nil {
		return fmt.Errorf("create the folder of the local copy: %w", err)
	}
	return nil
}

// write replaces a small file.
func (d folder) write(name string, data []byte) error {
	tmp := tmpPrefix + filepath.Base(name)
	err := d.do("create", tmp, func() error { return os.WriteFile(d.path(tmp), data, 0o600) })
	if err == nil {
		err = d.rename(tmp, name)
	}
	if err != nil {
		return fmt.Errorf("write the local copy: %w", err)
	}
	return nil
}

// rename gives a file its final name. Content and name survive a power failure: the repository may
// be on a machine that only boots after this one.
func (d folder) rename(tmp, name string) error {
	if err := d.sync(tmp); err != nil {
		return err
	}
	if err := d.do("rename", name, func() error { return os.Rename(d.path(tmp), d.path(name)) }); err != nil {
		return err
	}
	return d.sync(path.Dir(name))
}

func (d folder) sync(name string) error {
	return d.do("sync", name, func() error {
		f, err := os.Open(d.path(name))
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}

func (d folder) remove(name string) error {
	return d.do("remove", name, func() error { return os.Remove(d.path(name)) })
}

// openFile is an open file. It counts the reads that failed, to distinguish an error of the disk from
// damaged contents: what parses the contents does not always pass errors on as they are.
type openFile struct {
	*os.File
	in     folder
	name   string
	failed atomic.Int64
	last   atomic.Pointer[error]
}

// ReadAt reads as os.File does. A file that ends early is not a failed read.
func (o *openFile) ReadAt(b []byte, at int64) (n int, err error) {
	err = o.in.do("readat", o.name, func() error {
		n, err = o.File.ReadAt(b, at)
		return err
	})
	if err != nil && !errors.Is(err, io.EOF) {
		o.last.Store(&err)
		o.failed.Add(1)
	}
	return n, err
}

func (o *openFile) Write(b []byte) (n int, err error) {
	err = o.in.do("write", o.name, func() error {
		n, err = o.File.Write(b)
		return err
	})
	return n, err
}

// size returns the length of the file.
func (o *openFile) size() (n int64, err error) {
	err = o.in.do("stat", o.name, func() error {
		info, err := o.Stat()
		if err == nil {
			n = info.Size()
		}
		return err
	})
	return n, err
}

// parse runs a function that reads the file and checks what it reads. If it fails, the error is that of the
// disk if a read failed meanwhile, otherwise as returns what to call it.
func (o *openFile) parse(as func(error) error, f func() error) error {
	before := o.failed.Load()
	err := f()
	if err != nil && o.failed.Load() != before {
		return fmt.Errorf("read the local copy: %w", *o.last.Load())
	}
	if err != nil {
		return as(err)
	}
	return nil
}
