package site

import (
	"io/fs"
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
		if err == nil && !hcl.IsEncrypted(data) {
			found = name
			return fs.SkipAll
		}
		return err
	})
	return found, err
}
