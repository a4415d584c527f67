package machine

import (
	"path"
	"strings"
	"syscall"
)

// mostLinks is the number of symbolic links that a name may lead through (path_resolution(7)).
const mostLinks = 40

// walk finds a name: the folder that it is in, its last part, and its inode, nil if there is none
// is. With follow a link at the end leads further.
func (f *FS) walk(c Cred, name string, follow bool) (dir *node, last string, n *node, err error) {
	if name == "" {
		return nil, "", nil, syscall.ENOENT
	}
	left := mostLinks
	parts := split(name)
	dir = f.root
	if len(parts) == 0 {
		return f.root, ".", f.root, nil
	}
	for len(parts) > 0 {
		part := parts[0]
		parts = parts[1:]
		if dir.kind != Folder {
			return nil, "", nil, syscall.ENOTDIR
		}
		if !dir.may(c, 1) {
			return nil, "", nil, syscall.EACCES
		}
		var next *node
		switch part {
		case ".":
			next = dir
		case "..":
			next = dir.parent
		default:
			next = dir.children[part]
		}
		switch {
		case next == nil && len(parts) == 0:
			return dir, part, nil, nil
		case next == nil:
			return nil, "", nil, syscall.ENOENT
		case next.kind == SymbolicLink && (len(parts) > 0 || follow):
			if left--; left < 0 {
				return nil, "", nil, syscall.ELOOP
			}
			parts = append(split(next.target), parts...)
			if strings.HasPrefix(next.target, "/") {
				dir = f.root
			}
			if len(parts) == 0 {
				return dir, ".", dir, nil
			}
			continue
		case len(parts) == 0:
			if strings.HasSuffix(name, "/") && next.kind != Folder {
				return nil, "", nil, syscall.ENOTDIR
			}
			return dir, part, next, nil
		}
		dir = next
	}
	return dir, ".", dir, nil
}

func split(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
}

// find is walk for what has to be there.
func (f *FS) find(c Cred, name string, follow bool) (*node, error) {
	_, _, n, err := f.walk(c, name, follow)
	if err == nil && n == nil {
		err = syscall.ENOENT
	}
	return n, err
}

// vacant is walk for what must not be there yet.
func (f *FS) vacant(c Cred, name string) (dir *node, last string, err error) {
	dir, last, n, err := f.walk(c, name, false)
	switch {
	case err != nil:
	case n != nil:
		err = syscall.EEXIST
	case !dir.may(c, 3):
		err = syscall.EACCES
	}
	return dir, last, err
}

// Stat describes the file at a name, after following links.
func (f *FS) Stat(c Cred, name string) (FileInfo, error) { return f.stat(c, name, true) }

// Lstat describes the file at a name, which may be a link.
func (f *FS) Lstat(c Cred, name string) (FileInfo, error) { return f.stat(c, name, false) }

func (f *FS) stat(c Cred, name string, follow bool) (FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(c, name, follow)
	if err != nil {
		return FileInfo{}, err
	}
	return n.info(path.Base(name)), nil
}

// Access reports whether c may read (4), write (2) and execute (1) a file.
func (f *FS) Access(c Cred, name string, want uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(c, name, true)
	return err == nil && n.may(c, want)
}

// ReadDir lists a folder, sorted by name.
func (f *FS) ReadDir(c Cred, name string) ([]FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(c, name, true)
	switch {
	case err != nil:
		return nil, err
	case n.kind != Folder:
		return nil, syscall.ENOTDIR
	case !n.may(c, 4):
		return nil, syscall.EACCES
	}
	var out []FileInfo
	for _, child := range n.names() {
		out = append(out, n.children[child].info(child))
	}
	return out, nil
}

// Mkdir makes a folder.
func (f *FS) Mkdir(c Cred, name string, perm uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, last, err := f.vacant(c, strings.TrimRight(name, "/"))
	if err != nil {
		return err
	}
	n := f.node(Folder, perm, c)
	n.parent = dir
	dir.children[last] = n
	f.touch(dir)
	return nil
}

