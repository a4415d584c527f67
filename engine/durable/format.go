package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Format is the version of the files in a data folder, of all kinds together. Increase it with a change that earlier
// programs cannot read, and append to upgrades what a folder of the format before needs. The package of Debian has it, too.
const Format = 1

// formatFile has the format of the folder, and the version of the program that wrote it first.
const formatFile = "format"

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
// (mode 0700) or upgrades its files. It is a *newerError, and nothing is changed, if a newer program wrote there.
func ClaimFormat(dir, program string) error { return claim(dir, program, Format, upgrades()) }

func claim(dir, program string, format int, steps []upgrade) error {
	was, by, err := readFormat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		was = 1 // the first one had no such file
	case err != nil:
		return err
	case was > format:
		return &newerError{Dir: dir, Format: was, Program: by}
	case was == format:
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the data folder: %w", err)
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
