package ledger

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// Files of the signing key, in the folder chain of a ledger.
const (
	chainFolder = "chain"
	keyFile     = "receipt.key" // the seed, mode 0600
	publicFile  = "receipt.pub" // the public keys, one a line, the present one last
)

// algorithm begins the text of a public key.
const algorithm = "ed25519:"

// domain precedes what is signed: a signature of a receipt is valid for nothing else.
const domain = "homestak-gitops receipt\n"

// signature begins the last member of a signed document, which signs everything before.
const signature = ",\n  \"signature\": \""

// publicText is a public key as receipts and people write it.
func publicText(key ed25519.PublicKey) string {
	return algorithm + base64.RawURLEncoding.EncodeToString(key)
}

// ParseKey checks the text of a public key, as Keys and receipts have it.
func ParseKey(text string) (ed25519.PublicKey, error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(text), algorithm)
	key, err := base64.RawURLEncoding.DecodeString(encoded)
	if !ok || err != nil || len(key) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("%.80q is not the key of receipts: want %s and 43 characters, as history verify prints it", text, algorithm)
	}
	return key, nil
}

func (l *Ledger) chain() string { return filepath.Join(l.dir, chainFolder) }

// openKey reads the signing key, and makes it if there is none. The public key is written first: a crash between the two
// leaves one that signed nothing.
func (l *Ledger) openKey() error {
	return durable.Exclusively(l.chain(), func() error {
		name := filepath.Join(l.chain(), keyFile)
		text, err := durable.ReadPrivate(name)
		if err == nil {
			seed, err := base64.RawURLEncoding.DecodeString(strings.TrimSpace(string(text)))
			if err != nil || len(seed) != ed25519.SeedSize {
				return fmt.Errorf("%s is not usable: restore it from a backup; if you remove it, the next start makes another key, and history verify names both", name)
			}
			l.key = ed25519.NewKeyFromSeed(seed)
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		public, private, err := ed25519.GenerateKey(nil)
		if err != nil {
			return err
		}
		known, err := l.Keys()
		if err != nil {
			return err
		}
		list := strings.Join(append(known, publicText(public)), "\n") + "\n"
		if err := durable.ReplaceForOwner(filepath.Join(l.chain(), publicFile), []byte(list)); err != nil {
			return err
		}
		l.key = private
		return durable.ReplaceForOwner(name, []byte(base64.RawURLEncoding.EncodeToString(private.Seed())+"\n"))
	})
}

// Keys are the public keys that may sign here: those of a chain from below, and those of the ledger, the present one last. There are
// several after the private key was lost.
func (l *Ledger) Keys() ([]string, error) {
	var out []string
	for _, name := range []string{childKeys, publicFile} {
		text, err := os.ReadFile(filepath.Join(l.chain(), name))
		if err := ignoreAbsent(err); err != nil {
			return nil, err
		}
		for key := range strings.FieldsSeq(string(text)) {
			if !slices.Contains(out, key) {
				out = append(out, key)
			}
		}
	}
	return out, nil
}

// seal writes a document with its signature. Its last member is Signature, which must be empty, and its Key that of the key.
func seal(key ed25519.PrivateKey, document any) (text []byte, signed string, err error) {
	b, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return nil, "", err
	}
	body := bytes.TrimSuffix(b, []byte("\n}"))
	signed = base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, append([]byte(domain), body...)))
	return slices.Concat(body, []byte(signature), []byte(signed), []byte("\"\n}\n")), signed, nil
}

// sealed checks the signature of a document by a key that it names.
func sealed(text []byte, key string) bool {
	i := bytes.LastIndex(text, []byte(signature))
	public, err := ParseKey(key)
	if i < 0 || err != nil {
		return false
	}
	encoded, ok := bytes.CutSuffix(text[i+len(signature):], []byte("\"\n}\n"))
	signed, err := base64.RawURLEncoding.DecodeString(string(encoded))
	return ok && err == nil && ed25519.Verify(public, append([]byte(domain), text[:i]...), signed)
}
