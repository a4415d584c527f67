package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Client talks to an agent over its socket, or over HTTPS; see Remote.
type Client struct {
	Card   Card   // what the agent said of itself
	socket string // file, or URL of the server
	base   string // URL that paths are added to
	remote bool
	tree   func() wire.Report // of the agent in this process; nil: it is asked
	http   *http.Client
}

// ErrNoAgent means that no agent is running.
var ErrNoAgent = errors.New("no agent is running here")

// StandardSocket is the socket of the machine's agent.
const StandardSocket = "/run/homestak-gitops/agent.sock"

// NoSocket is the value of HOMESTAK_SOCKET for a machine without an agent.
const NoSocket = "none"

// Search describes where the agent of this machine may listen.
type Search struct {
	Socket  string // given by the user; NoSocket: do not ask an agent; "": by the other fields
	DataDir string // a lock file there names the socket of its agent
	Given   bool   // the user named DataDir: the agent of another folder does not count
}

// Find finds the agent: at the socket that the user names, else where its lock file says,
// else at the standard one. ErrNoAgent if there is none.
func (s Search) Find(ctx context.Context) (*Client, error) {
	switch s.Socket {
	case "":
	case NoSocket:
		return nil, ErrNoAgent
	default:
		return Dial(ctx, s.Socket)
	}
	if at := ReadHolder(Folder(s.DataDir).AgentLock()).Socket; at != "" {
		if c, err := Dial(ctx, at); !errors.Is(err, ErrNoAgent) {
			return c, err
		}
	}
	c, err := Dial(ctx, StandardSocket)
	if err == nil && s.Given && c.Card.DataDir != s.DataDir {
		return nil, ErrNoAgent
	}
	return c, err
}

// OfHost finds the agent of a host, by the name and, if known, the API of the host that it
// converges. It returns nil if there is none. An agent without access to its socket is an error,
// because it may be the agent of this host.
func (s Search) OfHost(ctx context.Context, h *model.Host) (*Client, error) {
	c, err := s.Find(ctx)
	if errors.Is(err, ErrNoAgent) && s.Given {
		// With another lock folder, the agent of the machine may still write to the host.
		c, err = Dial(ctx, StandardSocket)
	}
	switch {
	case errors.Is(err, ErrNoAgent):
		return nil, nil //nolint:nilnil // no agent is the usual case, and nothing wrong
	case err != nil:
		return nil, fmt.Errorf("%w\nwithout its answer two processes could write to the host; if that agent converges another host, set HOMESTAK_SOCKET=%s", err, NoSocket)
	}
	api := strings.TrimRight(h.API, "/")
	if c.Card.Identity != h.Name || c.Card.API != "" && c.Card.API != api {
		return nil, nil //nolint:nilnil // it is the agent of another host
	}
	return c, nil
}

// dialPatience limits the time in which an agent answers its first request. A machine that is busy with guests may need most
// of it; an agent that is stopped needs more.
const dialPatience = time.Minute

// Dial connects to the agent on a socket. The error is ErrNoAgent if none answers, a *DeniedError
// if the user may not open the socket.
func Dial(ctx context.Context, socket string) (*Client, error) {
	c := &Client{socket: socket, base: "http://agent"}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: dialPatience}).DialContext(ctx, "unix", socket)
	}
	c.http = &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	err := c.get(ctx, "/agent", &c.Card)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, ErrNoAgent
	case errors.Is(err, fs.ErrPermission):
		return nil, deniedf("no permission to open the agent's socket %s as %s\n%s", socket, Whoami(), socketHint(socket))
	case err != nil:
		return nil, err
	}
	return c, nil
}

// socketHint says who may open a socket.
func socketHint(socket string) string {
	hint := "run this as root"
	info, err := os.Stat(socket)
	if err == nil {
		if at, ok := info.Sys().(*syscall.Stat_t); ok {
			gid := strconv.FormatUint(uint64(at.Gid), 10)
			if g, err := user.LookupGroupId(gid); err == nil {
				gid = g.Name
			}
			if gid != "root" {
				hint += ", or as a member of the group " + gid
			}
		}
	}
	return hint
}

// Status returns the status of the agent and its nodes.
func (c *Client) Status(ctx context.Context) (agent.Status, error) {
	var s agent.Status
	err := c.get(ctx, "/status", &s)
	return s, err
}

// History returns the last n receipts, newest first, or all for 0; only those about an address, or
// all for "".
func (c *Client) History(ctx context.Context, n int, address string) (History, error) {
	var h History
	err := c.get(ctx, "/history?n="+strconv.Itoa(n)+"&address="+url.QueryEscape(address), &h)
	return h, err
}

// Verify verifies the chain of receipts.
func (c *Client) Verify(ctx context.Context) (ledger.Proof, error) {
	var chain ledger.Proof
	err := c.get(ctx, "/history/verify", &chain)
	return chain, err
}

// Why explains the state of an address; see ReasonsOf for its forms.
func (c *Client) Why(ctx context.Context, address string) (Reasons, error) {
	var r Reasons
	err := c.get(ctx, "/why/"+url.PathEscape(address), &r)
	return r, err
}

