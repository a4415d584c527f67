package durable

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Exclusively runs a function under an exclusive lock of a folder, against other processes and
// goroutines. It waits for the lock, which is the kernel's and ends with the process. All writers
// of such a folder use it, so unfinished files of Replace belong to a dead writer, and are removed
// first.
func Exclusively(dir string, do func() error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // it ends the lock
	for {
		err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("lock folder %s: %w", dir, err)
	}
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
