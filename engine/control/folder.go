package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Folder is the data folder of an agent.
type Folder string

// Ledger has the receipts, and what the agent wants to know after a restart.
func (f Folder) Ledger() string { return filepath.Join(string(f), "ledger") }

// AgentLock is locked as long as an agent runs, and says where it is reached.
func (f Folder) AgentLock() string { return filepath.Join(string(f), "agent.lock") }

// Explain adds a hint to an error about it.
func (f Folder) Explain(err error) error {
	if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return fmt.Errorf("%w\n%s", err, f.Hint(err))
}

// Hint says what to do where it cannot be used.
func (f Folder) Hint(err error) string {
	if errors.Is(err, syscall.ENOSPC) {
		return "make room on that disk"
	}
	if info, serr := os.Stat(string(f)); serr == nil && errors.Is(err, fs.ErrPermission) {
		at, ok := info.Sys().(*syscall.Stat_t)
		if ok && int(at.Uid) == os.Geteuid() && info.Mode().Perm()&0o700 == 0o700 {
			return fmt.Sprintf("something in it belongs to another user, as after a run of root; let root say: chown -R --reference=%s %s", f, f)
		}
	}
	return "name a folder that you may write: data_dir in agent.hcl, or --data-dir"
}

// HandOver changes the owner of files that root created in another user's data folder to that user,
// whose agent could not read them otherwise. It does nothing if the folder belongs to root, or if
// the program does not run as root.
//
// The owner may change the folder at the same time. So nothing outside of it is
// reached (os.Root), and a file with a second name is left alone: it may be one of
// root's from elsewhere.
func (f Folder) HandOver() error {
	info, err := os.Stat(string(f))
	if err != nil || os.Geteuid() != 0 {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == 0 {
		return nil
	}
	root, err := os.OpenRoot(string(f))
	if err != nil {
		return err
	}
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone meanwhile
		}
		if err != nil {
			return err
		}
		info, err := root.Lstat(name)
		if err != nil {
			return nil //nolint:nilerr // gone meanwhile
		}
		at, ok := info.Sys().(*syscall.Stat_t)
		if !ok || at.Uid != 0 || !d.IsDir() && at.Nlink > 1 {
			return nil
		}
		return root.Lchown(name, int(owner.Uid), int(owner.Gid))
	})
	if err = errors.Join(err, root.Close()); err != nil {
		return fmt.Errorf("give %s to its owner: %w\nuntil that is done its agent cannot read it: chown -R --reference=%s %s", f, err, f, f)
	}
	return nil
}
