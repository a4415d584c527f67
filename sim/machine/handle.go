package machine

import (
	"errors"
	"io"
	"os"
	"path"
	"syscall"
)

// Handle is an open file. Each has an offset of its own; its user makes calls one after the other.
type Handle struct {
	f        *FS
	n        *node
	flags    int
	offset   int64
	writable bool
}

// Open opens a file as open(2) does; flags are those of package os. A file that it makes has this
// mode.
func (f *FS) Open(c Cred, name string, flags int, perm uint32) (*Handle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	write := flags&(os.O_WRONLY|os.O_RDWR) != 0
	dir, last, n, err := f.walk(c, name, flags&os.O_EXCL == 0)
	switch {
	case err != nil:
		return nil, err
	case n == nil && flags&os.O_CREATE == 0:
		return nil, syscall.ENOENT
	case n == nil && !dir.may(c, 3):
		return nil, syscall.EACCES
	case n == nil:
		n = f.node(PlainFile, perm, c)
		dir.children[last] = n
		f.touch(dir)
	case flags&os.O_CREATE != 0 && flags&os.O_EXCL != 0:
		return nil, syscall.EEXIST
	case n.kind == Folder && write:
		return nil, syscall.EISDIR
	case write && !n.may(c, 2) || flags&os.O_WRONLY == 0 && !n.may(c, 4):
		return nil, syscall.EACCES
	}
	if flags&os.O_TRUNC != 0 && write && n.special == nil {
		n.data, n.shared, n.hole = nil, false, 0
		f.touch(n)
	}
	return &Handle{f: f, n: n, flags: flags, writable: write}, nil
}

// Read is as io.Reader wants it.
func (h *Handle) Read(p []byte) (int, error) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	if h.n.kind == Folder {
		return 0, syscall.EISDIR
	}
	var rest []byte
	if h.n.special != nil {
		rest = h.n.special.ReadAt(len(p), h.offset)
	} else if h.offset < int64(len(h.n.data)) {
		rest = h.n.data[h.offset:]
	} else if left := h.n.size() - h.offset; left > 0 {
		rest = make([]byte, min(left, int64(len(p))))
	}
	if len(rest) == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	n := copy(p, rest)
	h.offset += int64(n)
	return n, nil
}

// Write is as io.Writer wants it.
func (h *Handle) Write(p []byte) (int, error) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	if !h.writable {
		return 0, syscall.EBADF
	}
	if h.n.special != nil {
		if err := h.n.special.Write(p); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	h.n.own()
	end := h.n.size()
	if h.flags&os.O_APPEND != 0 {
		h.offset = end
	}
	if gap := int(h.offset) - len(h.n.data); gap > 0 {
		h.n.data = append(h.n.data, make([]byte, gap)...)
	}
	at := copy(h.n.data[h.offset:], p)
	h.n.data = append(h.n.data, p[at:]...)
	h.n.hole = max(0, end-int64(len(h.n.data)))
	h.offset += int64(len(p))
	h.f.touch(h.n)
	return len(p), nil
}

// Truncate sets the size of the file: what it did not have before are zeros.
func (h *Handle) Truncate(size int64) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	h.n.own()
	h.n.data = h.n.data[:min(int64(len(h.n.data)), size)]
	h.n.hole = size - int64(len(h.n.data))
	h.f.touch(h.n)
}

// Stat returns the state of the open file.
func (h *Handle) Stat() FileInfo {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	return h.n.info("")
}

// The following is for the machine itself, as root; it creates missing folders.

// ReadFile reads a whole file.
func (f *FS) ReadFile(name string) (string, error) {
	h, err := f.Open(Cred{}, name, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(h)
	return string(data), err
}

// WriteFile replaces a file, with this mode and owner.
func (f *FS) WriteFile(name, content string, perm uint32, uid, gid int) error {
	if err := f.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	h, err := f.Open(Cred{}, name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	if _, err := h.Write([]byte(content)); err != nil {
		return err
	}
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	h.n.perm, h.n.uid, h.n.gid = perm, uid, gid
	return nil
}

// SetSpecial puts a file in place that does something.
func (f *FS) SetSpecial(name string, perm uint32, kind FileKind, s SpecialFile) error {
	if err := f.WriteFile(name, "", perm, 0, 0); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(Cred{}, name, true)
	if err == nil {
		n.special, n.kind = s, kind
	}
	return err
}

// MkdirAll makes a folder and those above it.
func (f *FS) MkdirAll(name string, perm uint32) error {
	if i, err := f.Stat(Cred{}, name); err == nil {
		if i.Kind != Folder {
			return syscall.ENOTDIR
		}
		return nil
	}
	if err := f.MkdirAll(path.Dir(name), perm); err != nil {
		return err
	}
	err := f.Mkdir(Cred{}, name, perm)
	if errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return err
}

// RemoveAll removes a name and what is below it.
func (f *FS) RemoveAll(c Cred, name string) error {
	i, err := f.Lstat(c, name)
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if i.Kind == Folder {
		list, err := f.ReadDir(c, name)
		if err != nil {
			return err
		}
		for _, child := range list {
			if err := f.RemoveAll(c, path.Join(name, child.Name)); err != nil {
				return err
			}
		}
	}
	return f.Remove(c, name)
}

// WriteText writes a text into a file that is there, and leaves its mode and owner.
func (f *FS) WriteText(name, content string) error {
	h, err := f.Open(Cred{}, name, os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = h.Write([]byte(content))
	}
	return err
}
