package keys

// Provisioning tokens authenticate a node to its parent. A token is two segments in base64url without padding, with
// a dot between: the payload (compact JSON) and its signature, HMAC-SHA256 over the ASCII bytes of the first
// segment.
//
// A parent signs with its current key and also accepts the previous one, so that rotation locks no node out.
// docs/protocol.md says what a client does with a token.

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// tokenVersion is the version of the payload.
const tokenVersion = 1

// MaxTokenLength bounds a token, in bytes. Names are DNS labels, so a real one is far shorter.
const MaxTokenLength = 1024

// keySize is the length of a key in bytes.
const keySize = 32

// Claims is the payload. The order of its fields is part of the format.
type Claims struct {
	Version int    `json:"v"`
	Node    string `json:"n"`   // whose token it is
	Spec    string `json:"s"`   // its spec when the token was minted, for people: the site decides which one is served
	Issued  int64  `json:"iat"` // Unix seconds; see Early

	// Tokens of the predecessor lack the rest.
	Expires int64  `json:"exp,omitempty"` // Unix seconds; 0: never
	Key     string `json:"kid,omitempty"` // ID of the key that signed it; untrusted until the token is verified

	// Tokens of versions before 0.2 lack the rest, see docs/decisions/0017-secrets-and-tokens.md.
	Number     int64 `json:"num,omitempty"`  // among the tokens of the node: a greater one is newer
	Generation int   `json:"gen,omitempty"`  // how often the tokens of the node had been revoked when it was minted
	Once       bool  `json:"once,omitempty"` // it is only for getting the next one
	Join       bool  `json:"join,omitempty"` // it is only for joining; see Book.Join
}

// TokenLifetime is the default lifetime of a token. A node that fetches in the second half of it gets a new one.
const TokenLifetime = 24 * time.Hour

// Key signs tokens. The zero value signs nothing.
type Key struct {
	ID     string // "" for a key of the predecessor, whose tokens name none
	secret [keySize]byte
}

// NewKey makes a key of 32 random bytes.
func NewKey() Key {
	var k Key
	_, _ = rand.Read(k.secret[:]) // it never fails (crypto/rand)
	k.ID = k.name()
	return k
}

// ParseKey reads a key: 64 hexadecimal digits. The error does not show them.
func ParseKey(text string) (Key, error) {
	raw, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil || len(raw) != keySize {
		return Key{}, fmt.Errorf("a signing key is %d hexadecimal digits (%d bytes), this text is something else", 2*keySize, keySize)
	}
	k := Key{secret: [keySize]byte(raw)}
	if k.isZero() {
		return Key{}, errors.New("the signing key is all zeros: make a random one")
	}
	k.ID = k.name()
	return k, nil
}

// Predecessor is the key for tokens that the predecessor minted: they name no key.
func (k Key) Predecessor() Key {
	k.ID = ""
	return k
}

// Text is the key as ParseKey reads it. It is a secret.
func (k Key) Text() string { return hex.EncodeToString(k.secret[:]) }

// String keeps the key out of everything that prints one.
func (k Key) String() string { return "signing key " + k.ID }

// GoString is as String.
func (k Key) GoString() string { return k.String() }

func (k Key) isZero() bool { return k.secret == [keySize]byte{} }

// name is made of the key by a hash of its own domain, and so says nothing of it.
func (k Key) name() string {
	sum := sha256.Sum256(append([]byte("homestak-gitops signing key\n"), k.secret[:]...))
	return hex.EncodeToString(sum[:4])
}

// sign is the signature of an encoded payload.
func (k Key) sign(payload string) []byte {
	mac := hmac.New(sha256.New, k.secret[:])
	mac.Write([]byte(payload))
	return mac.Sum(nil)
}

// MintToken signs claims. It fills in the version and the ID of the key.
func (k Key) MintToken(c Claims) (string, error) {
	switch {
	case k.isZero():
		return "", errors.New("minting a token: there is no signing key")
	case c.Node == "" || c.Spec == "":
		return "", errors.New("minting a token: it needs the names of a node and of its spec")
	}
	c.Version, c.Key = tokenVersion, k.ID
	payload, err := encode(c)
	if err != nil {
		return "", err
	}
	text := payload + "." + base64.RawURLEncoding.EncodeToString(k.sign(payload))
	if len(text) > MaxTokenLength {
		return "", fmt.Errorf("minting a token: the token would have %d characters, %d are the most", len(text), MaxTokenLength)
	}
	return text, nil
}

