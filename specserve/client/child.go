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
	status, header, body, err := c.exchange(ctx, usual(), http.MethodGet, wire.ConfigPath.Of(c.Parent.Identity), nil, headers)
	switch {
	case err != nil:
	case status == http.StatusNotModified && tag != "":
		return FetchedConfig{ETag: tag, NotModified: true}, nil
	case status != http.StatusOK:
		err = &statusError{status, wire.RetryAfter(header, time.Now()), wire.ReadProblem(status, body)}
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
	l.Header, l.Total, l.Body = 75*time.Second, 90*time.Second, maxError
	return l
}

// Wait waits until there is something to do for the child, which has the document of a tag: "spec",
// "config", "queue" or "reconcile" as the parent says it, or "" after some time without anything. Nodes are those below a child that
// are to check themselves. The error is a *wire.Error, or that of ctx.
func (c *Client) Wait(ctx context.Context, tag string) (what string, nodes []string, err error) {
	headers := http.Header{}
	if tag != "" {
		headers.Set("If-None-Match", tag)
	}
	status, header, body, err := c.exchange(ctx, waitLimits(), http.MethodGet, wire.WaitPath.Of(c.Parent.Identity)+"?"+wire.QueueQuery, nil, headers)
	switch {
	case err != nil:
	case status == http.StatusNoContent:
		return "", nil, nil
	case status != http.StatusOK:
		err = &statusError{status, wire.RetryAfter(header, time.Now()), wire.ReadProblem(status, body)}
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

// taskLimits are those of requests about tasks.
func taskLimits() clientLimits {
	l := usual()
	l.Body = wire.MaxTaskList
	return l
}

// Tasks fetches the tasks that wait for the child. The error may come with tasks: it is about others, which are not valid.
func (c *Client) Tasks(ctx context.Context) ([]wire.Task, error) {
	status, header, body, err := c.exchange(ctx, taskLimits(), http.MethodGet, wire.QueuePath.Of(c.Parent.Identity), nil, http.Header{})
	var list []wire.Task
	switch {
	case err != nil:
	case status != http.StatusOK:
		err = &statusError{status, wire.RetryAfter(header, time.Now()), wire.ReadProblem(status, body)}
	default:
		if list, err = wire.ReadTasks(body, c.Parent.Pins, c.Parent.Identity); err != nil {
			err = wire.Errorf(wire.CodeSchema, "%w", err)
		}
	}
	if err != nil {
		err = c.failed(ctx, "fetching the tasks of", err)
	}
	return list, err
}

// Answer sends the result of a task. A parent that does not know the task any more drops it.
func (c *Client) Answer(ctx context.Context, r wire.TaskResult) error {
	document, err := json.Marshal(r)
	if err != nil {
		return err
	}
	status, header, body, err := c.exchange(ctx, reportLimits(), http.MethodPost, wire.QueuePath.Of(c.Parent.Identity), document, http.Header{"Content-Type": {"application/json"}})
	switch {
	case err == nil && status == http.StatusAccepted:
		return nil
	case err == nil:
		err = &statusError{status, wire.RetryAfter(header, time.Now()), wire.ReadProblem(status, body)}
	}
	return c.failed(ctx, "sending the result of a task of", err)
}
