package client

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// kept has what a child stores of its parent. Its fields point to immutable values.
type kept struct {
	given  string // sums up what the administrator wrote: with that changed, what was renewed counts no more
	token  string // sums up the token of that: as long as it is the same, its successor counts
	server string // that was given
	parent wire.Parent
	tag    string       // of config
	config *wire.Config // nil: none was fetched
	// keys are the ownership keys that an earlier parent gave it, or the same one before it got other credentials. They
	// depend on the names of this child and of those below it, and not on who gives them.
	keys map[string]map[string]*string
}

// document is the file.
type document struct {
	Version int          `json:"version"`
	Given   string       `json:"given"`
	OfToken string       `json:"of_token,omitempty"` // versions before 0.2 lack it
	Pins    []string     `json:"pins"`
	Token   string       `json:"token"`
	Server  string       `json:"server,omitempty"` // URL of the parent, if it is not the one that was given
	Tag     string       `json:"tag"`
	Config  *wire.Config `json:"config"`
}

// version is the version of the file.
const version = 1

// load reads the file; without one, or with one of another parent, what is given counts.
func load(file string, given wire.Parent) (kept, error) {
	data, err := durable.ReadPrivate(file)
	if errors.Is(err, fs.ErrNotExist) {
		return newKept(given), nil
	}
	var k kept
	if err == nil {
		k, err = readKept(data, given)
	}
	if err != nil {
		return kept{}, fmt.Errorf("%s cannot be read: %w\nremove it: the agent then asks its parent with what agent.hcl says", file, err)
	}
	return k, nil
}

// newKept is the state of a child that has not asked its parent.
func newKept(given wire.Parent) kept {
	return kept{given: ParentSum(given), token: ParentSum(wire.Parent{Token: given.Token}), server: given.Server, parent: given}
}

// readKept reads the content of the file.
func readKept(data []byte, given wire.Parent) (kept, error) {
	k := newKept(given)
	var d document
	if json.Unmarshal(data, &d) != nil || d.Version != version {
		return kept{}, errors.New("this program did not write it")
	}
	pins, err := wire.ParsePins(d.Pins)
	if err != nil {
		return kept{}, err
	}
	if d.OfToken == k.token {
		k.parent.Token = d.Token // the one that was given is for one use
	}
	if d.Given == k.given {
		k.parent.Pins, k.parent.Token, k.tag, k.config = pins, d.Token, d.Tag, d.Config
		k.parent.Server = cmp.Or(d.Server, k.parent.Server)
	} else if d.Config != nil {
		k.keys = map[string]map[string]*string{auth: ownershipKeys(d.Config.Secrets[auth])}
	}
	if k.config != nil && k.config.Removed {
		// A child empties its host on this word, so it has to be heard, not remembered: the file may be of a backup.
		k.config.Removed, k.tag = false, ""
	}
	return k, nil
}

// KeptParent is the parent that the content of an uplink's file names for a child with the parent given, with the token of now.
func KeptParent(content []byte, given wire.Parent) (wire.Parent, error) {
	k, err := readKept(content, given)
	return k.parent, err
}

// ParentSum is a checksum of a parent's configuration. The stored state is valid while its file has the same
// checksum.
func ParentSum(p wire.Parent) string {
	sum := sha256.Sum256([]byte(strings.Join(append([]string{p.Identity, p.Server, p.Token}, wire.PinTexts(p.Pins)...), "\n")))
	return hex.EncodeToString(sum[:])
}

// with takes in an answer. A child that leaves keeps the secrets that it has, since it needs them to empty its host. So does one
// whose parent does not know it: a parent that has lost its data, or whose own parent withdrew the child in a commit that this
// parent does not have yet. If the parent says that there is no ownership key for the child, the child keeps its ownership keys only.
func (k kept) with(got FetchedConfig) kept {
	config := got.Config
	if got.Token != "" {
		k.parent.Token = got.Token
	}
	has := k.keys
	if k.config != nil {
		has = k.config.Secrets
		if config.Removed {
			config.Defaults = k.config.Defaults
		}
	}
	_, signs := config.Secrets[auth][model.OwnershipKey]
	own, known := config.Secrets[auth][model.OwnershipKeys+"."+config.Identity]
	switch {
	case config.Removed || signs && !known:
		config.Secrets = withKept(config.Secrets, has)
		if k.config != nil {
			config.PrivateKeys = slices.Compact(slices.Sorted(slices.Values(slices.Concat(config.PrivateKeys, k.config.PrivateKeys))))
		}
	case signs && own == nil:
		config.Secrets = withKept(config.Secrets, map[string]map[string]*string{auth: ownershipKeys(has[auth])})
	}
	config.Token = "" // it is above
	k.parent.Pins, k.tag, k.config = got.Pins, got.ETag, &config
	return k
}

// withKept are the secrets that a child is given, and those that it has for all whose value it is not given: among them the ownership keys of its
// own children, of which its parent may know nothing.
func withKept(given, has map[string]map[string]*string) map[string]map[string]*string {
	out := maps.Clone(given)
	if out == nil {
		out = map[string]map[string]*string{}
	}
	for section, values := range has {
		all := map[string]*string{}
		for name, value := range values {
			if value != nil || section != auth || !model.IsOwnershipSecret(name) {
				all[name] = value
			}
		}
		for name, value := range given[section] {
			if value != nil || all[name] == nil {
				all[name] = value
			}
		}
		out[section] = all
	}
	return out
}

// auth is the section of the secrets that has the ownership keys.
const auth = "auth"

// ownershipKeys are the ownership keys of a section of secrets whose values are known.
func ownershipKeys(of map[string]*string) map[string]*string {
	out := maps.Clone(of)
	maps.DeleteFunc(out, func(name string, value *string) bool { return !model.IsOwnershipSecret(name) || value == nil })
	return out
}

func (k kept) save(file string) error {
	d := document{Version: version, Given: k.given, OfToken: k.token, Pins: wire.PinTexts(k.parent.Pins), Token: k.parent.Token, Tag: k.tag, Config: k.config}
	if k.parent.Server != k.server {
		d.Server = k.parent.Server
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return durable.Replace(file, append(text, '\n'))
}
