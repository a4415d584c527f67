package durable

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Exclusively runs a function while no other process, and nobody else in this one, does so for the
// same folder. It waits for its turn. The lock is the kernel's, and ends with the process. All
// writers of such a folder use it, so what Replace left unfinished there is of one that died, and is
// removed first.
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

// HandOver gives a file to the owner of its folder, if root made it: what root does by hand in the
// folder of a service must stay readable for that service.
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

// ReadPrivate reads a file that only its owner may read, as Replace makes it. Another mode is an error.
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
