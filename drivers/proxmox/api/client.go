// Package api is the client of the Proxmox VE API. Every failure is a typed error with a Class.
// Writes are never sent twice, reads are retried, no node gets more requests at once than it can
// serve, and waiting for a task survives lost answers.
//
// Read client.go first (Open, Get, Post, Do), then errors.go (what an error means),
// transport.go (what happens to a request) and task.go (how a task is waited for).
// Rows reads the long lists of a host without garbage.
package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	pve "github.com/luthermonson/go-proxmox"

	"github.com/homestak/homestak-gitops/engine/model"
)

const userAgent = "homestak-gitops"

// Client is a client of one PVE API. It is safe for concurrent use: nothing in it changes after
// Open.
type Client struct {
	api   *pve.Client
	http  *http.Client // for what the library cannot send: uploads that can be cancelled
	base  string       // URL with /api2/json
	token string
	reads http.Header // of each GET, which shares it
	Width int         // how many requests may be in flight at once
	Tasks *tasks
}

const (
	// DefaultConcurrency is the number of requests in flight at once, to all nodes together.
	DefaultConcurrency = 10
	// perNode is the number of them that go to one PVE node: it has three workers, and one more keeps them busy.
	perNode = 4
)

// Config is the configuration of a Client.
type Config struct {
	Host        *model.Host
	Token       string            // user@realm!name=secret; Host.APIToken if empty
	Transport   http.RoundTripper // nil: TLS to Host.API
	Concurrency int               // requests in flight at once; DefaultConcurrency if 0

	// Sent is called from any goroutine after each request, including retries, with the status of the response, 0
	// for none. May be nil.
	Sent func(method string, status int)
}

// Open returns a client. It sends no request; errors are about the configuration.
func Open(cfg Config) (*Client, error) {
	h, inner, token, width := cfg.Host, cfg.Transport, cfg.Token, cfg.Concurrency
	if width <= 0 {
		width = DefaultConcurrency
	}
	token = cmp.Or(token, h.APIToken)
	user, secret, ok := strings.Cut(token, "=")
	if !ok || !strings.Contains(user, "!") || !strings.Contains(user, "@") || secret == "" {
		return nil, tokenProblem(h, token)
	}
	base, err := url.Parse(strings.TrimSuffix(h.API, "/"))
	if err != nil || base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("api %q of host %s is not an https URL such as https://192.0.2.10:8006", h.API, h.Name)
	}
	if inner == nil {
		if inner, err = NewTLSTransport(h, width); err != nil {
			return nil, fmt.Errorf("host %s: %w", h.Name, err)
		}
	}
	if cfg.Sent == nil {
		cfg.Sent = func(string, int) {}
	}
	tr := &transport{inner: inner, token: user, sent: cfg.Sent, all: make(chan struct{}, width), perNode: map[string]chan struct{}{}}
	for _, n := range h.AllNodes() {
		tr.perNode[n] = make(chan struct{}, max(perNode, width/max(len(h.Nodes), 1)))
	}
	c := &Client{http: &http.Client{Transport: tr}, base: base.String() + prefix, token: token, Width: width}
	c.reads = http.Header{"Authorization": {"PVEAPIToken=" + token}, "User-Agent": {userAgent}, "Accept": {"application/json"}}
	c.api = pve.NewClient(c.base, pve.WithHTTPClient(c.http), pve.WithAPIToken(user, secret), pve.WithUserAgent(userAgent))
	c.Tasks = &tasks{c: c, pollers: map[string]*poller{}, usual: map[string]time.Duration{}}
	return c, nil
}

// User is the user and name of the token: user@realm!name.
func (c *Client) User() string {
	user, _, _ := strings.Cut(c.token, "=")
	return user
}

// StartedByUs reports whether this token started a task.
func (c *Client) StartedByUs(upid string) bool { return ParseUPID(upid).User == c.User() }

// Params are the parameters of a request: string, int, bool or []string. They are
// sent as JSON, in which PVE takes booleans and numbers as they are. Without any
// an empty object is sent: on null PVE dies (AnyEvent.pm, "Not a HASH reference").
type Params map[string]any

// OmitEmpty removes what is "" and returns p.
func (p Params) OmitEmpty() Params {
	maps.DeleteFunc(p, func(_ string, val any) bool { return val == "" })
	return p
}

func (p Params) body() Params {
	if p == nil {
		return Params{}
	}
	return p
}

// Get reads a path; query values go into the URL, where PVE knows booleans only as
// 0 and 1. An answer without data leaves into as it is.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	body, err := c.Read(ctx, path)
	if err != nil || into == nil {
		return err
	}
	doc := struct {
		Data any `json:"data"`
	}{into}
	return json.Unmarshal(body, &doc)
}

// Read reads a path and returns the raw answer. It does not use the library, which would parse
// every answer twice, nor what http.Client does for redirects and cookies: an agent does almost nothing but read.
func (c *Client) Read(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header = c.reads
	res, err := c.http.Transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if whole, ok := res.Body.(answer); ok {
		return whole.doc, nil
	}
	return io.ReadAll(res.Body)
}