// Symlink makes a symbolic link.
func (f *FS) Symlink(c Cred, target, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, last, err := f.vacant(c, name)
	if err != nil {
		return err
	}
	n := f.node(SymbolicLink, 0o777, c)
	n.target = target
	dir.children[last] = n
	f.touch(dir)
	return nil
}

// Remove removes a file, or a folder that is empty.
func (f *FS) Remove(c Cred, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, last, n, err := f.walk(c, strings.TrimRight(name, "/"), false)
	switch {
	case err != nil:
		return err
	case n == nil:
		return syscall.ENOENT
	case last == "." || last == "..":
		return syscall.EINVAL
	case n.kind == Folder && len(n.children) > 0:
		return syscall.ENOTEMPTY
	}
	return f.remove(c, dir, last)
}

// Rename moves a file or a folder, in place of what is at its new name.
func (f *FS) Rename(c Cred, from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, last, n, err := f.walk(c, strings.TrimRight(from, "/"), false)
	if err != nil {
		return err
	}
	if n == nil {
		return syscall.ENOENT
	}
	todir, tolast, old, err := f.walk(c, strings.TrimRight(to, "/"), false)
	switch {
	case err != nil:
		return err
	case !todir.may(c, 3):
		return syscall.EACCES
	case old == n:
		return nil
	case old != nil && old.kind == Folder && n.kind != Folder:
		return syscall.EISDIR
	case old != nil && old.kind != Folder && n.kind == Folder:
		return syscall.ENOTDIR
	case old != nil && len(old.children) > 0:
		return syscall.ENOTEMPTY
	}
	for up := todir; up != f.root; up = up.parent {
		if up == n {
			return syscall.EINVAL
		}
	}
	if old != nil {
		if err := f.remove(c, todir, tolast); err != nil {
			return err
		}
	}
	if err := f.remove(c, dir, last); err != nil {
		return err
	}
	n.nlink++
	n.ctime = f.now()
	if n.kind == Folder {
		n.parent = todir
	}
	todir.children[tolast] = n
	f.touch(todir)
	return nil
}

// Chmod changes a mode.
func (f *FS) Chmod(c Cred, name string, perm uint32) error {
	return f.change(c, name, true, func(n *node) { n.perm = perm })
}

// Chown changes owner and group; -1 leaves one as it is.
func (f *FS) Chown(c Cred, name string, uid, gid int, follow bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(c, name, follow)
	if err != nil {
		return err
	}
	if c.UID != 0 && (uid >= 0 && uid != n.uid || n.uid != c.UID || gid >= 0 && !c.in(gid)) {
		return syscall.EPERM
	}
	if uid >= 0 {
		n.uid = uid
	}
	if gid >= 0 {
		n.gid = gid
	}
	n.ctime = f.now()
	return nil
}

// Touch sets the time of a file to now.
func (f *FS) Touch(c Cred, name string) error {
	return f.change(c, name, true, func(n *node) { n.mtime = f.now() })
}

func (f *FS) change(c Cred, name string, follow bool, do func(*node)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(c, name, follow)
	switch {
	case err != nil:
		return err
	case c.UID != 0 && n.uid != c.UID:
		return syscall.EPERM
	}
	do(n)
	n.ctime = f.now()
	return nil
}

// Real is a name without links in it. Its last part need not be there.
func (f *FS) Real(c Cred, name string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, last, n, err := f.walk(c, name, true)
	if err != nil {
		return "", err
	}
	if n != nil && n.kind == Folder {
		return f.nameOf(n), nil
	}
	return path.Join(f.nameOf(dir), last), nil
}

// nameOf is the name of a folder.
func (f *FS) nameOf(n *node) string {
	if n == f.root {
		return "/"
	}
	for name, child := range n.parent.children {
		if child == n {
			return path.Join(f.nameOf(n.parent), name)
		}
	}
	return "/"
}
