package proxmox

import (
	"errors"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"
)

// This runs every other second on each node, so it uses system calls directly: package os makes twice as many.

// readFresh appends the contents of a file as they are now. pmxcfs makes those of its files when their attributes are read
// (src/pmxcfs/cfs-plug-func.c, cfs_plug_func_getattr), which the kernel does of itself only after a second. No file stays
// open, since pmxcfs could not be started again as long as one is.
func readFresh(name string, into []byte) ([]byte, error) {
	var is unix.Statx_t
	if err := again(func() error {
		return unix.Statx(unix.AT_FDCWD, name, unix.AT_STATX_FORCE_SYNC, unix.STATX_SIZE, &is)
	}); err != nil {
		return nil, failed("statx", name, err)
	}
	into = slices.Grow(into, int(is.Size)+1) //nolint:gosec // a file of a few KiB
	return readAll(name, unix.O_RDONLY, into, func(fd int, into []byte) (int, bool, error) {
		n, err := unix.Read(fd, into)
		return n, n == len(into), err // pmxcfs would have to answer once more that there is nothing left
	})
}

// listing appends what the kernel says of the entries of a folder: other bytes if there are others.
func listing(name string, into []byte) ([]byte, error) {
	return readAll(name, unix.O_RDONLY|unix.O_DIRECTORY, into, func(fd int, into []byte) (int, bool, error) {
		n, err := unix.ReadDirent(fd, into)
		return n, n > 0, err
	})
}

// readAll appends what read gives of a file or folder, as long as there may be more.
func readAll(name string, flags int, into []byte, read func(fd int, into []byte) (n int, more bool, err error)) ([]byte, error) {
	var fd int
	err := again(func() (err error) {
		fd, err = unix.Open(name, flags|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, failed("open", name, err)
	}
	for more := true; more && err == nil; {
		into = slices.Grow(into, 1<<10)
		var n int
		err = again(func() (err error) {
			n, more, err = read(fd, into[len(into):cap(into)])
			return err
		})
		into = into[:len(into)+max(n, 0)]
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return nil, failed("read", name, err)
	}
	return into, nil
}

// namesIn are the names in a listing.
func namesIn(list []byte) []string {
	_, _, names := unix.ParseDirent(list, -1, nil)
	return names
}

// stamp is the kernel's metadata of a folder. It differs if there are more entries, or fewer.
type stamp struct {
	device, node, links uint64
	size                int64
	changed             unix.Timespec
}

func stampOf(name string) (stamp, error) {
	var is unix.Stat_t
	if err := again(func() error { return unix.Stat(name, &is) }); err != nil {
		return stamp{}, failed("stat", name, err)
	}
	return stamp{is.Dev, is.Ino, uint64(is.Nlink), is.Size, is.Mtim}, nil //nolint:unconvert // narrower on other processors
}

// again repeats a call that a signal interrupted.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func failed(what, name string, err error) error {
	return &fs.PathError{Op: what, Path: name, Err: err}
}
