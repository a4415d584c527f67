package model

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// The keys of a site that prove which guests are its own, by their names in the section auth of its secrets.
const (
	// OwnershipKey is the key of the site. It authenticates guests of every owner.
	OwnershipKey = "ownership_key"
	// PreviousOwnershipKey is the one before, while the guests get tags by the new one. Both prove a guest.
	PreviousOwnershipKey = "ownership_key_previous"
	// OwnershipKeys and PreviousOwnershipKeys are maps by owner, with the keys that are derived for each: what a host
	// has in place of the key of the site. In [Secrets] their entries have the names MAP.OWNER.
	OwnershipKeys         = "ownership_keys"
	PreviousOwnershipKeys = "ownership_keys_previous"
)

// ownershipKeySize is the length of these keys, in bytes.
const ownershipKeySize = sha256.Size

// IsOwnershipSecret reports whether a name of the section auth is that of a key above, or of a map of them.
func IsOwnershipSecret(name string) bool {
	name, _, _ = strings.Cut(name, ".")
	return name == OwnershipKey || name == PreviousOwnershipKey || name == OwnershipKeys || name == PreviousOwnershipKeys
}

// NewOwnershipKey makes a key for a site, as the secrets have it.
func NewOwnershipKey() string {
	key := make([]byte, ownershipKeySize)
	_, _ = rand.Read(key) // it never fails (crypto/rand)
	return hex.EncodeToString(key)
}

// ParseOwnershipKey reads one of the keys. The error does not show the text.
func ParseOwnershipKey(text string) ([]byte, error) {
	if most := hex.EncodedLen(ownershipKeySize); len(text) != most {
		return nil, fmt.Errorf("it has %d characters, and must have %d", len(text), most)
	}
	key, err := hex.DecodeString(text)
	if err != nil {
		return nil, errors.New("it has characters other than 0 to 9 and a to f") // the error of hex shows one of them
	}
	return key, nil
}

// OwnershipKeyAdvice returns what to do on a site without a key, a line each.
func (s *Secrets) OwnershipKeyAdvice() []string {
	file := "secrets.yaml"
	if s != nil && s.Source != "" {
		file = s.Source
	}
	return []string{"make a key: openssl rand -hex 32", "into " + file + ", under auth: " + OwnershipKey + ": \"THE 64 DIGITS\""}
}

// deriveOwnershipKey makes the key of one owner from the key of the site (HKDF-SHA-256, RFC 5869). It depends on the name
// of the owner alone, not on what that lives on, so that a host which moves to another parent keeps its key.
func deriveOwnershipKey(key []byte, site, owner string) []byte {
	out, err := hkdf.Key(sha256.New, key, []byte("homestak-gitops ownership 1"), site+"\x00"+owner, ownershipKeySize)
	if err != nil {
		panic(err) // only for more than 255 blocks, or keys that FIPS 140 forbids
	}
	return out
}

// OwnershipKeys are the keys that prove the guests of an owner, the current one first, then the one before; none if
// the site has no key, or its value is not known here.
func (s *Secrets) OwnershipKeys(site, owner string) [][]byte {
	var out [][]byte
	for _, g := range ownershipGenerations {
		if key := s.ownershipKey(g, site, owner); key != nil {
			out = append(out, key)
		}
	}
	return out
}

// HandoverKeys are those by which a host and a new parent of it prove to each other that they belong to the site, derived from
// the ownership keys of the host. The new parent gets these with the secrets of its part of the site, and the host has them
// already. There are none without an ownership key.
func (s *Secrets) HandoverKeys(site, host string) [][]byte {
	var out [][]byte
	for _, key := range s.OwnershipKeys(site, host) {
		derived, err := hkdf.Key(sha256.New, key, []byte("homestak-gitops handover 1"), host, ownershipKeySize)
		if err != nil {
			panic(err) // as in deriveOwnershipKey
		}
		out = append(out, derived)
	}
	return out
}

// DerivedOwnershipKeys are the same as secrets of the section auth: they authenticate the guests of this owner, and
// of no other.
func (s *Secrets) DerivedOwnershipKeys(site, owner string) map[string]string {
	out := map[string]string{}
	for _, g := range ownershipGenerations {
		if key := s.ownershipKey(g, site, owner); key != nil {
			out[g.derived+"."+owner] = hex.EncodeToString(key)
		}
	}
	return out
}

// ownershipGeneration names a key of the site, and those that were derived from it.
type ownershipGeneration struct{ site, derived string }

var ownershipGenerations = []ownershipGeneration{{OwnershipKey, OwnershipKeys}, {PreviousOwnershipKey, PreviousOwnershipKeys}}

// ownershipKey is the key of an owner; nil if it is not known here. The key of the site comes before one that was derived
// elsewhere.
func (s *Secrets) ownershipKey(g ownershipGeneration, site, owner string) []byte {
	if s == nil {
		return nil
	}
	if key, err := ParseOwnershipKey(s.Values["auth"][g.site]); err == nil {
		return deriveOwnershipKey(key, site, owner)
	}
	key, _ := ParseOwnershipKey(s.Values["auth"][g.derived+"."+owner])
	return key
}

// OwnershipKeyMissing reports whether the site has a key, and what an owner needs of it is not known here.
func (s *Secrets) OwnershipKeyMissing(site, owner string) bool {
	return s.HasOwnershipKey() && len(s.OwnershipKeys(site, owner)) == 0
}

// HasOwnershipKey reports whether the site has a key, whether its value is known here or not.
func (s *Secrets) HasOwnershipKey() bool { return len(s.OwnershipSecrets()) > 0 }

// OwnershipSecrets are the names and values of the section auth that are ownership keys.
func (s *Secrets) OwnershipSecrets() map[string]string {
	out := map[string]string{}
	if s == nil {
		return out
	}
	for name, value := range s.Values["auth"] {
		if IsOwnershipSecret(name) {
			out[name] = value
		}
	}
	return out
}
