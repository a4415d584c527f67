package site

import (
	"io/fs"
	"log/slog"
	"path"

	"github.com/homestak/homestak-gitops/hcl"
)

// InClear finds a file of secrets in a tree that anyone who can read the tree can read, in any of its
// folders: the repository may have other sites beside this one. It is "" if there is none.
func InClear(tree fs.FS) (found string, err error) {
	err = fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		base := path.Base(name)
		if err != nil || !d.Type().IsRegular() || base != SecretsName && base != EncryptedName {
			return err
		}
		data, err := readRegular(tree, name)
		if err != nil {
			return err
		}
		// A value beside what sops encrypted is an error of that file, and in the clear.
		if _, wrong := hcl.ParseSecrets(name, data, nil); !hcl.IsEncrypted(data) || wrong.HasErrors() {
			found = name
			return fs.SkipAll
		}
		return nil
	})
	return found, err
}

// Clear finds the commits of a repository that hold secrets in the clear. It is for one goroutine at a
// time.
type Clear struct {
	Files func(commit string) (fs.FS, error) // of the whole repository
	Log   *slog.Logger

	known map[string]bool
}

// In finds a file of secrets in the clear in a commit; "" if there is none.
func (c *Clear) In(commit string) (string, error) {
	files, err := c.Files(commit)
	if err != nil {
		return "", err
	}
	return InClear(files)
}

// Withheld reports whether the history of the repository must not be served with a commit.
func (c *Clear) Withheld(commit string) bool {
	is, known := c.known[commit]
	if known {
		return is
	}
	found, err := c.In(commit)
	if is = found != "" || err != nil; is {
		c.Log.Warn("the history of the repository is served without a commit, and without those before it", "commit", commit, "secrets", found, "error", err)
	}
	if c.known == nil {
		c.known = map[string]bool{}
	}
	c.known[commit] = is
	return is
}
