package control

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Holder is the holder of a lock, as written into its file.
type Holder struct {
	PID    int       `json:"pid"`
	Verb   string    `json:"verb"`
	User   string    `json:"user"`
	Since  time.Time `json:"since"`
	Socket string    `json:"socket,omitempty"` // of an agent: where it is reached
}

// HostFile is the beginning of the names of a host's files. It has the name and the API, since two sites may use one name for
// different machines.
func HostFile(h *model.Host) string {
	return fmt.Sprintf("%s-%.4x", h.Name, sha256.Sum256([]byte(strings.TrimRight(h.API, "/"))))
}

// LockHost takes the lock file of a host.
func (f Folder) LockHost(h *model.Host, verb string) (release func(), err error) {
	dir := filepath.Join(string(f), "locks")
	name := filepath.Join(dir, HostFile(h)+".lock")
	release, err = (Holder{Verb: verb}).Lock(name)
	if locked, ok := errors.AsType[*LockedError](err); ok {
		return nil, refusedf("host %s is being changed %w\nwait until it is done, and run this again", h.Name, locked)
	}
	if err != nil {
		return nil, fmt.Errorf("lock host %s: %w\nname a folder that you may write: HOMESTAK_DATA_DIR", h.Name, err)
	}
	shareWithOwner(dir, name)
	return release, nil
}

// Lock takes the lock of a file, without waiting. The content of the file is only for messages.
// The error is a *LockedError if another process has the lock.
func (by Holder) Lock(name string) (release func(), err error) {
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	unlock, err := durable.TryLock(name)
	if errors.Is(err, durable.ErrLocked) {
		return nil, readLock(name)
	}
	if err != nil {
		return nil, err
	}
	by.PID, by.User, by.Since = os.Getpid(), Whoami(), time.Now().UTC().Truncate(time.Second)
	_ = writeHolder(name, by) // on a full disk the holder stays unknown, but the lock holds
	return func() {
		// The file stays: removing it would let two processes lock two files of one name.
		_ = os.Truncate(name, 0)
		unlock()
	}, nil
}

// shareWithOwner changes the owner of a file that root created to the owner of its folder: an agent
// that is not root could not lock the file otherwise.
func shareWithOwner(dir, name string) {
	if os.Geteuid() != 0 {
		return
	}
	info, err := os.Stat(filepath.Dir(dir))
	if err != nil {
		return
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 {
		for _, path := range []string{dir, name} {
			_ = os.Lchown(path, int(owner.Uid), int(owner.Gid)) // where it does not work, the agent says so
		}
	}
}

func writeHolder(name string, h Holder) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o600)
}

// LockedError is a lock that another process holds.
type LockedError struct {
	By    Holder
	known bool // By was readable
}

// Error says who it is, as far as the file says: "by …".
func (e *LockedError) Error() string {
	if !e.known {
		return "by another process"
	}
	return fmt.Sprintf("by %s: pid %d, %s, since %s", e.By.User, e.By.PID, e.By.Verb, e.By.Since.Local().Format(time.DateTime))
}

// ReadHolder returns who holds a lock, or held it when its process was killed; the zero value if
// the file does not say.
func ReadHolder(name string) Holder { return readLock(name).By }

func readLock(name string) *LockedError {
	var e LockedError
	b, err := os.ReadFile(name)
	e.known = err == nil && json.Unmarshal(b, &e.By) == nil
	return &e
}

// Whoami is USER@HOST, for ownership tags and locks.
func Whoami() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return name + "@" + host
}
