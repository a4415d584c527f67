package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Remote talks to an agent over HTTPS: status, tree, events and reconcile. The transport has the
// server's pin and the key.
func Remote(server string, transport http.RoundTripper) *Client {
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // the key is for this server
	base := strings.TrimRight(server, "/")
	return &Client{socket: base, base: base, remote: true, http: &http.Client{Transport: transport, CheckRedirect: refuse}}
}

// errNoAgentThere is of a server that serves a folder.
var errNoAgentThere = errors.New("the server there does not belong to an agent: it was started by serve, and has no status of one")

// Tree returns the agent with its nodes, and the reports of nodes and children.
func (c *Client) Tree(ctx context.Context) (r wire.Report, err error) {
	switch {
	case c.tree != nil:
		return c.tree(), nil
	case c.remote:
		_, r, err = c.StatusAndTree(ctx)
	default:
		err = c.get(ctx, "/tree", &r)
	}
	return r, err
}

// StatusAndTree returns both, over HTTPS by one request.
func (c *Client) StatusAndTree(ctx context.Context) (agent.Status, wire.Report, error) {
	var s struct {
		agent.Status
		Tree *wire.Report `json:"tree"`
	}
	if !c.remote {
		st, err := c.Status(ctx)
		if err != nil {
			return st, wire.Report{}, err
		}
		r, err := c.Tree(ctx)
		return st, r, err
	}
	if err := c.get(ctx, "/status", &s); err != nil {
		return agent.Status{}, wire.Report{}, err
	}
	if s.Tree == nil {
		return agent.Status{}, wire.Report{}, errNoAgentThere
	}
	return s.Status, *s.Tree, nil
}

// Ended is the result of a requested pass.
type Ended struct {
	Pass    agent.PassStatus `json:"pass"`
	Steps   []ledger.Step    `json:"steps"`   // that it made
	Refused *agent.Refusal   `json:"refused"` // why the newest commit is not in force; null: it is
	Lost    string           `json:"lost"`    // why the repository does not answer; "": it does
}

// Status is the part of a status that says how a pass ended.
func (e *Ended) Status() agent.Status {
	return agent.Status{Refused: e.Refused, Repository: agent.RepositoryStatus{Error: e.Lost}}
}

// Await requests a check of an agent, and waits for the end of that pass.
func Await(ctx context.Context, a Agent, r receipts) (Ended, error) {
	asked := time.Now().UTC()
	pass, err := a.Reconcile(ctx)
	if err != nil {
		return Ended{}, err
	}
	after := a.Status()
	return Ended{Pass: pass, Steps: stepsSince(historyOf(r, 1, ""), asked), Refused: after.Refused, Lost: after.Repository.Error}, nil
}

// ErrNoPass is returned for a server that checks its files but runs no passes.
var ErrNoPass = errors.New("the server there does not belong to an agent: it checks its files now, and there is no pass to wait for")

// Await requests a check of repository and host, and waits for the end of that pass. An agent of
// this machine shows meanwhile how far it is. The error may be ErrNoPass.
func (c *Client) Await(ctx context.Context, show func(agent.Status)) (Ended, error) {
	if c.remote {
		return c.awaitThere(ctx)
	}
	asked := time.Now().UTC()
	pass, err := c.ReconcileWatched(ctx, show)
	if err != nil {
		return Ended{}, err
	}
	e := Ended{Pass: pass}
	if e.Steps, err = c.StepsSince(ctx, asked); err != nil {
		return Ended{}, err
	}
	after, err := c.Status(ctx)
	e.Refused, e.Lost = after.Refused, after.Repository.Error
	return e, err
}

// awaitThere asks an agent on another machine, which answers at once and says how the pass ended when it did.
func (c *Client) awaitThere(ctx context.Context) (Ended, error) {
	res, err := c.send(ctx, http.MethodPost, "/reconcile?wait", nil)
	if err != nil {
		return Ended{}, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusAccepted {
		return Ended{}, ErrNoPass
	}
	var e Ended
	err = awaited(res.Body, &e)
	if _, isProblem := errors.AsType[*ProblemError](err); err != nil && !isProblem {
		err = fmt.Errorf("wait for the pass of the agent on %s: %w\nthe pass continues: status shows how it ends", c.socket, causeOf(ctx, err))
	}
	return e, err
}

// awaited reads an answer that begins before the agent knows what it will say: an error is in the body, too.
func awaited(body io.Reader, into any) error {
	text, err := io.ReadAll(io.LimitReader(body, 256<<20))
	if err != nil {
		return err
	}
	var failed struct {
		Error *ProblemError `json:"error"`
	}
	if err := errors.Join(json.Unmarshal(text, into), json.Unmarshal(text, &failed)); err != nil {
		return err
	}
	if failed.Error != nil {
		return failed.Error
	}
	return nil
}

// verifyThere has an agent on another machine run checks.
func (c *Client) verifyThere(ctx context.Context, s Selected) (v engine.Verified, err error) {
	res, err := c.send(ctx, http.MethodPost, "/verify?"+url.Values{"node": s.Nodes, "manifest": {s.Manifest}}.Encode(), nil)
	if err != nil {
		return v, err
	}
	defer res.Body.Close()
	return v, awaited(res.Body, &v)
}

// Operates reports whether the agent lets this client operate: who may open the socket may, and over HTTPS the operator key counts.
func (c *Client) Operates(ctx context.Context) bool {
	return !c.remote || c.get(ctx, "/operator", new(struct{})) == nil
}

// Asked is the result of a request to check a node.
type Asked struct {
	Status wire.Asked `json:"status"`
}

// CheckNode asks a node to check itself, or the child that manages it.
func (c *Client) CheckNode(ctx context.Context, node string) (a Asked, err error) {
	err = c.post(ctx, "/reconcile/"+url.PathEscape(node), nil, &a)
	return a, err
}

// Plan makes an agent make the plan of its host, or have it made by the agent of a host below. The plan lists all
// attributes of the resource at an address, unless that is empty.
func (c *Client) Plan(ctx context.Context, host, attributes string) (r wire.TaskResult, err error) {
	if c.remote {
		path := "/plan/" + url.PathEscape(host)
		if attributes != "" {
			path += "?attributes=" + url.QueryEscape(attributes)
		}
		err = c.get(ctx, path, &r)
		return r, err
	}
	a := wire.Asking{Kind: wire.TaskPlan, Nodes: []string{host}, Wait: 120, By: Whoami(), Attributes: attributes}
	err = c.Exec(ctx, a, func(got wire.TaskResult) error {
		r = got
		return nil
	})
	return r, err
}

// Exec asks the agent for commands or plans, and calls each with every result as it comes.
func (c *Client) Exec(ctx context.Context, a wire.Asking, each func(wire.TaskResult) error) error {
	res, err := c.send(ctx, http.MethodPost, "/tasks", a)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	d := json.NewDecoder(res.Body)
	for {
		var r wire.TaskResult
		switch err := d.Decode(&r); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the agent's answer: %w", causeOf(ctx, err))
		}
		if err := each(r); err != nil {
			return err
		}
	}
}
