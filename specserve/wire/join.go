package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// joinVersion is the version of both documents.
const joinVersion = 1

// Join is the request of a host that joins. Its token is for that alone.
type Join struct {
	Version int `json:"version"`
	// Key is a random secret of the machine, 64 hexadecimal digits: an answer that got lost is repeated for the same
	// one, and for no other.
	Key string `json:"key"`
	// Proof replaces a token if a host of the site asks another parent; see HandoverSide.Proof.
	Proof string `json:"proof,omitempty"`
}

// HandoverSide is a side of a handover.
type HandoverSide string

// The sides of a handover.
const (
	HandoverChild  HandoverSide = "child"
	HandoverParent HandoverSide = "parent"
)

// Proof is what a side shows to prove that it knows the handover key of the host. It is bound to the key of the server, so that it
// is worth nothing to a machine in between, and to that of the request.
func (side HandoverSide) Proof(handover []byte, host string, server Pin, key string) string {
	mac := hmac.New(sha256.New, handover)
	fmt.Fprintf(mac, "%s\n%s\n%s\n%s\n", side, host, server, key)
	return hex.EncodeToString(mac.Sum(nil))
}

// NewJoin is a request with the key of a machine.
func NewJoin(key string) Join { return Join{Version: joinVersion, Key: key} }

// Check validates it.
func (j Join) Check() error {
	switch {
	case j.Version != joinVersion:
		return fmt.Errorf("version is %d, this program reads %d", j.Version, joinVersion)
	case !hash.MatchString(j.Key):
		return errors.New("key is not 64 hexadecimal digits")
	}
	return nil
}

// Joined is the answer: what a child needs for its first question.
type Joined struct {
	Version  int               `json:"version"`
	Identity string            `json:"identity"`
	Pins     []string          `json:"pins"`
	Token    string            `json:"token"`
	Waiting  bool              `json:"waiting"`         // the site has no host of this name yet
	Agent    map[string]string `json:"agent,omitempty"` // as in Spec
	Proof    string            `json:"proof,omitempty"` // of the parent, if the host showed one
}

// NewJoined is an answer.
func NewJoined(identity, token string, pins []string, waiting bool, agent map[string]string) Joined {
	return Joined{Version: joinVersion, Identity: identity, Pins: pins, Token: token, Waiting: waiting, Agent: agent}
}

// ReadJoined reads the answer for a host, and checks it. No error shows the token.
func ReadJoined(body []byte, identity string) (Joined, []Pin, error) {
	var j Joined
	if json.Unmarshal(body, &j) != nil {
		return Joined{}, nil, errors.New("the answer is not the JSON document that is expected")
	}
	switch {
	case j.Version != joinVersion:
		return Joined{}, nil, fmt.Errorf("the answer has version %d, this program reads %d", j.Version, joinVersion)
	case j.Identity != identity:
		return Joined{}, nil, fmt.Errorf("the answer is for %.80q, and %q was asked for", j.Identity, identity)
	case j.Token == "" || strings.ContainsFunc(j.Token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return Joined{}, nil, errors.New("the answer has no token that can be sent")
	}
	for name, sum := range j.Agent {
		if !hash.MatchString(sum) {
			return Joined{}, nil, fmt.Errorf("the answer has no checksum of the agent for %.40q", name)
		}
	}
	pins, err := ParsePins(j.Pins)
	if err != nil {
		return Joined{}, nil, fmt.Errorf("the answer has no good pins: %w", err)
	}
	return j, pins, nil
}

// JoinFileName is the file of a machine that joins at its first boot.
const JoinFileName = "/etc/homestak-gitops/join.json"

// JoinFile has the values that a machine joins with.
type JoinFile struct {
	URL   string `json:"url"`   // of the server of the parent
	Pin   string `json:"pin"`   // of its key; several are separated by commas
	Token string `json:"token"` // for joining
}

// ReadJoinFile reads the file, which root alone may read. The error does not show the token.
func ReadJoinFile(name string) (JoinFile, error) {
	data, err := durable.ReadPrivate(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return JoinFile{}, fmt.Errorf("join which parent? Give URL, --pin and --token as token mint NAME --join prints them, or write them into %s", name)
	case err != nil:
		return JoinFile{}, err
	}
	var j JoinFile
	if json.Unmarshal(data, &j) != nil {
		return JoinFile{}, fmt.Errorf("%s is not a JSON object with url, pin and token", name)
	}
	return j, nil
}

// Save writes the file, with mode 0600.
func (j JoinFile) Save(name string) error {
	text, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return durable.Replace(name, append(text, '\n'))
}

// IsIdentity reports whether a text can be the name of a host or node.
func IsIdentity(name string) bool { return label().MatchString(name) }
