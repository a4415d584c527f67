package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Format is the version of the files in a data folder, of all kinds together. Increase it with a change that earlier
// programs cannot read, and append to upgrades what a folder of the format before needs. The package of Debian has it, too.
const Format = 1

// formatFile has the format of the folder, and the version of the program that wrote it first.
const formatFile = "format"

// beforeDir has the files as they were in an earlier format, for the program from before: it takes them back if it is started
// again within takeBack, as it is if the later one does not report. What the later one recorded meanwhile is lost.
const (
	beforeDir = "before"
	takeBack  = time.Hour
)

// upgrade brings the files of a folder from a format to the next one. It may run again after a crash.
type upgrade func(dir string) error

// upgrades has at index n-1 the one from format n.
func upgrades() []upgrade { return nil }

// newerError is the error about a folder in a format that the program does not know.
type newerError struct {
	Dir     string
	Format  int
	Program string // version of the program that wrote it
}

// Error says which program can read the folder.
func (e *newerError) Error() string {
	return fmt.Sprintf("the files in %s have format %d, which version %s introduced, and this program reads %d: nothing was changed\ninstall that version or a later one, or move the folder away, which loses its history", e.Dir, e.Format, e.Program, Format)
}

// ClaimFormat prepares a data folder for a program of a version, which must be its only writer: it creates the folder
// (mode 0700) or upgrades its files. If a newer program wrote there, it takes back the files from before that, or else it is a
// *newerError, and nothing is changed.
func ClaimFormat(dir, program string) error {
	return claim(dir, program, Format, upgrades(), time.Now())
}

func claim(dir, program string, format int, steps []upgrade, now time.Time) error {
	was, by, err := readFormat(dir)
	unnamed := errors.Is(err, fs.ErrNotExist)
	switch {
	case unnamed:
		was = 1 // the first one had no such file
	case err != nil:
		return err
	}
	kept, age := readBefore(dir, now)
	switch {
	case kept == format && (was == format || was > format && age < takeBack): // also where the steps were cut off
		return restore(dir)
	case was > format:
		return &newerError{Dir: dir, Format: was, Program: by}
	case was == format && !unnamed && age < takeBack:
		return nil
	case was == format && !unnamed:
		return os.RemoveAll(filepath.Join(dir, beforeDir))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the data folder: %w", err)
	}
	if was < format && kept != was {
		if err := keepBefore(dir, was, by); err != nil {
			return fmt.Errorf("keep the files of the format before: %w", err)
		}
	}
	for ; was < format; was++ {
		if err := steps[was-1](dir); err != nil {
			return fmt.Errorf("upgrade the files in %s to format %d: %w", dir, was+1, err)
		}
	}
	if err := Replace(filepath.Join(dir, formatFile), fmt.Appendf(nil, "%d %s\n", format, program)); err != nil {
		return fmt.Errorf("record the format of %s: %w", dir, err)
	}
	return nil
}

// readBefore reads the format of the files that are kept, 0 for none, and for how long they have been.
func readBefore(dir string, now time.Time) (format int, age time.Duration) {
	kept := filepath.Join(dir, beforeDir)
	format, _, err := readFormat(kept)
	if err != nil {
		return 0, 0
	}
	info, err := os.Stat(filepath.Join(kept, formatFile))
	if err != nil {
		return 0, 0
	}
	return format, now.Sub(info.ModTime()).Abs()
}

// keepBefore keeps the files of a folder as they are. All writers replace files, so links are enough.
func keepBefore(dir string, format int, program string) error {
	made, kept := filepath.Join(dir, beforeDir+".new"), filepath.Join(dir, beforeDir)
	err := errors.Join(os.RemoveAll(made), os.RemoveAll(kept))
	if err == nil {
		err = linkParts(dir, made)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(made, formatFile), fmt.Appendf(nil, "%d %s\n", format, program), 0o600)
	}
	if err != nil {
		return err
	}
	return os.Rename(made, kept)
}

// restore takes back the files that are kept. It may be cut off, and done again.
func restore(dir string) error {
	kept, done := filepath.Join(dir, beforeDir), filepath.Join(dir, beforeDir+".done")
	format, err := os.ReadFile(filepath.Join(kept, formatFile))
	if err != nil {
		return err
	}
	parts, err := partsOf(dir)
	if err != nil {
		return err
	}
	for _, name := range append(parts, filepath.Base(done)) {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := linkParts(kept, dir); err != nil {
		return err
	}
	if err := Replace(filepath.Join(dir, formatFile), format); err != nil {
		return err
	}
	if err := os.Rename(kept, done); err != nil { // at once: a part of it must not be restored
		return err
	}
	return os.RemoveAll(done)
}

// partsOf lists what is in a data folder, but its format, what is kept, locks, which may be held, and sockets.
func partsOf(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		name := e.Name()
		if (e.IsDir() || e.Type().IsRegular()) && name != formatFile && !strings.HasPrefix(name, beforeDir) && filepath.Ext(name) != ".lock" {
			names = append(names, name)
		}
	}
	return names, err
}

// linkParts links the files of a data folder into another folder.
func linkParts(from, to string) error {
	names, err := partsOf(from)
	if err == nil {
		err = os.MkdirAll(to, 0o700)
	}
	for _, name := range names {
		if err == nil {
			err = link(filepath.Join(from, name), filepath.Join(to, name))
		}
	}
	return err
}

// link links a file, or all files of a folder.
func link(from, to string) error {
	return filepath.WalkDir(from, func(name string, e fs.DirEntry, err error) error {
		target := to + strings.TrimPrefix(name, from)
		switch {
		case err != nil:
			return err
		case e.IsDir():
			return os.MkdirAll(target, 0o700)
		case e.Type().IsRegular():
			return os.Link(name, target)
		}
		return nil
	})
}

// readFormat reads the format of a folder, and the program that introduced it.
func readFormat(dir string) (format int, program string, err error) {
	name := filepath.Join(dir, formatFile)
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, "", fmt.Errorf("read the format of the data folder: %w", err)
	}
	number, program, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if format, err = strconv.Atoi(number); err != nil || format < 1 {
		return 0, "", fmt.Errorf("%s has no format in it: remove the file if no newer version of the program ran here", name)
	}
	return format, program, nil
}
