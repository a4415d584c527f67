package durable

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// ErrLocked means that another process, or another call in this one, holds the lock.
var ErrLocked = errors.New("it is locked")

// TryLock takes the exclusive lock of a file or folder without waiting, or returns ErrLocked. It creates the file if there
// is none, but not if the name ends with a slash, as that of a folder may. The lock is the kernel's: it ends with the process, whatever the file contains.
func TryLock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, syscall.EISDIR) {
		f, err = os.Open(name)
	}
	if err != nil {
		return nil, err
	}
	return lock(f, syscall.LOCK_EX|syscall.LOCK_NB)
}

// lock takes the lock of an open file. The returned function releases it before it closes the file: a program that is just being
// started has a copy of the open file, which would keep the lock until then.
func lock(f *os.File, how int) (unlock func(), err error) {
	err = syscall.EINTR
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Flock(int(f.Fd()), how)
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return func() {
		_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
		_ = f.Close()
	}, nil
}

// Exclusively runs a function under the exclusive lock of a folder, and waits for the lock. All
// writers of such a folder use it, so unfinished files of Replace belong to a dead writer, and are
// removed first.
func Exclusively(dir string, do func() error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	unlock, err := lock(d, syscall.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	unfinished, err := filepath.Glob(filepath.Join(dir, Unfinished+"*"))
	if err != nil {
		return err
	}
	for _, name := range unfinished {
		if err := os.Remove(name); err != nil {
			return fmt.Errorf("remove an unfinished file: %w", err)
		}
	}
	return do()
}

// HandOver changes the owner of a file that root created to the owner of its folder: the service
// that owns the folder must be able to read it.
func HandOver(dir, name string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == 0 {
		return nil
	}
	return os.Lchown(name, int(owner.Uid), int(owner.Gid))
}

// ReplaceForOwner writes a file like Replace, and gives it to the owner of its folder.
func ReplaceForOwner(name string, content []byte) error {
	if err := Replace(name, content); err != nil {
		return err
	}
	return HandOver(filepath.Dir(name), name)
}

// ReadPrivate reads a file that only its owner may read, as Replace writes it. Another mode is an
// error.
func ReadPrivate(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("others on this machine can read it: chmod 600 %s", name)
	}
	return io.ReadAll(f)
}
