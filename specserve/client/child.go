package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// FetchedConfig is a parent's response to a child of type pve.
type FetchedConfig struct {
	wire.Config            // empty if nothing changed
	Pins        []wire.Pin // those of Config, read
	ETag        string     // to be sent the next time
	NotModified bool
}

// Config fetches what the child needs for its subtree, in one attempt. tag is that of the configuration that it
// has, "" for none. The error is a *wire.Error, or that of ctx.
func (c *Client) Config(ctx context.Context, tag string) (FetchedConfig, error) {
	headers := http.Header{}
	if tag != "" {
		headers.Set("If-None-Match", tag)
	}
	status, header, body, err := c.exchange(ctx, usual(), http.MethodGet, wire.ConfigPath(c.Parent.Identity), nil, headers)
	switch {
	case err != nil:
	case status == http.StatusNotModified && tag != "":
		return FetchedConfig{ETag: tag, NotModified: true}, nil
	case status != http.StatusOK:
		err = &statusError{status, retryAfter(header, time.Now()), wire.ReadProblem(status, body)}
	default:
		var got FetchedConfig
		if got.Config, got.Pins, err = wire.ReadConfig(body, c.Parent.Identity); err != nil {
			err = wire.Errorf(wire.CodeSchema, "%w", err)
		} else if !slices.ContainsFunc(got.Pins, func(p wire.Pin) bool { return slices.Contains(c.Parent.Pins, p) }) {
			err = wire.Errorf(wire.CodeSchema, "the answer has none of the pins that this child knows")
		} else {
			got.ETag = header.Get("ETag")
			return got, nil
		}
	}
	return FetchedConfig{}, c.failed(ctx, "fetching the configuration of", err)
}

// waitLimits are those of a long poll: the server answers within a minute.
func waitLimits() clientLimits {
	l := usual()
	l.Header, l.Total, l.Body = 75*time.Second, 90*time.Second, wire.MaxError
	return l
}

// Wait waits until there is something to do for the child, which has the document of a tag: "spec",
// "config" or "reconcile" as the parent says it, or "" after some time without anything. Nodes are those below a child that
// are to check themselves. The error is a *wire.Error, or that of ctx.
func (c *Client) Wait(ctx context.Context, tag string) (what string, nodes []string, err error) {
	headers := http.Header{}
	if tag != "" {
		headers.Set("If-None-Match", tag)
	}
	status, header, body, err := c.exchange(ctx, waitLimits(), http.MethodGet, wire.WaitPath(c.Parent.Identity), nil, headers)
	switch {
	case err != nil:
	case status == http.StatusNoContent:
		return "", nil, nil
	case status != http.StatusOK:
		err = &statusError{status, retryAfter(header, time.Now()), wire.ReadProblem(status, body)}
	default:
		var said struct {
			Status string
			Nodes  []string
		}
		if err = json.Unmarshal(body, &said); err == nil {
			return said.Status, said.Nodes, nil
		}
		err = wire.Errorf(wire.CodeSchema, "the answer is not the JSON document that is expected")
	}
	return "", nil, c.failed(ctx, "waiting at the parent of", err)
}

// failed is the error of a request that was attempted once.
func (c *Client) failed(ctx context.Context, attempted string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s %s: %w", attempted, c.Parent.Identity, context.Cause(ctx))
	}
	e := *c.asFailure(err).problem
	e.Message = fmt.Sprintf("%s %s, %s: %s", attempted, c.Parent.Identity, c.Parent.Server, e.Message)
	return &e
}
