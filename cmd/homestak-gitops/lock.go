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
	"time"

	"github.com/gofrs/flock"

	"github.com/homestak/homestak-gitops/engine/model"
)

// holder is who changes a host, as written into its lock file.
type holder struct {
	PID   int       `json:"pid"`
	Verb  string    `json:"verb"`
	User  string    `json:"user"`
	Since time.Time `json:"since"`
}

// lock makes this process the one writer of a host until the returned function
// is called. The lock is the kernel's (flock) and ends with the process; the
// contents of the file only tell others who holds it.
//
// The file is named after the host and its API, since two sites may use one name
// for different machines.
func (a *app) lock(h *model.Host, verb string) (release func(), err error) {
	dir, err := a.dataDir()
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, "locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of locks: %w\nset HOMESTAK_DATA_DIR to a folder that you may write", err)
	}
	name := filepath.Join(dir, fmt.Sprintf("%s-%.4x.lock", h.Name, sha256.Sum256([]byte(strings.TrimRight(h.API, "/")))))
	l := flock.New(name, flock.SetPermissions(0o600))
	got, err := l.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock host %s: %w\nset HOMESTAK_DATA_DIR to a folder that you may write", h.Name, err)
	}
	if !got {
		return nil, &ending{exitRefused, fmt.Errorf("host %s is being changed %s\nwait until it is done; one writer at a time keeps plans true", h.Name, holderOf(name))}
	}
	if err := writeHolder(name, holder{os.Getpid(), verb, whoami(), time.Now().UTC().Truncate(time.Second)}); err != nil {
		_ = l.Unlock()
		return nil, fmt.Errorf("lock host %s: %w", h.Name, err)
	}
	return func() {
		// The file stays: removing it would let two processes lock two files of one name.
		_ = os.Truncate(name, 0)
		_ = l.Unlock()
	}, nil
}

func writeHolder(name string, h holder) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o600)
}

// holderOf says who holds a lock, as far as its file tells.
func holderOf(name string) string {
	var h holder
	b, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(b, &h)
	}
	if err != nil {
		return "by another process"
	}
	return fmt.Sprintf("by %s: pid %d, %s, since %s", h.User, h.PID, h.Verb, h.Since.Local().Format(time.DateTime))
}

// dataDir is where this machine keeps what is about no site: locks.
func (a *app) dataDir() (string, error) {
	if dir := a.env("HOMESTAK_DATA_DIR"); dir != "" {
		return dir, nil
	}
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
