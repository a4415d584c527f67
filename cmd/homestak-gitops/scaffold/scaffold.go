// Package scaffold has the small site that init writes.
package scaffold

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/homestak/homestak-gitops/hcl"
)

// site holds the files. A name that begins with "dot." becomes a
// hidden file: go:embed leaves hidden files out.
//
//go:embed site
var site embed.FS

// Write writes the site into a folder: all of it or, where one of its files or another file
// of the language is there already, nothing.
func Write(dir string) error {
	files, err := siteFiles()
	if err != nil {
		return err
	}
	// All or nothing: half a scaffold among other files is not a site.
	if have, err := hcl.Files(dir); err == nil && len(have) > 0 {
		return fmt.Errorf("%s holds HCL files already, such as %s\nchoose another folder: homestak-gitops init DIR", dir, have[0])
	}
	for name := range files {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is there already, and nothing is overwritten\nchoose another folder: homestak-gitops init DIR", filepath.Join(dir, name))
		}
	}
	for name, data := range files {
		if err := createFile(filepath.Join(dir, name), data); err != nil {
			return fmt.Errorf("write the site: %w", err)
		}
	}
	return nil
}

// siteFiles gives the files of the scaffold by the name they get.
func siteFiles() (map[string][]byte, error) {
	files := map[string][]byte{}
	err := fs.WalkDir(site, "site", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := site.ReadFile(name)
		base := filepath.Base(name)
		if hidden, ok := strings.CutPrefix(base, "dot."); ok {
			base = "." + hidden
		}
		files[filepath.Join(strings.TrimPrefix(filepath.Dir(name), "site"), base)] = data
		return err
	})
	return files, err
}

// createFile makes a file that must not exist, and its folder.
func createFile(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
