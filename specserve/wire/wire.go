// Package wire defines the protocol of parent and child: paths, headers, documents and their limits. Server and
// client share it.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// MaxSpec is the most that a child reads of a spec or a configuration, in bytes.
const MaxSpec = 8 << 20

// Path is the path of an endpoint, or what is before the name of which it is.
type Path string

// The paths.
const (
	HealthPath     Path = "/health"
	RepositoryPath Path = "/site.git"
	SpecPath       Path = "/spec/"     // the spec of a node
	ConfigPath     Path = "/config/"   // the configuration for the subtree of a child of type pve
	WaitPath       Path = "/wait/"     // the long poll of a child
	ReportPath     Path = "/report/"   // the reports of a child
	ReceiptsPath   Path = "/receipts/" // its receipts
	QueuePath      Path = "/queue/"    // the tasks for a child, and their results
	JoinPath       Path = "/join/"     // by which a host joins
	ImagePath      Path = "/image/"    // an image, by its SHA-256 in hex
	AgentPath      Path = "/agent/"    // the program, for an operating system and architecture as Go names them: linux-amd64
)

// Of is the path of a name.
func (p Path) Of(name string) string { return string(p) + url.PathEscape(name) }

// VersionHeader has the version of the program in the answer with it. The entity tag is its SHA-256, in hex.
const VersionHeader = "Homestak-Version"

// KeepHeader says in the same answer why the child that asks is to keep the program that it has; missing if it is not.
const KeepHeader = "Homestak-Keep"

// bearer comes before the token in the header Authorization (RFC 6750, 2.1).
const bearer = "Bearer "

// SetToken adds the credential to a request.
func SetToken(h http.Header, token string) {
	if token != "" {
		h.Set("Authorization", bearer+token)
	}
}

// Token takes the credential out of a request; "" if there is none of the right form.
func Token(h http.Header) string {
	value := h.Get("Authorization")
	if len(value) <= len(bearer) || !strings.EqualFold(value[:len(bearer)], bearer) { // RFC 9110, 11.1
		return ""
	}
	return strings.TrimSpace(value[len(bearer):])
}

// Spec is the response to GET /spec/{identity}: the resolved spec of the node, with additional members of its own.
//
// Its ETag (RFC 9110, 8.8.3) is a hash of it without the token, since a new token is not a new spec. A server that owes the
// node a new token (keys.Keys.Due) sends 200 with the whole document even if the tag matches, since a 304 cannot carry one.
type Spec struct {
	*spec.Spec

	// Pins are the server's key in use and the next one. They replace those that the child has.
	Pins []string `json:"pins"`
	// Token replaces the one of the child; "" leaves it.
	Token string `json:"token,omitempty"`
	// Agent is the SHA-256 of the program by os-arch, in hex: what GET /agent/{os}-{arch} gives.
	Agent map[string]string `json:"agent,omitempty"`
}

// Answer is the answer as a child takes it.
type Answer struct {
	// Spec is the document of the spec alone. It has everything that the server wrote, also what
	// this program does not know yet: a newer one may read it later.
	Spec  []byte
	Pins  []Pin
	Token string // "": keep the one that you have
}

// ReadSpec reads the answer for a node, and checks it.
func ReadSpec(body []byte, identity string) (Answer, error) {
	var a Answer
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return Answer{}, fmt.Errorf("the answer is not a JSON document: %w", err)
	}
	// Taken by their exact names, as they are taken out: encoding/json is not so particular.
	var pins []string
	var agent map[string]string
	for name, value := range map[string]any{"pins": &pins, "token": &a.Token, "agent": &agent} {
		if raw := members[name]; raw != nil {
			if err := json.Unmarshal(raw, value); err != nil {
				return Answer{}, fmt.Errorf("%s in the answer is not valid: %w", name, err)
			}
		}
		delete(members, name)
	}
	document, err := json.Marshal(members) // sorted by name, so the same spec gives the same bytes
	if err != nil {
		return Answer{}, err
	}
	s, err := spec.Read(document)
	switch {
	case err != nil:
		return Answer{}, err
	case s.Node != identity:
		return Answer{}, fmt.Errorf("the answer is the spec of %.80q, and %q was asked for", s.Node, identity)
	}
	if a.Pins, err = ParsePins(pins); err != nil {
		return Answer{}, fmt.Errorf("the answer has no good pins: %w", err)
	}
	for name, sum := range agent {
		if !hash.MatchString(sum) {
			return Answer{}, fmt.Errorf("the answer has no checksum of the agent for %.40q", name)
		}
	}
	if strings.ContainsFunc(a.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return Answer{}, errors.New("the answer has a token that cannot be sent")
	}
	a.Spec = document
	return a, nil
}

// hash is a SHA-256 in hex.
var hash = regexp.MustCompile(`^[0-9a-f]{64}$`)
