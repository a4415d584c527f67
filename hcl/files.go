package hcl

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// FormatFiles formats files in the canonical layout, and returns those that changed. With check it
// writes nothing. A file that cannot be read or written does not stop the others.
func FormatFiles(files []string, check bool) (changed []string, found diag.List, err error) {
	var errs []error
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out, l := Format(src, name)
		found = append(found, l...)
		if l.HasErrors() || bytes.Equal(src, out) {
			continue
		}
		if !check {
			if err := replaceFile(name, out); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		changed = append(changed, name)
	}
	return changed, found, errors.Join(errs...)
}

// Files lists the files of a site in a folder, in order; of a file it lists that one. Hidden
// folders are not part of a site, and links are not followed.
func Files(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != dir && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.Type().IsRegular() && filepath.Ext(name) == ".hcl":
			files = append(files, name)
		}
		return nil
	})
	return files, err
}

// OfPredecessor reports whether a folder has YAML files of the predecessor, which `convert` reads.
func OfPredecessor(dir fs.FS) bool {
	for _, pattern := range []string{"site.yaml", "hosts/*.yaml", "nodes/*.yaml", "specs/*.yaml", "manifests/*.yaml"} {
		if names, _ := fs.Glob(dir, pattern); len(names) > 0 {
			return true
		}
	}
	return false
}

// replaceFile replaces a file's content atomically, and keeps its mode.
func replaceFile(name string, data []byte) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".fmt-*")
	if err != nil {
		return fmt.Errorf("rewrite %s: %w", name, err)
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(info.Mode().Perm()), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("rewrite %s: %w", name, err)
	}
	return nil
}