// CheckNow makes the agent check repository and host now.
func (c *Client) CheckNow(ctx context.Context) error { return c.post(ctx, "/reconcile", nil, nil) }

// Reconcile makes the agent check repository and host now, and waits for the end of that
// pass; its client may leave at any time.
func (c *Client) Reconcile(ctx context.Context) (agent.PassStatus, error) {
	var p agent.PassStatus
	err := c.post(ctx, "/reconcile?wait", nil, &p)
	return p, err
}

// TestNotify sends a test by a notifier of the site.
func (c *Client) TestNotify(ctx context.Context, name string) error {
	return c.post(ctx, "/notify/"+url.PathEscape(name), nil, nil)
}

// VerifyNodes runs the checks of nodes now, and waits for their results.
func (c *Client) VerifyNodes(ctx context.Context, s Selected) (engine.Verified, error) {
	if c.remote {
		return c.verifyThere(ctx, s)
	}
	var v engine.Verified
	err := c.post(ctx, "/verify", s, &v)
	return v, err
}

// watchEvery is the interval at which a client reads the status of a pass under way.
const watchEvery = 300 * time.Millisecond

// ReconcileWatched is Reconcile, and shows the status repeatedly until the pass has ended.
func (c *Client) ReconcileWatched(ctx context.Context, show func(agent.Status)) (agent.PassStatus, error) {
	type answer struct {
		pass agent.PassStatus
		err  error
	}
	ended := make(chan answer, 1)
	go func() {
		pass, err := c.Reconcile(ctx)
		ended <- answer{pass, err}
	}()
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case got := <-ended:
			return got.pass, got.err
		case <-ticker.C:
			if s, err := c.Status(ctx); err == nil { // else the answer will say what is wrong
				show(s)
			}
		}
	}
}

// StepsSince returns the steps of the newest receipt, if its pass ended after that time.
func (c *Client) StepsSince(ctx context.Context, since time.Time) ([]ledger.Step, error) {
	h, err := c.History(ctx, 1, "")
	return stepsSince(h, since), err
}

func stepsSince(h History, since time.Time) []ledger.Step {
	if len(h.Receipts) == 0 || h.Receipts[0].Verb == ledger.VerbVerify {
		return nil
	}
	last := h.Receipts[0]
	if last.Began.Add(time.Duration(last.Seconds * float64(time.Second))).Before(since) {
		return nil
	}
	return last.Steps
}

// Events calls a function for each stored event after the one with an ID (all for ""), and, to
// follow, for each new one. It ends when the agent stops, or the function returns an error.
func (c *Client) Events(ctx context.Context, after string, follow bool, each func(Event) error) error {
	res, err := c.send(ctx, http.MethodGet, fmt.Sprintf("/events?follow=%t", follow), nil, "Last-Event-ID", after)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return read(ctx, res.Body, each)
}

func (c *Client) get(ctx context.Context, path string, into any) error {
	return c.call(ctx, http.MethodGet, path, nil, into)
}

func (c *Client) post(ctx context.Context, path string, body, into any) error {
	return c.call(ctx, http.MethodPost, path, body, into)
}

// mostGrown is how much memory an answer gets in advance, in bytes.
const mostGrown = 16 << 20

// call sends a request and reads the answer; into may be nil.
func (c *Client) call(ctx context.Context, method, path string, body, into any) error {
	res, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if into == nil {
		return nil
	}
	var text bytes.Buffer
	text.Grow(int(min(max(res.ContentLength, 0), mostGrown)) + bytes.MinRead) // a tree has megabytes
	_, err = text.ReadFrom(io.LimitReader(res.Body, 256<<20))
	if err == nil {
		err = json.Unmarshal(text.Bytes(), into)
	}
	if err != nil {
		return fmt.Errorf("read the agent's answer: %w", causeOf(ctx, err))
	}
	return nil
}

// send asks; an answer that it gives is one, and its body is the caller's to close.
// Header is names and values in turn.
func (c *Client) send(ctx context.Context, method, path string, body any, header ...string) (*http.Response, error) {
	var b bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&b).Encode(body); err != nil {
			return nil, fmt.Errorf("ask the agent: %w", err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, &b)
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := c.http.Do(req)
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // the URL is of our making
	}
	if err != nil {
		return nil, fmt.Errorf("ask the agent on %s: %w", c.socket, causeOf(ctx, err))
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	doc := problemDocument{&ProblemError{Message: "the agent answered " + res.Status}}
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&doc); err != nil || doc.Error == nil {
		doc.Error = &ProblemError{Message: "something that is not an agent answers on " + c.socket + ": " + res.Status}
	}
	doc.Error.Status = res.StatusCode
	return nil, doc.Error
}

// causeOf prefers the cause of a context's end to its error.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) &&
		(errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// Jobs lists the jobs of the agent.
func (c *Client) Jobs(ctx context.Context) ([]Job, error) {
	var list []Job
	err := c.get(ctx, "/jobs", &list)
	return list, err
}

// Runs returns the last n receipts of a job, newest first, or all for 0; of all commands for "".
func (c *Client) Runs(ctx context.Context, n int, job string) (History, error) {
	var h History
	err := c.get(ctx, "/runs?n="+strconv.Itoa(n)+"&job="+url.QueryEscape(job), &h)
	return h, err
}
