package keys

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// The key files of clients that are not nodes, in the folder of a server, mode 0600. Each has one line.
const (
	readFile       = "read.key"       // status and metrics
	operatorFile   = "operator.key"   // asks for a check
	repositoryFile = "repository.key" // opens the repository
	hookFile       = "hook.key"       // signs generic notifications of pushes
)

// File is the file of the secret of a provider. Each has its own: what one signs must not pass as a notification of
// another.
func (p Provider) File() string {
	if p == Generic {
		return hookFile
	}
	return "hook-" + string(p) + ".key"
}

// shortest is the minimum length of such a key in bytes. Keys may be written by hand.
const shortest = 16

// Access is the keys of clients that are not nodes. It is immutable.
type Access struct {
	Read, Operator, Repository []byte

	hooks map[Provider][]byte // by provider
}

// Hook is the secret of a provider; nil if it has none of its own.
func (a Access) Hook(provider Provider) []byte { return a.hooks[provider] }

// Equal reports whether two have the same keys.
func (a Access) Equal(b Access) bool {
	same := len(a.hooks) == len(b.hooks) && bytes.Equal(a.Read, b.Read) && bytes.Equal(a.Operator, b.Operator) && bytes.Equal(a.Repository, b.Repository)
	for provider, secret := range a.hooks {
		other, there := b.hooks[provider]
		same = same && there && bytes.Equal(secret, other)
	}
	return same
}

// Files are the paths of the keys. An empty name is that of the constants above, in Dir.
type Files struct {
	Dir                              string // the folder of Ensure; secrets of providers but the generic one are always there
	Read, Operator, Repository, Hook string
}

// in is a file that may be named otherwise.
func (f Files) in(named, usual string) string {
	if named != "" {
		return named
	}
	return filepath.Join(f.Dir, usual)
}

// names are the files of readers, operators and the repository.
func (f Files) names() [3]string {
	return [3]string{f.in(f.Read, readFile), f.in(f.Operator, operatorFile), f.in(f.Repository, repositoryFile)}
}

// hook is the file of the secret of a provider.
func (f Files) hook(provider Provider) string {
	if provider == Generic {
		return f.in(f.Hook, hookFile)
	}
	return filepath.Join(f.Dir, provider.File())
}

// All are the files of all keys, signing keys included, also of those that are not there.
func (f Files) All(providers []Provider) []string {
	names := f.names()
	return slices.Concat(names[:], []string{filepath.Join(f.Dir, signingFile)}, f.hooks(providers))
}

func (f Files) hooks(providers []Provider) []string {
	out := make([]string, 0, len(providers))
	for _, provider := range providers {
		out = append(out, f.hook(provider))
	}
	return out
}

// EnsureAccess reads the keys, and makes those that are missing, with a secret for each of the providers.
func (f Files) EnsureAccess(providers []Provider) (Access, error) {
	err := durable.Exclusively(f.Dir, func() error {
		names := f.names()
		for _, name := range slices.Concat(names[:], f.hooks(providers)) {
			if _, err := readKey(name); !errors.Is(err, fs.ErrNotExist) {
				continue // ReadAccess reports the error
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
	return f.ReadAccess(providers)
}

// ReadAccess reads the keys. A provider without a file has no secret, and a secret that several providers have
// counts for none of them.
func (f Files) ReadAccess(providers []Provider) (Access, error) {
	a, names := Access{hooks: map[Provider][]byte{}}, f.names()
	for i, key := range []*[]byte{&a.Read, &a.Operator, &a.Repository} {
		var err error
		if *key, err = readKey(names[i]); err != nil {
			return Access{}, err
		}
	}
	with := map[string]int{} // providers, by secret
	for _, provider := range slices.Sorted(slices.Values(providers)) {
		secret, err := readKey(f.hook(provider))
		switch {
		case err == nil:
			a.hooks[provider] = secret
			with[string(secret)]++
		case !errors.Is(err, fs.ErrNotExist):
			return Access{}, err
		}
	}
	maps.DeleteFunc(a.hooks, func(_ Provider, secret []byte) bool { return with[string(secret)] > 1 })
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