// ReadList reads a list. Null is an error, because it does not mean that nothing exists: for that
// PVE answers with an empty list.
func ReadList[T any](ctx context.Context, c *Client, path string, into *[]T) error {
	err := c.Get(ctx, path, into)
	if err == nil && *into == nil {
		err = ErrNoList
	}
	return err
}

// ErrNoList is null in place of a list, which does not mean that nothing exists.
var ErrNoList = errors.New("the answer is null where a list was expected")

// NewRequest creates a request to a path, with the token, to be sent without the client.
func (c *Client) NewRequest(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err == nil {
		req.Header.Set("Authorization", "PVEAPIToken="+c.token)
	}
	return req, err
}

// Post returns the UPID of the task that PVE started, "" if none.
func (c *Client) Post(ctx context.Context, path string, p Params) (string, error) {
	var data json.RawMessage
	err := c.call(c.api.Post(ctx, path, p.body(), &data))
	return upidOf(data), err
}

// PostFor sends a POST that answers at once with data.
func (c *Client) PostFor(ctx context.Context, path string, p Params, into any) error {
	return c.call(c.api.Post(ctx, path, p.body(), into))
}

// Do sends a write, and waits until it is done.
func (c *Client) Do(ctx context.Context, path string, p Params) error {
	upid, err := c.Post(ctx, path, p)
	return c.AwaitWrite(ctx, upid, err)
}

// AwaitWrite waits for the task of a write that was just sent. If the answer of the write was lost,
// it returns ErrOutcomeLost: the caller must read the host to find the outcome.
func (c *Client) AwaitWrite(ctx context.Context, upid string, err error) error {
	if err != nil {
		if ClassOf(err) == OutcomeUnknown {
			return errors.Join(ErrOutcomeLost, err)
		}
		return err
	}
	err = c.Tasks.Wait(ctx, upid)
	if err != nil && ClassOf(err) == OutcomeUnknown {
		return errors.Join(ErrOutcomeLost, err)
	}
	return err
}

// ErrOutcomeLost means that the outcome of a write is unknown.
var ErrOutcomeLost = errors.New("the outcome of the request is unknown")

// Put sends a PUT, and returns the UPID of the task that PVE started, "" if none.
func (c *Client) Put(ctx context.Context, path string, p Params) (string, error) {
	var data json.RawMessage
	err := c.call(c.api.Put(ctx, path, p.body(), &data))
	return upidOf(data), err
}

// Delete sends DELETE; PVE refuses a body there, so parameters are a query.
func (c *Client) Delete(ctx context.Context, path string, query url.Values) (string, error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	var data json.RawMessage
	err := c.call(c.api.Delete(ctx, path, &data))
	return upidOf(data), err
}

// call unwraps what net/http puts around the transport's own errors: its text
// repeats the URL, which ours has already.
func (*Client) call(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

func upidOf(data json.RawMessage) string {
	var s string
	if json.Unmarshal(data, &s) != nil || !strings.HasPrefix(s, "UPID:") {
		return ""
	}
	return s
}

// Path makes a path of segments, each escaped: Path("nodes", "pve1", "qemu", 100).
func Path(parts ...any) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(fmt.Sprint(p)))
	}
	return b.String()
}

// Verified is what a Proxmox Backup Server found when it verified a backup, as the list of a storage has it: ok or failed; "" for one
// that was not verified.
func Verified(raw json.RawMessage) string {
	var v struct{ State string }
	_ = json.Unmarshal(raw, &v) // "": it is not verified
	return v.State
}

// LeastArchive is the size in bytes from which a backup is whole: PVE lists one that is being written to a Proxmox Backup Server with
// 1 (list_volumes in PVE/Storage/PBSPlugin.pm).
const LeastArchive = 2

// Text returns a scalar of PVE's JSON as canonical text: numbers as written,
// booleans as 1 and 0, null as "".
func Text(raw json.RawMessage) string {
	switch s := bytes.TrimSpace(raw); {
	case len(s) == 0 || string(s) == "null":
		return ""
	case string(s) == "true":
		return "1"
	case string(s) == "false":
		return "0"
	case s[0] == '"':
		if inner := s[1:max(len(s)-1, 1)]; bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
			return string(inner) // nothing to translate, as in nearly all of the thousands that a pass reads
		}
		if text, err := jsontext.AppendUnquote(make([]byte, 0, len(s)), s); err == nil {
			return string(text)
		}
		var out string // as much as can be read of invalid text
		if json.Unmarshal(raw, &out) != nil {
			return ""
		}
		return out
	default:
		return string(s)
	}
}

// Number reads a scalar that PVE sends as number or as text; 0 if it is neither.
func Number(raw json.RawMessage) int {
	f, err := strconv.ParseFloat(Text(raw), 64)
	if err != nil {
		return 0
	}
	return int(f)
}
