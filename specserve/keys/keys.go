// Package keys keeps the keys with which a parent signs the tokens of its nodes. They are created on its first
// start and never leave the machine; a child creates its own.
//
// After a rotation the previous key is still accepted, and nodes get a new token with their next response. A
// further rotation drops the previous key.
package keys

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// signingFile is the file of the keys in the folder of a server, mode 0600.
const signingFile = "signing.json"

// most is the number of keys that are valid at once.
const most = 2

// version is the version of the file.
const version = 1

// Folder is where a server keeps its keys, and what it minted.
type Folder string

// entry is a key, and when it was made.
type entry struct {
	Key
	Created time.Time
}

// Ring is the keys of a server. The first one signs.
type Ring []entry

// Tokens is the ring for those who mint and verify.
func (r Ring) Tokens() Keys {
	out := make(Keys, 0, len(r))
	for _, e := range r {
		out = append(out, e.Key)
	}
	return out
}

// document is the content of the file.
type document struct {
	Version int        `json:"version"`
	Keys    []keyEntry `json:"keys"` // newest first
}

type keyEntry struct {
	ID      string    `json:"kid"` // for people; it follows from the key
	Key     string    `json:"key"`
	Created time.Time `json:"created"`
}

// Read reads the keys. Without any the error is fs.ErrNotExist.
func (f Folder) Read() (Ring, error) {
	name := filepath.Join(string(f), signingFile)
	text, err := durable.ReadPrivate(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no signing key: %w\nthe server makes it on its first start: homestak-gitops serve; a server with another data folder is named by --data-dir", err)
	}
	var ring Ring
	if err == nil {
		ring, err = parse(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not usable: %w\nrestore it from a backup; if you remove it, the server makes another key, and every node needs a new token", name, err)
	}
	return ring, nil
}

// parse reads the file. No error repeats what is in it.
func parse(text []byte) (Ring, error) {
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, errors.New("it is not a JSON document with signing keys")
	}
	if d.Version != version {
		return nil, fmt.Errorf("it has version %d, this program reads %d", d.Version, version)
	}
	if len(d.Keys) == 0 || len(d.Keys) > most {
		return nil, fmt.Errorf("it has %d keys, and one or two are right", len(d.Keys))
	}
	var ring Ring
	for _, e := range d.Keys {
		key, err := ParseKey(e.Key)
		if err != nil {
			return nil, err
		}
		ring = append(ring, entry{key, e.Created})
	}
	return ring, nil
}

// Ensure reads the keys, and creates the folder and the first key if they do not exist.
func (f Folder) Ensure(now time.Time) (Ring, error) {
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the signing keys: %w", err)
	}
	if err := durable.HandOver(filepath.Dir(string(f)), string(f)); err != nil {
		return nil, fmt.Errorf("make the folder of the signing keys: %w", err)
	}
	var ring Ring
	err := durable.Exclusively(string(f), func() error {
		var err error
		if ring, err = f.Read(); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		ring = Ring{{NewKey(), now.UTC().Truncate(time.Second)}}
		return f.write(ring)
	})
	return ring, err
}

// Rotate makes a new key that signs from now on. The present one stays valid beside it, an older one
// does not.
func (f Folder) Rotate(now time.Time) (Ring, error) {
	return f.change(func(r Ring) Ring {
		return Ring{{NewKey(), now.UTC().Truncate(time.Second)}, r[0]}
	})
}

// DropOld ends the validity of the older key.
func (f Folder) DropOld() (Ring, error) {
	return f.change(func(r Ring) Ring { return r[:1] })
}

func (f Folder) change(next func(Ring) Ring) (Ring, error) {
	if _, err := f.Read(); err != nil {
		return nil, err // also where the folder is missing
	}
	var ring Ring
	err := durable.Exclusively(string(f), func() error {
		var err error
		if ring, err = f.Read(); err != nil {
			return err
		}
		ring = next(ring)
		return f.write(ring)
	})
	return ring, err
}

func (f Folder) write(ring Ring) error {
	d := document{Version: version}
	for _, e := range ring {
		d.Keys = append(d.Keys, keyEntry{ID: e.ID, Key: e.Text(), Created: e.Created})
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(string(f), signingFile)
	if err := durable.ReplaceForOwner(name, append(text, '\n')); err != nil {
		return fmt.Errorf("write the signing keys: %w", err)
	}
	return nil
}
