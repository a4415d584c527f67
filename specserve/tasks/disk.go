package tasks

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// disk stores files. Tests replace it by one that fails at every step.
type disk interface {
	list(dir string) ([]string, error) // makes the folder, too
	read(name string) ([]byte, error)
	replace(name string, content []byte) error
	remove(name string) error
}

// folder is the disk of this machine.
type folder struct{}

func (folder) list(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), durable.Unfinished) { // of a process that has ended
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
			continue
		}
		out = append(out, e.Name())
	}
	return out, nil
}

func (folder) read(name string) ([]byte, error) { return durable.ReadPrivate(name) }

func (folder) replace(name string, content []byte) error { return durable.Replace(name, content) }

func (folder) remove(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
