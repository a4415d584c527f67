package keys

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// The files of the keys of those who are no nodes, in the folder of a server, mode 0600. Each has one line.
const (
	ReadFile       = "read.key"       // status and metrics
	OperatorFile   = "operator.key"   // asks for a check
	RepositoryFile = "repository.key" // opens the repository
	HookFile       = "hook.key"       // signs notifications of every provider that has no file of its own
)

// HookFileOf is the file of the secret of one provider. It is not made by itself.
func HookFileOf(provider string) string { return "hook-" + provider + ".key" }

// shortest is how many bytes such a key has at least. Somebody may write one by hand.
const shortest = 16

// Access is the keys of those who are no nodes. It is not changed after it was read.
type Access struct {
	Read, Operator, Repository []byte

	hook  []byte
	hooks map[string][]byte // by provider
}

// Hook is the secret of a provider.
func (a Access) Hook(provider string) []byte {
	if secret, own := a.hooks[provider]; own {
		return secret
	}
	return a.hook
}

// Equal reports whether two have the same keys.
func (a Access) Equal(b Access) bool {
	same := len(a.hooks) == len(b.hooks) && bytes.Equal(a.Read, b.Read) && bytes.Equal(a.Operator, b.Operator) && bytes.Equal(a.Repository, b.Repository) && bytes.Equal(a.hook, b.hook)
	for provider, secret := range a.hooks {
		other, there := b.hooks[provider]
		same = same && there && bytes.Equal(secret, other)
	}
	return same
}

// Files are where the keys are. A name that is "" is that of the constants above, in Dir.
type Files struct {
	Dir                              string // the folder of Ensure; secrets of single providers are always there
	Read, Operator, Repository, Hook string
}

// names are the four files, in the order of the constants.
func (f Files) names() [4]string {
	in := func(named, usual string) string {
		if named != "" {
			return named
		}
		return filepath.Join(f.Dir, usual)
	}
	return [4]string{in(f.Read, ReadFile), in(f.Operator, OperatorFile), in(f.Repository, RepositoryFile), in(f.Hook, HookFile)}
}

// All are the files of all keys, signing keys included, also of those that are not there.
func (f Files) All(providers []string) []string {
	names := f.names()
	out := append(names[:], filepath.Join(f.Dir, FileName))
	for _, provider := range providers {
		out = append(out, filepath.Join(f.Dir, HookFileOf(provider)))
	}
	return out
}

// EnsureAccess reads the keys, and makes those that are missing. Providers are those that may have a
// secret of their own.
func EnsureAccess(f Files, providers []string) (Access, error) {
	err := durable.Exclusively(f.Dir, func() error {
		for _, name := range f.names() {
			if _, err := readKey(name); !errors.Is(err, fs.ErrNotExist) {
				continue // ReadAccess says what is wrong with it
			}
			key := make([]byte, 32)
			_, _ = rand.Read(key) // it never fails (crypto/rand)
			err := durable.Replace(name, append(hex.AppendEncode(nil, key), '\n'))
			if err == nil {
				err = durable.HandOver(f.Dir, name)
			}
			if err != nil {
				return fmt.Errorf("write %s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		return Access{}, err
	}
	return ReadAccess(f, providers)
}

// ReadAccess reads the keys.
func ReadAccess(f Files, providers []string) (Access, error) {
	a, names := Access{hooks: map[string][]byte{}}, f.names()
	for i, key := range []*[]byte{&a.Read, &a.Operator, &a.Repository, &a.hook} {
		var err error
		if *key, err = readKey(names[i]); err != nil {
			return Access{}, err
		}
	}
	for _, provider := range slices.Sorted(slices.Values(providers)) {
		secret, err := readKey(filepath.Join(f.Dir, HookFileOf(provider)))
		switch {
		case err == nil:
			a.hooks[provider] = secret
		case !errors.Is(err, fs.ErrNotExist):
			return Access{}, err
		}
	}
	return a, nil
}

// readKey reads a file of one line. No error repeats what is in it.
func readKey(name string) ([]byte, error) {
	text, err := durable.ReadPrivate(name)
	if err != nil {
		return nil, fmt.Errorf("read the key in %s: %w", name, err)
	}
	key := bytes.TrimSpace(text)
	if len(key) < shortest || bytes.ContainsAny(key, "\r\n") {
		return nil, fmt.Errorf("%s is not usable: a key is one line of at least %d characters\nremove the file, and the next start makes another key", name, shortest)
	}
	return key, nil
}
