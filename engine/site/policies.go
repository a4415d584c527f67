package site

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// OpenPolicies opens the folder of a site of which only policies are read: dir itself, or where
// that is the folder policy of a site, the one around it. Done closes it.
func OpenPolicies(dir string) (tree fs.FS, done func(), err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("open site folder: %w", err)
	}
	if filepath.Base(abs) == "policy" {
		if _, serr := os.Stat(filepath.Join(abs, "policy")); serr != nil {
			abs = filepath.Dir(abs)
		}
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, nil, fmt.Errorf("open site folder: %w", err)
	}
	return root.FS(), func() { _ = root.Close() }, nil
}
