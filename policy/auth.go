package policy

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Kinds of credentials in a request.
const (
	NoCredential = "none"
	SiteToken    = "site_token"
	NodeToken    = "node_token"
	Provisioning = "provisioning"
)

// The codes of a refusal.
const (
	unauthenticated = 401 // the client is unknown
	Forbidden       = 403 // the client is known, but not permitted
)

const allowRule = "allow"

// authQuestion asks for both; an allow that does not hold is undefined, hence the list.
const authQuestion = `{"allow": [a | a := data.homestak.auth.allow], "deny": data.homestak.auth.deny}`

// AuthInput describes a request to the server.
type AuthInput struct {
	Method, Path string
	Identity     string         // of the node it is about; "" if it is about none
	Remote       string         // address it comes from, with or without port; "" if unknown
	Posture      *model.Posture // of that node, and not changed later; nil if it has none
	Credential   Credential
}

// Credential is the verified credential of a request.
type Credential struct {
	Kind     string // NoCredential, SiteToken, NodeToken or Provisioning; "" is NoCredential
	Valid    bool   // genuine and not expired
	Identity string // the node it was given to; "" for a site's token
}

// Decision is the result for a request. The zero Decision refuses it.
type Decision struct {
	Allow  bool
	Code   int    // Unauthenticated or Forbidden; 0 if allowed
	Reason string // for the log, in one line; it holds no credential
}

// Authorize decides a request. It is allowed if some rule allows it and none denies it. Policies
// that fail refuse it as forbidden, and the reason names them.
func (s *Set) Authorize(ctx context.Context, in AuthInput) Decision {
	if !s.works() {
		return Decision{Code: Forbidden, Reason: s.whyNot()[0].Summary}
	}
	if in.Remote = address(in.Remote); in.Credential.Kind == "" {
		in.Credential.Kind = NoCredential
	}
	if d, known := s.decided.get(in); known {
		return d
	}
	if s.apart != nil && s.hasOwn() {
		a, err := s.apart.Ask(ctx, Question{Files: s.own(), Request: &in})
		if err != nil {
			return Decision{Code: Forbidden, Reason: s.failure([]string{authPackage}, failedApart(err)).Summary}
		}
		s.decided.put(in, a.Decision)
		return a.Decision
	}
	answer, err := within(ctx, &s.limits, func(ctx context.Context, stop topdown.Cancel) (*ast.Term, error) {
		return ask(ctx, s.queries[authPackage], ast.LazyObject(in.document()), stop)
	})
	if err != nil {
		return Decision{Code: Forbidden, Reason: s.failure([]string{authPackage}, err).Summary}
	}
	d := in.decision(answer)
	s.decided.put(in, d)
	return d
}

func (in AuthInput) decision(answer *ast.Term) Decision {
	denied, isSet := at(answer, denyRule).(ast.Set)
	allow, isList := at(answer, allowRule).(*ast.Array)
	switch {
	case !isSet:
		return Decision{Code: Forbidden, Reason: "homestak.auth.deny is not a set"}
	case denied.Len() > 0:
		return refusal(denied)
	case isList && allow.Len() == 1 && allow.Elem(0).Value.Compare(ast.Boolean(true)) == 0:
		return Decision{Allow: true}
	case in.Credential.Kind == NoCredential:
		return Decision{Code: unauthenticated, Reason: "a credential is required"}
	default:
		return Decision{Code: Forbidden, Reason: fmt.Sprintf("a credential of kind %s is not accepted here", diag.Line(clip(in.Credential.Kind)))}
	}
}

// refusal reads why a request is denied. The lowest code of several reasons counts, so that an
// unknown client does not learn what is forbidden.
func refusal(denied ast.Set) Decision {
	d := Decision{}
	denied.Until(func(t *ast.Term) bool {
		code, reason := Forbidden, "a rule of homestak.auth denies, but its entry is neither a string nor an object with a message"
		if text, ok := stringOf(t); ok {
			reason = text
		} else if o, ok := t.Value.(ast.Object); ok {
			if text, ok := stringOf(o.Get(ast.StringTerm("message"))); ok {
				reason = text
			}
			if c := o.Get(ast.StringTerm("code")); c != nil && c.Value.Compare(ast.Number("401")) == 0 {
				code = unauthenticated
			}
		}
		if d.Code == 0 || code < d.Code {
			d = Decision{Code: code, Reason: diag.Line(clip(reason))}
		}
		return false
	})
	return d
}

// document is the input of the rules of homestak.auth.
func (in AuthInput) document() map[string]any {
	var posture any
	if in.Posture != nil {
		posture = postureDocument(in.Posture)
	}
	return map[string]any{
		"version": version, "method": in.Method, "path": in.Path, "identity": text(in.Identity), "remote": text(in.Remote), "posture": posture,
		"credential": map[string]any{"kind": in.Credential.Kind, "valid": in.Credential.Valid, "identity": text(in.Credential.Identity)},
	}
}

// address returns the bare address of a peer, IPv4 unmapped, "" if it is not an address.
func address(remote string) string {
	ip, err := netip.ParseAddr(remote)
	if err != nil {
		peer, err := netip.ParseAddrPort(remote)
		if err != nil {
			return ""
		}
		ip = peer.Addr()
	}
	return ip.Unmap().WithZone("").String()
}

// Limits of the cache of decisions: enough for 10,000 nodes that ask in turn, but clients must not
// be able to fill the memory.
const (
	maxDecisions = 16_384
	maxPath      = 256 // bytes; a longer path is decided each time
)

// decisions caches decisions. The same request has the same decision, because the input of auth has
// no time. Requests come from many goroutines, so a mutex protects the map.
type decisions struct {
	mutex sync.Mutex
	made  map[AuthInput]Decision
}

func (d *decisions) get(in AuthInput) (Decision, bool) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	made, known := d.made[in]
	return made, known
}

func (d *decisions) put(in AuthInput, made Decision) {
	if len(in.Path)+len(in.Identity)+len(in.Credential.Identity) > maxPath {
		return
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.made == nil || len(d.made) >= maxDecisions {
		d.made = map[AuthInput]Decision{}
	}
	d.made[in] = made
}
