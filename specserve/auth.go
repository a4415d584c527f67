package specserve

import (
	"net/http"
	"strings"

	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// identify checks the credential that is shown, if there is one. A bad one is not refused here: the
// rules of the site see that it is.
func (x *request) identify() error {
	values := x.Header.Values("Authorization")
	if len(values) == 0 {
		x.shown.Kind = policy.NoCredential
		return nil
	}
	text := wire.Token(x.Header)
	if len(values) > 1 || text == "" {
		return &wire.Error{Code: wire.CodeNoCredential, Message: "the credentials are malformed"}
	}
	x.shown = x.view.Catalog.Check(text, x.identity, x.view.Keys, x.view.Book, x.now)
	if x.shown.Claims.Join && x.endpoint != string(wire.AgentPath)+"{os}-{arch}" {
		x.shown.Valid, x.shown.Identity = false, ""
		return &wire.Error{Code: wire.CodeNotYours, Message: "the token is for joining, and for nothing else", Hint: "run homestak-gitops join with it"}
	}
	if x.shown.Valid {
		x.verified()
		if !x.shown.Claims.Join {
			x.view.Book.Use(x.shown.Claims, x.now)
		}
	}
	return nil
}

// proven reports whether the request has a valid provisioning token of the node that it is about. A client with a
// valid token is not rate-limited by failures from the same address. The check is one HMAC; it compares nothing
// that could be guessed, and evaluates no rule.
func (x *request) proven() bool {
	if x.endpoint != "" && strings.HasPrefix(x.endpoint, serve.RepositoryPrefix) {
		x.takePassword()
	}
	text := wire.Token(x.Header)
	if text == "" || len(x.Header.Values("Authorization")) > 1 || x.view.Catalog == nil {
		return false
	}
	c, err := x.view.Catalog.Verify(text, x.view.Keys, x.view.Book, x.now)
	return err == nil && (x.identity == "" || x.identity == c.Node)
}

// authorize lets the rules of the site decide about the request, as one about a node.
func (x *request) authorize(node string) *wire.Error {
	reason, err := x.view.Catalog.Authorize(x.Context(), policy.AuthInput{
		Method: http.MethodGet, // HEAD gives away no less
		Path:   strings.Replace(x.endpoint, identity, node, 1), Identity: node, Remote: x.RemoteAddr,
	}, x.shown)
	x.reason = reason
	return err
}

// verified says that the connection of the request has shown a valid credential.
func (x *request) verified() { verifiedConnection(x.Request) }
