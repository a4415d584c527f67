package specserve

import (
	"cmp"
	"encoding/json"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

const (
	asJSON = "application/json"
	asYAML = "application/yaml" // RFC 9512
)

// healthAnswer is the answer of /health.
type healthAnswer struct {
	Status  string `json:"status"` // ok, or starting before the first commit
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Uptime  int64  `json:"uptime_seconds"`
}

func health(x *request) error {
	h := healthAnswer{Status: "starting", Version: x.o.Version, Uptime: int64(x.now.Sub(x.started) / time.Second)}
	if x.view.Catalog != nil {
		h.Status, h.Commit = "ok", x.view.commit()
	}
	return x.document(h)
}

// document sends a value as JSON.
func (x *request) document(v any) error { return x.json(http.StatusOK, v) }

// json sends a value as JSON with a status.
func (x *request) json(status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return x.send(status, asJSON, append(b, '\n'))
}

// specs is the answer of /specs.
type specs struct {
	Specs []string `json:"specs"` // names of the nodes whose spec the caller may fetch
}

// listSpecs asks the rules about each node. Only one list is made at a time, since that takes long
// for a large site.
func listSpecs(x *request) error {
	if err := x.identify(); err != nil {
		return err
	}
	select {
	case x.listing <- struct{}{}:
		defer func() { <-x.listing }()
	case <-x.Context().Done():
		return x.Context().Err()
	}
	out := specs{Specs: []string{}}
	var refused error
	for _, name := range x.view.Catalog.Names() {
		if err := x.authorize(name); err == nil {
			out.Specs = append(out.Specs, name)
		} else if refused == nil {
			refused = err
		}
		if err := x.Context().Err(); err != nil {
			return err
		}
	}
	if len(out.Specs) == 0 && !x.shown.Valid {
		if refused == nil {
			refused = &wire.Error{Code: wire.CodeNoCredential}
		}
		return refused
	}
	x.reason = ""
	return x.document(out)
}

// serveSpec sends the spec of a node. Unauthorized clients do not learn whether it exists.
func serveSpec(x *request) error {
	if err := x.identify(); err != nil {
		return err
	}
	if err := x.authorize(x.identity); err != nil {
		return err
	}
	node, err := x.node()
	if err != nil {
		return err
	}
	switch {
	case node.Removed:
		return &wire.Error{Code: wire.CodeNotFound, Message: "the site does not deploy this node any more"}
	case node.Host:
		return &wire.Error{Code: wire.CodeNotFound, Message: "it is a host, and so there is no spec to fetch"}
	}
	renewed := x.renewed(node)
	document, tag, err := node.Answer(Own{Pins: x.view.Pins, Token: renewed, Agent: x.agentSums()})
	if err != nil {
		return err
	}
	as := accepted(x.Header.Values("Accept"))
	if as == asYAML {
		tag = strings.TrimSuffix(tag, `"`) + `-yaml"`
	}
	if unchanged(x, "Accept, Authorization", tag, renewed) {
		return nil
	}
	if as == asYAML {
		if document, err = toYAML(document); err != nil {
			return err
		}
	}
	return x.send(http.StatusOK, as, document)
}

// unchanged sets the headers of a document, and answers with 304 if the client has it. A client that is owed a new token gets an
// answer with a body.
func unchanged(x *request, vary, tag, renewed string) bool {
	h := x.w.Header()
	h.Set("Vary", vary)
	h.Set("Etag", tag)
	if renewed != "" {
		return false
	}
	h.Set("Cache-Control", "private, no-cache")
	if !matches(x.Header.Values("If-None-Match"), tag) {
		return false
	}
	x.status = http.StatusNotModified
	x.w.WriteHeader(x.status)
	return true
}

// due reports whether the node that asks should get a new token.
func (x *request) due() bool {
	return x.shown.Kind == policy.Provisioning && x.shown.Valid && len(x.view.Keys) > 0 && x.view.Keys.Due(x.shown.Claims, x.now)
}

// renewed is a new token for the node that asks, "" if its own is good for longer.
func (x *request) renewed(n *Node) string {
	if !x.due() {
		return ""
	}
	c := x.shown.Claims
	next := keys.Claims{Node: n.Name, Spec: cmp.Or(n.Spec, c.Spec), Issued: x.now.Unix(), Number: c.Number}
	if life := c.Life(); life != 0 {
		next.Expires = x.now.Add(life).Unix()
	}
	text, err := x.view.Keys[0].MintToken(x.view.Book.Next(next))
	if err != nil {
		x.o.Log.Error("a token cannot be renewed", "identity", n.Name, "error", err)
		return ""
	}
	return text
}

// accepted is the type of the answer: YAML if the client prefers it, else JSON.
func accepted(headers []string) string {
	best, quality := asJSON, -1.0
	for part := range strings.SplitSeq(strings.Join(headers, ","), ",") {
		name, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		q := 1.0
		if text, given := params["q"]; given {
			if q, err = strconv.ParseFloat(text, 64); err != nil {
				continue
			}
		}
		as := ""
		switch name {
		case asJSON, "application/*", "*/*":
			as = asJSON
		case asYAML, "application/x-yaml", "text/yaml", "text/x-yaml":
			as = asYAML
		}
		if as != "" && q > quality && q > 0 {
			best, quality = as, q
		}
	}
	return best
}

// matches reports whether the header If-None-Match has a tag (RFC 9110, 13.1.2).
func matches(headers []string, tag string) bool {
	for part := range strings.SplitSeq(strings.Join(headers, ","), ",") {
		part = strings.TrimSpace(part)
		if part == "*" || strings.TrimPrefix(part, "W/") == tag {
			return true
		}
	}
	return false
}
