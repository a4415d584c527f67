package setup

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// record is what setup did on a host, in its order. It is stored before each step and after it.
type record struct {
	MadeFolder bool    `json:"made_folder"` // that of the record was not there
	Entries    []entry `json:"entries"`
}

// entry is a step that was begun.
type entry struct {
	Step   string     `json:"step"`
	Look   look       `json:"look"`
	Before string     `json:"before"` // state
	After  *string    `json:"after"`  // state; nil if the step is not done
	Undo   [][]string `json:"undo"`
	// Folders were not there; Undo removes those that are empty.
	Folders []string `json:"folders,omitempty"`
}

// look is what shows the state of a thing, "" if it is not there: files, or the output of a command, or one entry of
// the JSON list that it prints.
type look struct {
	Files []string          `json:"files,omitempty"`
	Run   []string          `json:"run,omitempty"`
	Match map[string]string `json:"match,omitempty"` // fields of the entry
	Field string            `json:"field,omitempty"` // the state is this field; else only whether the entry is there
	Uses  *look             `json:"uses,omitempty"`  // what needs the thing; its state is part of that of the thing
}

// there is the state of an entry without a field.
const there = "there"

func (r *record) entry(step string) *entry {
	i := slices.IndexFunc(r.Entries, func(e entry) bool { return e.Step == step })
	if i < 0 {
		return nil
	}
	return &r.Entries[i]
}

func (s *Setup) readRecord() (*record, error) {
	r := &record{}
	data, err := os.ReadFile(s.path(recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of setup: %w", err)
	}
	return r, nil
}

func (s *Setup) save(r *record) error {
	if err := s.check(); err != nil {
		return err
	}
	name := s.path(recordFile)
	rests, _ := filepath.Glob(filepath.Join(filepath.Dir(name), durable.Unfinished+"*")) // of a run that was killed; they may hold secrets
	for _, rest := range rests {
		if err := os.Remove(rest); err != nil {
			return err
		}
	}
	if inside, err := os.ReadDir(filepath.Dir(name)); len(inside) == 0 { // an empty one is from an attempt that was cut off
		r.MadeFolder = true
		if errors.Is(err, fs.ErrNotExist) {
			err = os.Mkdir(filepath.Dir(name), 0o755)
		}
		if err != nil {
			return err
		}
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = durable.Replace(name, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write the record of setup: %w", err)
	}
	return nil
}

// state is what a look shows now.
func (s *Setup) state(ctx context.Context, l look) (string, error) {
	if len(l.Files) > 0 {
		return stateOfFiles(l.Files)
	}
	out, err := s.Run.Run(ctx, l.Run)
	if len(l.Match) == 0 {
		if err != nil {
			return "", nil //nolint:nilerr // such as getent: it fails if there is no such user
		}
		return strings.TrimSpace(out), nil
	}
	if err != nil {
		return "", err
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return "", fmt.Errorf("%s: %w", quoted(l.Run), err)
	}
	now := l.in(list)
	if l.Uses != nil {
		uses, err := s.state(ctx, *l.Uses)
		return now + uses, err
	}
	return now, nil
}

// in finds the state in a list. Users that were listed in full have their tokens in them.
func (l look) in(list []map[string]any) string {
	for _, item := range list {
		tokens, _ := item["tokens"].([]any)
		for _, t := range tokens {
			if token, ok := t.(map[string]any); ok && l.Match["tokenid"] != "" && l.Match["userid"] == item["userid"] && l.Match["tokenid"] == token["tokenid"] {
				return there
			}
		}
		fits := true
		for field, value := range l.Match {
			fits = fits && item[field] == any(value)
		}
		switch {
		case !fits:
		case l.Field == "" && len(tokens) > 0:
			return there + ", with tokens"
		case l.Field == "":
			return there
		default:
			text, _ := item[l.Field].(string)
			return sorted(text)
		}
	}
	return ""
}

// sorted brings a list of PVE, which has no order, into one.
func sorted(list string) string {
	words := strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
	slices.Sort(words)
	return strings.Join(words, ",")
}

// stateOfFiles is their checksum, and that of all files in a folder; "" if none is there.
func stateOfFiles(names []string) (string, error) {
	sum, found := sha256.New(), false
	for _, name := range names {
		err := filepath.WalkDir(name, func(name string, d fs.DirEntry, err error) error {
			var data []byte
			switch {
			case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrInvalid):
				fmt.Fprintf(sum, "%s none\n", name)
				return nil
			case err == nil && d.Type() == fs.ModeSymlink:
				var to string
				to, err = os.Readlink(name)
				data = []byte(to)
			case err == nil && d.Type().IsRegular():
				data, err = os.ReadFile(name)
			}
			found = true
			fmt.Fprintf(sum, "%s %x\n", name, sha256.Sum256(data))
			return err
		})
		if err != nil {
			return "", err
		}
	}
	if !found {
		return "", nil
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}

// Recorded reports how many steps Undo would undo.
func (s *Setup) Recorded() (int, error) {
	r, err := s.readRecord()
	if err != nil {
		return 0, err
	}
	return len(r.Entries), nil
}

// Undo undoes the steps of the record, the last first. What was changed since it was made is left, and said.
func (s *Setup) Undo(ctx context.Context) error {
	r, err := s.readRecord()
	if err != nil {
		return err
	}
	for len(r.Entries) > 0 {
		e := r.Entries[len(r.Entries)-1]
		now, err := s.state(ctx, e.Look)
		if err != nil {
			return fmt.Errorf("undo %s: %w", e.Step, err)
		}
		switch {
		case now == e.Before && (now != "" || len(e.Look.Files) == 0): // a step for files that was cut off may have left others
		case e.After != nil && now != *e.After && now != e.Before:
			s.Say("%s: left as it is, since it was changed after setup; to remove it:", e.Step)
			for _, argv := range e.Undo {
				s.Say("  # %s", quoted(argv))
			}
		default:
			s.Say("undo %s", e.Step)
			for _, argv := range e.Undo {
				if err := errors.Join(ctx.Err(), s.check()); err != nil {
					return err
				}
				s.Say("  %s", quoted(argv))
				if _, err := s.Run.Run(ctx, argv); err != nil {
					return fmt.Errorf("undo %s: %w", e.Step, err)
				}
			}
		}
		for _, dir := range e.Folders {
			_ = os.Remove(dir) // not if it is used
		}
		r.Entries = r.Entries[:len(r.Entries)-1]
		if err := s.save(r); err != nil {
			return err
		}
	}
	name := s.path(recordFile)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if r.MadeFolder {
		_ = os.Remove(filepath.Dir(name)) // it stays if the owner put files there
	}
	return nil
}
