package objects

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"time"

	"github.com/go-git/go-git/v5/plumbing/object"
)

type fileInfo struct {
	name string
	size int64
	mode fs.FileMode
	at   time.Time
	id   string
}

func (i *fileInfo) Name() string       { return i.name }
func (i *fileInfo) Size() int64        { return i.size }
func (i *fileInfo) Mode() fs.FileMode  { return i.mode }
func (i *fileInfo) ModTime() time.Time { return i.at } // of the commit
func (i *fileInfo) IsDir() bool        { return i.mode.IsDir() }
func (i *fileInfo) Sys() any           { return i.id } // string: git's id of the contents

type dirEntry struct {
	f    *Tree
	item object.TreeEntry
}

func (e *dirEntry) Name() string               { return e.item.Name }
func (e *dirEntry) IsDir() bool                { return fileMode(e.item.Mode).IsDir() }
func (e *dirEntry) Type() fs.FileMode          { return fileMode(e.item.Mode).Type() }
func (e *dirEntry) Info() (fs.FileInfo, error) { return e.f.info(e.item) }

// openFile reads its contents when they are first asked for.
type openFile struct {
	f    *Tree
	item object.TreeEntry
	info *fileInfo
	path string
	r    *bytes.Reader
	shut bool
}

func (o *openFile) Stat() (fs.FileInfo, error) { return o.info, nil }

func (o *openFile) Read(b []byte) (int, error) {
	if o.shut {
		return 0, &fs.PathError{Op: "read", Path: o.path, Err: fs.ErrClosed}
	}
	if o.r == nil {
		data, err := o.f.content(o.item)
		if err != nil {
			return 0, &fs.PathError{Op: "read", Path: o.path, Err: err}
		}
		o.r = bytes.NewReader(data)
	}
	return o.r.Read(b)
}

func (o *openFile) Close() error {
	o.r, o.shut = nil, true
	return nil
}

type openFolder struct {
	info *fileInfo
	left []fs.DirEntry
}

func (o *openFolder) Stat() (fs.FileInfo, error) { return o.info, nil }
func (*openFolder) Close() error                 { return nil }
func (o *openFolder) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: o.info.name, Err: errors.New("is a folder")}
}

func (o *openFolder) ReadDir(n int) ([]fs.DirEntry, error) {
	if n <= 0 {
		out := o.left
		o.left = nil
		return out, nil
	}
	if len(o.left) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(o.left))
	out := o.left[:n]
	o.left = o.left[n:]
	return out, nil
}
