package specserve

import (
	"net/http"
	"strings"

	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/problem"
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
		return &problem.Error{Code: problem.NoCredential, Message: "the credentials are malformed"}
	}
	x.shown = x.view.Catalog.Check(text, x.identity, x.view.Keys, x.now)
	return nil
}

// authorize lets the rules of the site decide about the request, as one about a node.
func (x *request) authorize(node string) *problem.Error {
	reason, err := x.view.Catalog.Authorize(x.Context(), policy.AuthInput{
		Method: http.MethodGet, // HEAD gives away no less
		Path:   strings.Replace(x.endpoint, identity, node, 1), Identity: node, Remote: x.RemoteAddr,
	}, x.shown)
	x.reason = reason
	return err
}
