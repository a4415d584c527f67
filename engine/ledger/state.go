package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/homestak/homestak-gitops/engine/durable"
)

const stateVersion = 1

func (l *Ledger) stateFile() string { return filepath.Join(l.dir, "state.json") }

// State reads the state; the zero State if there is none. If it cannot be read, the caller
// continues with the zero State.
func (l *Ledger) State() (State, error) {
	b, err := get(l.stateFile())
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("read state: %w", err)
	}
	s, err := readState(b)
	if err != nil {
		return State{}, fmt.Errorf("read state in %s: %w", l.stateFile(), err)
	}
	return s, nil
}

func readState(b []byte) (State, error) {
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		return State{}, err
	}
	if s.Version != stateVersion {
		return State{}, fmt.Errorf("its version is %d, this program reads %d", s.Version, stateVersion)
	}
	s.Consumed = max(s.Consumed, 0)
	return s, nil
}

// setAside renames an unreadable state, once: a newer program may have written it, and a person may
// need to know what was suspended.
func (l *Ledger) setAside() error {
	if l.checked {
		return nil
	}
	l.checked = true
	info, err := os.Lstat(l.stateFile())
	if err != nil || !info.Mode().IsRegular() {
		return ignoreAbsent(err)
	}
	if _, err := l.State(); err == nil {
		return nil
	}
	return os.Rename(l.stateFile(), filepath.Join(l.dir, "state.unreadable.json"))
}

// SetState stores the state atomically. An unreadable previous state is not overwritten, but
// renamed to state.unreadable.json.
func (l *Ledger) SetState(s State) error {
	if l.readOnly {
		return errReadOnly
	}
	s.Version = stateVersion
	s.Aside, s.Counted, s.UsedTrailers = append([]string{}, s.Aside...), append([]string{}, s.Counted...), append([]string{}, s.UsedTrailers...)
	s.Suspended = append([]Suspension{}, s.Suspended...)
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	l.write.Lock()
	defer l.write.Unlock()
	if err := errors.Join(l.setAside(), durable.Replace(l.stateFile(), append(b, '\n'))); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	return nil
}
