package keys

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Minted is a token that was made.
type Minted struct {
	Node    string     `json:"node"`
	Spec    string     `json:"spec"`
	Key     string     `json:"kid"`
	Expires *time.Time `json:"expires"`         // nil: never
	Token   string     `json:"token,omitempty"` // "" after MoveTo
	Join    string     `json:"join,omitempty"`  // the command by which a machine joins; "" unless the token is for that
}

// MoveTo writes the token to a file that only its owner can read, and returns the rest. It replaces the file's
// content.
func (m Minted) MoveTo(file string) (Minted, error) {
	if err := durable.Replace(file, []byte(m.Token+"\n")); err != nil {
		return m, fmt.Errorf("write the token of node %s: %w", m.Node, err)
	}
	m.Token = ""
	return m, nil
}

// Mint makes a token for a node with the signing key. Without one it fails: only a
// server makes one. It is good until the node has used the one that it gets for it. A life of 0 never ends, and such
// a token is not replaced.
func (f Folder) Mint(node, spec string, life time.Duration, now time.Time) (Minted, error) {
	if spec == "" {
		return Minted{}, fmt.Errorf("node %s has no spec, so there is nothing that it could fetch\nname one in its node block: spec = spec.NAME", node)
	}
	return f.mintClaims(Claims{Node: node, Spec: spec, Once: life != 0}, life, now)
}

// ForAgent is in the tokens of children in place of a spec, if they have none.
const ForAgent = "agent"

// MintJoin makes a token by which one machine joins as a host; see Book.Join.
func (f Folder) MintJoin(host string, life time.Duration, now time.Time) (Minted, error) {
	if life <= 0 || life > TokenLifetime {
		return Minted{}, fmt.Errorf("a token for joining is valid for at most %s", TokenLifetime)
	}
	return f.mintClaims(Claims{Node: host, Spec: ForAgent, Once: true, Join: true}, life, now)
}

func (f Folder) mintClaims(c Claims, life time.Duration, now time.Time) (Minted, error) {
	if life != 0 && life < time.Minute {
		return Minted{}, errors.New("a token must be valid for at least a minute")
	}
	ring, err := f.Read()
	if err != nil {
		return Minted{}, err
	}
	book, err := f.OpenBook()
	if err != nil {
		return Minted{}, err
	}
	m := Minted{Node: c.Node, Spec: c.Spec, Key: ring[0].ID}
	c.Issued = now.Unix()
	err = f.changeIssued(c.Node, func(i issue) issue {
		i.Minted = max(i.Minted, book.used[c.Node].Number) + stride
		c.Number, c.Generation = i.Minted, i.Generation
		return i
	})
	if err != nil {
		return Minted{}, err
	}
	if life != 0 {
		at := now.Add(life).UTC().Truncate(time.Second)
		m.Expires, c.Expires = &at, at.Unix()
	}
	m.Token, err = ring[0].MintToken(c)
	return m, err
}

// Inspection is the content of a token, without its signature.
type Inspection struct {
	Node    string     `json:"node"`
	Spec    string     `json:"spec"`
	Key     string     `json:"kid"` // "" for a token of the predecessor
	Issued  time.Time  `json:"issued"`
	Expires *time.Time `json:"expires"`           // nil: never
	Valid   *bool      `json:"valid"`             // nil: not verified
	Problem string     `json:"problem,omitempty"` // why it is not valid
}

// Inspect reads a token without verifying it.
func Inspect(text string) (Inspection, error) {
	c, err := InspectToken(strings.TrimSpace(text))
	if err != nil {
		return Inspection{}, err
	}
	i := Inspection{Node: c.Node, Spec: c.Spec, Key: c.Key, Issued: time.Unix(c.Issued, 0).UTC()}
	if c.Expires != 0 {
		at := time.Unix(c.Expires, 0).UTC()
		i.Expires = &at
	}
	return i, nil
}

// Verified adds whether the token is valid. The error, a *wire.Error, says why it is not.
func (i Inspection) Verified(ring Ring, book *Book, text string, now time.Time) (Inspection, error) {
	_, err := ring.Tokens().VerifyBy(book, strings.TrimSpace(text), i.Node, now)
	valid := err == nil
	i.Valid = &valid
	if p, ok := errors.AsType[*wire.Error](err); ok {
		i.Problem = cmp.Or(p.Message, p.Code.Kind().Message)
	}
	return i, err
}

// Text shows it to people.
func (i Inspection) Text() string {
	expires, valid := "never", "not verified"
	if i.Expires != nil {
		expires = i.Expires.Format(time.RFC3339)
	}
	switch {
	case i.Valid != nil && *i.Valid:
		valid = "yes"
	case i.Valid != nil:
		valid = "no: " + i.Problem
	}
	return fmt.Sprintf("node     %q\nspec     %q\nkey      %q\nissued   %s\nexpires  %s\nvalid    %s\n", i.Node, i.Spec, i.Key, i.Issued.Format(time.RFC3339), expires, valid)
}

// Listed are the keys of a ring without what is secret.
type Listed struct {
	Keys []listedKey `json:"keys"` // the first one signs
}

// listedKey is a key of it.
type listedKey struct {
	ID      string    `json:"kid"`
	Created time.Time `json:"created"`
}

// Document lists the keys.
func (r Ring) Document() Listed {
	out := Listed{Keys: []listedKey{}}
	for _, e := range r {
		out.Keys = append(out.Keys, listedKey{e.ID, e.Created})
	}
	return out
}

// Describe lists the keys for people.
func (r Ring) Describe() string {
	var out strings.Builder
	for i, e := range r {
		does := "signs"
		if i > 0 {
			does = "is still accepted"
		}
		fmt.Fprintf(&out, "key %s of %s %s\n", e.ID, e.Created.Format(time.DateOnly), does)
	}
	return out.String()
}
