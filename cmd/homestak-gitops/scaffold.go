package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// scaffoldSite holds the files. A name that begins with "dot." becomes a
// hidden file: go:embed leaves hidden files out.
//
//go:embed site
var scaffoldSite embed.FS

// writeScaffold writes the site into a folder: all of it or, where one of its files or another file
// of the language is there already, nothing.
func writeScaffold(dir string) error {
	files, err := siteFiles()
	if err != nil {
		return err
	}
	files[secretsName] = secrets()
	// All or nothing: half a scaffold among other files is not a site.
	if have, err := hcl.Files(dir); err == nil && len(have) > 0 {
		return fmt.Errorf("%s already contains HCL files, such as %s\nchoose another folder: homestak-gitops init DIR", dir, have[0])
	}
	for name := range files {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is there already, and nothing is overwritten\nchoose another folder: homestak-gitops init DIR", filepath.Join(dir, name))
		}
	}
	if err := writeFiles(dir, files); err != nil {
		return fmt.Errorf("write the site: %w", err)
	}
	return nil
}

// writeFiles writes the files of a new site into a folder. Only the user may read the secrets.
func writeFiles(dir string, files map[string][]byte) error {
	for name, data := range files {
		mode := fs.FileMode(0o644)
		if name == secretsName {
			mode = 0o600
		}
		if err := createFile(filepath.Join(dir, name), data, mode); err != nil {
			return err
		}
	}
	return nil
}

// siteFiles gives the files of the scaffold by the name they get.
func siteFiles() (map[string][]byte, error) {
	files := map[string][]byte{}
	err := fs.WalkDir(scaffoldSite, "site", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := scaffoldSite.ReadFile(name)
		base := filepath.Base(name)
		if hidden, ok := strings.CutPrefix(base, "dot."); ok {
			base = "." + hidden
		}
		files[strings.TrimPrefix(filepath.Join(filepath.Dir(name), base), "site/")] = data
		return err
	})
	return files, err
}

// secretsName is the file of secrets, which git ignores.
const secretsName = "secrets.yaml"

// secrets is the text of that file, with a new key of ownership.
func secrets() []byte {
	return fmt.Appendf(nil, `# The secrets of this site. Git ignores this file: keep a copy elsewhere. Its sections (api_tokens, passwords,
# ssh_keys, auth) are in docs/reference.md.
api_tokens:
  # HOST: "user@pve!name=secret"

ssh_keys:
  # Who logs in to guests, with the line of the .pub file: ana@laptop: ssh-ed25519 AAAA… ana@laptop

auth:
  # Signs the tags that prove which guests on the hosts are the ones of this site.
  ownership_key: %q
`, model.NewOwnershipKey())
}

// writeSecretsOf gives a folder the file of secrets, with passwords without a value, and the one that keeps it out of
// git.
func writeSecretsOf(dir string, passwords []string) error {
	ignored, err := scaffoldSite.ReadFile("site/dot.gitignore")
	if err != nil {
		return err
	}
	text := secrets()
	if len(passwords) > 0 {
		text = fmt.Appendf(text, "\npasswords:\n  %s:\n", strings.Join(passwords, ":\n  "))
	}
	return errors.Join(createFile(filepath.Join(dir, ".gitignore"), ignored, 0o644), createFile(filepath.Join(dir, secretsName), text, 0o600))
}

// createFile makes a file that must not exist, and its folder.
func createFile(name string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// inPlace lets write fill a folder, and then moves its files into dir, where none of them may exist: an import that
// fails or is killed leaves no part of a site.
func inPlace(dir string, write func(dir string) error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	stage, err := os.MkdirTemp(dir, ".import-")
	if err != nil {
		return err
	}
	stage = filepath.Clean(stage)              // as WalkDir names what is in it
	defer func() { _ = os.RemoveAll(stage) }() // hidden from the loader, if it stays
	if err := write(stage); err != nil {
		return err
	}
	each := func(do func(from, to string) error) error {
		return filepath.WalkDir(stage, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			return do(name, filepath.Join(dir, strings.TrimPrefix(name, stage)))
		})
	}
	if err := each(func(_, to string) error {
		if _, err := os.Lstat(to); err == nil {
			return fmt.Errorf("%s exists already", to)
		}
		return os.MkdirAll(filepath.Dir(to), 0o755)
	}); err != nil {
		return err
	}
	return each(os.Rename)
}
