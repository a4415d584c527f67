// Package asroot applies the spec of a host to the machine of its agent. The agent has no privileges, so a helper that runs
// as root does it. The helper takes one kind of request, and believes none of it: see Server.
//
// A connection has one request. The helper sends a nonce, the agent the request with that nonce, and the helper lines
// about the progress and one result. All are lines of JSON.
package asroot

import (
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Socket is where the helper of a machine listens.
const Socket = "/run/homestak-gitops-host.sock"

// version is that of the protocol. Both sides are one program, so there is no older one to talk to.
const version = 1

// Limits of a line, in bytes.
const (
	maxRequest = 4 << 10
	maxMessage = 64 << 20
)

// request asks for the spec of the host at a commit.
type request struct {
	Version int    `json:"version"`
	Nonce   string `json:"nonce"`
	Commit  string `json:"commit"`
	Digest  string `json:"digest"` // of the resolved spec
	DryRun  bool   `json:"dry_run"`
}

// message is what the helper sends: first the nonce, then lines of progress, and at the end the result.
type message struct {
	Nonce  string  `json:"nonce,omitempty"`
	Step   string  `json:"step,omitempty"`
	State  string  `json:"state,omitempty"` // of the step; "": it began
	Result *result `json:"result,omitempty"`
}

// result is how a request ended.
type result struct {
	Error   string `json:"error,omitempty"`
	Lost    bool   `json:"lost,omitempty"`    // the outcome is unknown
	Stopped bool   `json:"stopped,omitempty"` // it ended before a step, since the agent asked for that
	Seen    []byte `json:"seen,omitempty"`    // of a dry run: a Seen
}

// digest identifies a resolved spec.
func digest(s *spec.Spec) (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode the spec: %w", err)
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// Seen is the observed state of the machine.
type Seen struct {
	Have     *spec.Spec
	Unread   []string
	Unknown  []model.Unknown
	Findings diag.List

	want *spec.Spec
}

// seenOf makes of an observation what is sent.
func seenOf(s *converge.State) Seen {
	o := s.Observed()
	r := o.State[converge.Address(s.Want.Node)]
	return Seen{Have: s.Have, Unread: r.Unread, Unknown: o.Unknown, Findings: o.Findings}
}

// Observed is the state as a part of the observation of a host.
func (s *Seen) Observed() model.Observed {
	addr := converge.Address(s.want.Node)
	return model.Observed{
		State:   model.State{addr: {Addr: addr, Spec: s.Have, Node: s.want.Node, Unread: s.Unread}},
		Unknown: s.Unknown, Findings: s.Findings,
	}
}

// Unplanned finds a difference that is not among the changes of a plan; false if there is none.
func (s *Seen) Unplanned(planned []plan.Change) (plan.Change, bool) {
	for _, c := range plan.Differences(s.want, s.Have) {
		unread := slices.ContainsFunc(s.Unread, func(p string) bool { return p == c.Path || strings.HasPrefix(c.Path, p+".") })
		if !unread && !converge.Planned(planned, c) {
			return c, true
		}
	}
	return plan.Change{}, false
}

// encode and decode are for what has fields that documents of specs leave out, which JSON would lose.
func (s Seen) encode() ([]byte, error) {
	var out strings.Builder
	err := gob.NewEncoder(&out).Encode(s)
	return []byte(out.String()), err
}

func decode(text []byte, want *spec.Spec) (*Seen, error) {
	s := &Seen{want: want}
	if err := gob.NewDecoder(strings.NewReader(string(text))).Decode(s); err != nil {
		return nil, fmt.Errorf("the answer of the helper cannot be read: %w", err)
	}
	if s.Have == nil {
		s.Have = spec.Empty(want.Node)
	}
	return s, nil
}
