package specserve

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// The secrets of section auth; see hcl.ParseSecrets.
const (
	section    = "auth"
	siteToken  = "site_token"
	nodeTokens = "node_tokens."
	signingKey = "signing_key"
)

// shortest is the minimum length of a token of the site, to be beyond guessing.
const shortest = 20

// credentials are those that a site declares. Tokens are found by a keyed hash: the time of a lookup depends on a
// secret key, and says nothing of a token.
type credentials struct {
	key         []byte
	owners      map[[sha256.Size]byte][]owner
	predecessor keys.Keys // for tokens that the predecessor minted
}

// owner is whose token it is.
type owner struct {
	kind, node string // node "" for the site's token
	hash       [sha256.Size]byte
}

func readCredentials(secrets *model.Secrets) (credentials, diag.List) {
	c := credentials{key: make([]byte, sha256.Size), owners: map[[sha256.Size]byte][]owner{}}
	_, _ = rand.Read(c.key) // it never fails (crypto/rand)
	if secrets == nil {
		return c, nil
	}
	var found diag.List
	for name, value := range secrets.Values[section] {
		if value == "" {
			continue // a name without a value: it is not known here
		}
		node, isNode := strings.CutPrefix(name, nodeTokens)
		switch {
		case name == signingKey:
			key, err := keys.ParseKey(value)
			if err != nil {
				found = append(found, diag.Errorf(diag.Range{File: secrets.Source}, "secret auth.signing_key is not a signing key", "%v. It only serves to accept tokens of the predecessor: without any, remove it.", err))
				continue
			}
			c.predecessor = keys.Keys{key.Predecessor()}
			continue
		case name == siteToken:
			c.add(value, owner{kind: policy.SiteToken})
		case isNode:
			c.add(value, owner{kind: policy.NodeToken, node: node})
		default:
			continue
		}
		if len(value) < shortest {
			found = append(found, diag.Warnf(diag.Range{File: secrets.Source}, "secret auth."+name+" can be guessed", "It has %d characters: make it of at least %d random ones, such as openssl rand -hex 32.", len(value), shortest))
		}
	}
	return c, found
}

func (c *credentials) hash(text string) [sha256.Size]byte {
	mac := hmac.New(sha256.New, c.key)
	mac.Write([]byte(text))
	return [sha256.Size]byte(mac.Sum(nil))
}

func (c *credentials) add(text string, o owner) {
	o.hash = c.hash(text)
	c.owners[o.hash] = append(c.owners[o.hash], o)
}

// find finds whose token a text is: that of the node that is asked about, else the site's, else that
// of another node.
func (c *credentials) find(text, node string) (best owner, ok bool) {
	hash := c.hash(text)
	rank := func(o owner) int {
		switch {
		case o.node == node:
			return 3
		case o.kind == policy.SiteToken:
			return 2
		default:
			return 1
		}
	}
	for _, o := range c.owners[hash] {
		if subtle.ConstantTimeCompare(o.hash[:], hash[:]) == 1 && (!ok || rank(o) > rank(best)) {
			best, ok = o, true
		}
	}
	return best, ok
}

// Credential is the verified credential of a request.
type Credential struct {
	policy.Credential
	Claims keys.Claims // of a valid provisioning token
	Err    error       // why it is not valid: a *wire.Error
}

// Check checks a credential that is shown in a request about a node ("": about none in particular):
// one of the site's, or a provisioning token.
func (c *Catalog) Check(text, node string, keys keys.Keys, book keys.TokenBook, now time.Time) Credential {
	if o, ok := c.credentials.find(text, node); ok {
		return Credential{Credential: policy.Credential{Kind: o.kind, Valid: true, Identity: o.node}}
	}
	out := Credential{Credential: policy.Credential{Kind: policy.Provisioning}}
	if out.Claims, out.Err = c.Verify(text, keys, book, now); out.Err != nil {
		return out
	}
	out.Valid, out.Identity = true, out.Claims.Node
	return out
}

// Verify checks a provisioning token, for the node that it names: whether that is the one of the request is
// for the rules to say. It accepts those of these keys and, if the site has a key of the predecessor, those
// of that one. A text without the form of such a token may have been meant for one of the site's own, which have
// no form: it is not valid, rather than malformed.
func (c *Catalog) Verify(text string, signingKeys keys.Keys, book keys.TokenBook, now time.Time) (keys.Claims, error) {
	claims, err := keys.InspectToken(text)
	if err != nil {
		if !strings.Contains(text, ".") {
			return keys.Claims{}, &wire.Error{Code: wire.CodeRefused, Cause: err}
		}
		return keys.Claims{}, err
	}
	return slices.Concat(signingKeys, c.credentials.predecessor).VerifyBy(book, text, claims.Node, now)
}

// Authorize decides by the rules of the site whether a request is allowed. It sets the posture and the credential
// of in. If the request is denied, the error is the response, and the reason is for the log.
func (c *Catalog) Authorize(ctx context.Context, in policy.AuthInput, shown Credential) (reason string, err *wire.Error) {
	in.Credential = shown.Credential
	if n := c.nodes[in.Identity]; n != nil {
		in.Posture = n.Posture
	}
	d := c.policies.Authorize(ctx, in)
	switch {
	case d.Allow:
		return "", nil
	case d.Code == policy.Forbidden:
		return d.Reason, &wire.Error{Code: wire.CodeNotYours}
	case shown.Err != nil:
		if p, ok := errors.AsType[*wire.Error](shown.Err); ok && p.Message != "" {
			d.Reason += ": " + p.Message
		}
		return d.Reason, &wire.Error{Code: wire.CodeOf(shown.Err), Cause: shown.Err}
	case shown.Kind == "" || shown.Kind == policy.NoCredential:
		return d.Reason, &wire.Error{Code: wire.CodeNoCredential, Message: "a credential is required"}
	default:
		return d.Reason, &wire.Error{Code: wire.CodeRefused}
	}
}
