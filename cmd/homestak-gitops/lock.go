package main

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

	"github.com/gofrs/flock"

	"github.com/homestak/homestak-gitops/engine/model"
)

// holder is who holds a lock, as written into its file.
type holder struct {
	PID    int       `json:"pid"`
	Verb   string    `json:"verb"`
	User   string    `json:"user"`
	Since  time.Time `json:"since"`
	Socket string    `json:"socket,omitempty"` // of an agent: where it is spoken to
}

// lock makes this process the one writer of a host until the returned function is
// called: towards the agent of that host, if one runs on this machine, and towards
// every other process by the lock file. Waiting ends with the process's context.
//
//nolint:contextcheck,nolintlint // it is meant; the linter looks for this line at its callers
func (a *app) lock(h *model.Host, verb string) (release func(), err error) {
	resume, err := a.hold(h, verb)
	if err != nil {
		return nil, err
	}
	dir, err := a.dataDir()
	if err != nil {
		resume()
		return nil, err
	}
	unlock, err := lockHost(dir, h, verb)
	if err != nil {
		resume()
		return nil, err
	}
	return func() { unlock(); resume() }, nil
}

// lockHost takes the lock file of a host. It is named after the host and its API,
// since two sites may use one name for different machines.
func lockHost(dataDir string, h *model.Host, verb string) (release func(), err error) {
	dir := filepath.Join(dataDir, "locks")
	name := filepath.Join(dir, fmt.Sprintf("%s-%.4x.lock", h.Name, sha256.Sum256([]byte(strings.TrimRight(h.API, "/")))))
	release, err = lockFile(name, holder{Verb: verb})
	if held, ok := errors.AsType[*heldError](err); ok {
		return nil, &ending{exitRefused, fmt.Errorf("host %s is being changed %w\nwait until it is done; one writer at a time keeps plans true", h.Name, held)}
	}
	if err != nil {
		return nil, fmt.Errorf("lock host %s: %w\nname a folder that you may write: HOMESTAK_DATA_DIR", h.Name, err)
	}
	shareWithOwner(dir, name)
	return release, nil
}

// lockFile takes a lock, without waiting. The lock is the kernel's (flock) and ends
// with the process; the contents of the file only tell others who holds it. The error
// is a *heldError if somebody does.
func lockFile(name string, by holder) (release func(), err error) {
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := flock.New(name, flock.SetPermissions(0o600))
	got, err := l.TryLock()
	if err != nil {
		return nil, err
	}
	if !got {
		return nil, readHolder(name)
	}
	by.PID, by.User, by.Since = os.Getpid(), whoami(), time.Now().UTC().Truncate(time.Second)
	_ = writeHolder(name, by) // on a full disk nobody is told who it is, but the lock holds
	return func() {
		// The file stays: removing it would let two processes lock two files of one name.
		_ = os.Truncate(name, 0)
		_ = l.Unlock()
	}, nil
}

// shareWithOwner gives what root made in somebody's data folder to the owner of that
// folder: an agent that is not root could not lock the file otherwise.
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

func writeHolder(name string, h holder) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o600)
}

// heldError is a lock that somebody else has.
type heldError struct {
	by    holder
	known bool // by was readable
}

// Error says who it is, as far as the file tells: "by …".
func (e *heldError) Error() string {
	if !e.known {
		return "by another process"
	}
	return fmt.Sprintf("by %s: pid %d, %s, since %s", e.by.User, e.by.PID, e.by.Verb, e.by.Since.Local().Format(time.DateTime))
}

// readHolder says who holds a lock.
func readHolder(name string) *heldError {
	var e heldError
	b, err := os.ReadFile(name)
	e.known = err == nil && json.Unmarshal(b, &e.by) == nil
	return &e
}

// dataDir is where this machine keeps what is about no site: locks. Root shares it
// with the agent, so that agent.hcl counts too.
func (a *app) dataDir() (string, error) {
	if dir := a.env("HOMESTAK_DATA_DIR"); dir != "" {
		return dir, nil
	}
	if os.Geteuid() != 0 {
		return a.ownDataDir()
	}
	c, _ := a.agentConfig(&agentFlags{}) // what is wrong with it is for the agent to say
	return c.DataDir, nil
}

// ownDataDir is the data folder of whoever runs the program, where nothing else is said.
func (a *app) ownDataDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/homestak-gitops", nil
	}
	state := a.env("XDG_STATE_HOME")
	if home := a.env("HOME"); !filepath.IsAbs(state) && home != "" {
		state = filepath.Join(home, ".local", "state")
	}
	if !filepath.IsAbs(state) {
		return "", errors.New("no place for locks: neither HOMESTAK_DATA_DIR nor XDG_STATE_HOME nor HOME is set")
	}
	return filepath.Join(state, "homestak-gitops"), nil
}

// whoami is USER@HOST, for marks and locks.
func whoami() string {
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