func encode(c Claims) (string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("minting a token: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(b), nil
}

// Keys are the keys by which a parent verifies tokens: the first one signs, and the others are accepted as well.
type Keys []Key

// TokenBook knows which tokens of a node count. Its methods may be called from any goroutine.
type TokenBook interface {
	// Admit says why a token whose signature is valid does not count now, as a *wire.Error; nil if it does.
	Admit(c Claims, now time.Time) error
}

// Verify checks a token against the node that a request is about. It accepts a token until it expires.
func (ks Keys) Verify(text, node string, now time.Time) (Claims, error) {
	return ks.VerifyBy(nil, text, node, now)
}

// VerifyBy is Verify where a book decides until when a token counts. The steps are in the order of
// the protocol, so the first that fails decides the code of the error, a *wire.Error.
func (ks Keys) VerifyBy(book TokenBook, text, node string, now time.Time) (Claims, error) {
	payload, signature, c, err := split(text)
	if err != nil {
		return Claims{}, err
	}
	if err := ks.verify(payload, signature, c); err != nil {
		return Claims{}, err
	}
	switch {
	case c.Version != tokenVersion:
		return Claims{}, wire.Errorf(wire.CodeNoCredential, "the token has version %d, this program reads %d", c.Version, tokenVersion)
	case c.Node == "" || c.Spec == "":
		return Claims{}, wire.Errorf(wire.CodeNoCredential, "the token does not name a node and its spec")
	}
	if book != nil {
		err = book.Admit(c, now)
	} else {
		err = c.Expired(now)
	}
	switch {
	case err != nil:
		return Claims{}, err
	case c.Node != node:
		return Claims{}, wire.Errorf(wire.CodeNotYours, "the token is for another node")
	}
	return c, nil
}

// Expired says that a token has expired, as a *wire.Error; nil if it has not.
func (c Claims) Expired(now time.Time) error {
	if c.Expires == 0 || now.Unix() < c.Expires {
		return nil
	}
	return wire.Errorf(wire.CodeExpired, "the token has expired at %s", time.Unix(c.Expires, 0).UTC().Format(time.RFC3339))
}

// Life is the lifetime of the token that replaces this one; 0 if it never expires. It is as long as this one's,
// except for tokens of earlier versions, which were valid for a year, and of the predecessor, which never expired.
func (c Claims) Life() time.Duration {
	life := time.Duration(c.Expires-c.Issued) * time.Second
	switch {
	case c.Key == "", c.Number == 0 && c.Expires != 0 && life > TokenLifetime:
		return TokenLifetime
	case c.Expires == 0:
		return 0
	default:
		return max(life, time.Second)
	}
}

// verify checks the signature.
func (ks Keys) verify(payload string, signature []byte, c Claims) error {
	for _, k := range ks {
		if k.ID != c.Key || k.isZero() {
			continue
		}
		if hmac.Equal(signature, k.sign(payload)) { // takes the same time wherever they differ
			return nil
		}
		return wire.Errorf(wire.CodeRefused, "the signature of the token is not valid")
	}
	return wire.Errorf(wire.CodeRefused, "the token was signed by a key that this server does not have")
}

// InspectToken reads a token without verifying it.
func InspectToken(text string) (Claims, error) {
	_, _, c, err := split(text)
	return c, err
}

// split takes a token apart.
func split(text string) (payload string, signature []byte, c Claims, err error) {
	malformed := func(why string) error { return wire.Errorf(wire.CodeNoCredential, "%s", why) }
	payload, second, two := strings.Cut(text, ".")
	switch {
	case text == "":
		return "", nil, Claims{}, malformed("there is no token")
	case len(text) > MaxTokenLength:
		return "", nil, Claims{}, malformed("the token is too long")
	case !two || strings.Contains(second, "."):
		return "", nil, Claims{}, malformed("the token does not have two segments")
	}
	// Strict: one token is one text. DecodeString alone would pass over line breaks.
	strict := base64.RawURLEncoding.Strict()
	raw, err := strict.DecodeString(payload)
	if err != nil || strings.ContainsAny(text, "\r\n") {
		return "", nil, Claims{}, malformed("the payload of the token is not base64url")
	}
	if signature, err = strict.DecodeString(second); err != nil {
		return "", nil, Claims{}, malformed("the signature of the token is not base64url")
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", nil, Claims{}, malformed("the payload of the token is not valid")
	}
	return payload, signature, c, nil
}

// tokenSkew is the time by which the clock of a token's issuer may be ahead of this one.
const tokenSkew = 5 * time.Minute

// Early reports whether a token was issued in the future. Only the parent signs, so its clock was ahead, or is behind now.
// Such a token counts, or a wrong clock would lock out a whole tree, but it is replaced at once.
func (c Claims) Early(now time.Time) bool { return c.Issued > now.Add(tokenSkew).Unix() }

// Due reports whether the node should get a new token with this answer: it is past half its life,
// another key signs by now, it is good for one use or for longer than tokens are now, or it was issued in the future.
func (ks Keys) Due(c Claims, now time.Time) bool {
	if len(ks) > 0 && c.Key != ks[0].ID || c.Once {
		return true
	}
	if c.Expires != 0 && (c.Early(now) || c.Life() < time.Duration(c.Expires-c.Issued)*time.Second) {
		return true
	}
	return c.Expires != 0 && now.Unix() >= c.Issued+(c.Expires-c.Issued)/2
}
