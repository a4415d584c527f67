package control

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/specserve/report"
)

// Remote asks an agent over HTTPS: its status, tree and events, and for checks. The transport knows the
// server and has the key.
func Remote(server string, transport http.RoundTripper) *Client {
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // the key is for this server
	base := strings.TrimRight(server, "/")
	return &Client{socket: base, base: base, remote: true, http: &http.Client{Transport: transport, CheckRedirect: refuse}}
}

// errNoAgentThere is of a server that serves a folder.
var errNoAgentThere = errors.New("the server there does not belong to an agent: it was started by serve, and has no status of one")

// Tree asks for the agent with its nodes, and what those reported of their own.
func (c *Client) Tree(ctx context.Context) (report.Report, error) {
	if !c.remote {
		var r report.Report
		err := c.get(ctx, "/tree", &r)
		return r, err
	}
	var s struct {
		agent.Status
		Tree *report.Report `json:"tree"`
	}
	if err := c.get(ctx, "/status", &s); err != nil {
		return report.Report{}, err
	}
	if s.Tree == nil {
		return report.Report{}, errNoAgentThere
	}
	return *s.Tree, nil
}

// CheckNode asks a node to check itself, or the child that manages it.
func (c *Client) CheckNode(ctx context.Context, node string) error {
	return c.post(ctx, "/reconcile/"+url.PathEscape(node), nil, nil)
}
