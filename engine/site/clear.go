package site

import (
	"io/fs"
	"log/slog"
	"path"

	"github.com/homestak/homestak-gitops/hcl"
)

// Leak is a secret in the clear in a tree that anyone who can read the repository can read.
type Leak struct {
	File string // "": there is none
	What string
}

// String says what is in which file; "" for nothing.
func (l Leak) String() string {
	if l.File == "" {
		return ""
	}
	return l.What + ": " + l.File
}

// Clear finds the commits of a repository that hold secrets in the clear. It is for one goroutine at a
// time.
type Clear struct {
	Files func(commit string) (fs.FS, error) // of the whole repository
	Log   *slog.Logger

	known map[string]bool
	clean map[string]bool // files and folders without secrets in the clear, by the id of their contents
}

// In finds a secret in the clear in a commit.
func (c *Clear) In(commit string) (Leak, error) {
	files, err := c.Files(commit)
	if err != nil {
		return Leak{}, err
	}
	return c.find(files)
}

// Withheld reports whether the history of the repository must not be served with a commit.
func (c *Clear) Withheld(commit string) bool {
	is, known := c.known[commit]
	if known {
		return is
	}
	found, err := c.In(commit)
	if is = found.File != "" || err != nil; is {
		c.Log.Warn("the history of the repository is served without a commit, and without those before it", "commit", commit, "secrets", found.String(), "error", err)
	}
	if err != nil {
		return true // it may be readable the next time
	}
	if c.known == nil {
		c.known = map[string]bool{}
	}
	c.known[commit] = is
	return is
}

// find finds a secret in the clear in a tree, in any of its folders: the repository may have other sites beside this one. It may
// be a file of secrets that is not encrypted, or a private key in a file of any name. Files found clean before are not read again.
func (c *Clear) find(tree fs.FS) (Leak, error) {
	if c.clean == nil {
		c.clean = map[string]bool{}
	}
	return c.folder(tree, ".")
}

func (c *Clear) folder(tree fs.FS, name string) (Leak, error) {
	info, err := fs.Stat(tree, name)
	if err != nil {
		return Leak{}, err
	}
	id := contentID(info)
	if c.clean[id] {
		return Leak{}, nil
	}
	entries, err := fs.ReadDir(tree, name)
	if err != nil {
		return Leak{}, err
	}
	for _, e := range entries {
		var found Leak
		switch at := path.Join(name, e.Name()); {
		case e.IsDir():
			found, err = c.folder(tree, at)
		case e.Type().IsRegular():
			found, err = c.file(tree, at, e)
		}
		if err != nil || found.File != "" {
			return found, err
		}
	}
	c.isClean(id)
	return Leak{}, nil
}

func (c *Clear) file(tree fs.FS, name string, e fs.DirEntry) (Leak, error) {
	info, err := e.Info()
	if err != nil {
		return Leak{}, err
	}
	base := path.Base(name)
	secrets := base == SecretsName || base == encryptedName
	id := contentID(info)
	if id != "" && secrets {
		id += " " + base // another name has other rules
	}
	if c.clean[id] {
		return Leak{}, nil
	}
	if secrets {
		data, err := readRegular(tree, name)
		if err != nil {
			return Leak{}, err
		}
		// A value beside what sops encrypted is an error of that file, and in the clear.
		if _, wrong := hcl.ParseSecrets(name, data, nil); !hcl.IsEncrypted(data) || wrong.HasErrors() {
			return Leak{name, "secrets in plain text"}, nil
		}
	} else if info.Size() <= longestKeyFile {
		data, err := fs.ReadFile(tree, name)
		if err != nil {
			return Leak{}, err
		}
		if what := privateKey(data); what != "" {
			return Leak{name, what + " in plain text"}, nil
		}
	}
	c.isClean(id)
	return Leak{}, nil
}

func (c *Clear) isClean(id string) {
	if id != "" {
		c.clean[id] = true
	}
}

// contentID names the contents of a file or folder of a commit; "" where nothing does.
func contentID(info fs.FileInfo) string {
	id, _ := info.Sys().(string)
	return id
}
