package proxmox

import (
	"bytes"
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

	pve "github.com/luthermonson/go-proxmox"

	"github.com/homestak/homestak-gitops/engine/model"
)

const userAgent = "homestak-gitops"

// client speaks to one PVE API. Safe for concurrent use: everything in it is set
// before the first request.
type client struct {
	api   *pve.Client
	http  *http.Client // for what the library cannot send: uploads that can be cancelled
	base  string       // URL with /api2/json
	token string
	width int // requests that may be in flight at once
	tasks *tasks
}

const (
	// defaultConcurrency is how many requests are in flight at once, to all nodes together.
	defaultConcurrency = 10
	// perNode is how many of them go to one PVE node: it has three workers, and one more keeps them busy.
	perNode = 4
)

// openClient makes a client of a host's API; it sends no request. The token is the
// host's if empty, the transport TLS to host.API if nil, the number of requests that may
// be in flight at once defaultConcurrency if 0.
func openClient(h *model.Host, token string, inner http.RoundTripper, width int) (*client, error) {
	if width <= 0 {
		width = defaultConcurrency
	}
	if token == "" {
		token = h.APIToken
	}
	user, secret, ok := strings.Cut(token, "=")
	if !ok || !strings.Contains(user, "!") || !strings.Contains(user, "@") || secret == "" {
		return nil, tokenProblem(h, token)
	}
	base, err := url.Parse(strings.TrimSuffix(h.API, "/"))
	if err != nil || base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("api %q of host %s is no https URL such as https://192.0.2.10:8006", h.API, h.Name)
	}
	if inner == nil {
		if inner, err = newTLSTransport(h, width); err != nil {
			return nil, fmt.Errorf("host %s: %w", h.Name, err)
		}
	}
	tr := &transport{inner: inner, all: make(chan struct{}, width), perNode: map[string]chan struct{}{}}
	for _, n := range h.AllNodes() {
		tr.perNode[n] = make(chan struct{}, max(perNode, width/max(len(h.Nodes), 1)))
	}
	c := &client{http: &http.Client{Transport: tr}, base: base.String() + apiPrefix, token: token, width: width}
	c.api = pve.NewClient(c.base, pve.WithHTTPClient(c.http), pve.WithAPIToken(user, secret), pve.WithUserAgent(userAgent))
	c.tasks = &tasks{c: c, pollers: map[string]*poller{}, usual: map[string]time.Duration{}}
	return c, nil
}

// user is who the token belongs to, with the name of the token: user@realm!name.
func (c *client) user() string {
	user, _, _ := strings.Cut(c.token, "=")
	return user
}

// started reports whether this token started a task.
func (c *client) started(upid string) bool { return parseUPID(upid).user == c.user() }

// params are the parameters of a request: string, int, bool or []string. They are
// sent as JSON, in which PVE takes booleans and numbers as they are. Without any
// an empty object is sent: on null PVE dies (AnyEvent.pm, "Not a HASH reference").
type params map[string]any

// said is p without what is "".
func (p params) said() params {
	maps.DeleteFunc(p, func(_ string, val any) bool { return val == "" })
	return p
}

func (p params) body() params {
	if p == nil {
		return params{}
	}
	return p
}

// get reads a path; query values go into the URL, where PVE knows booleans only as
// 0 and 1. An answer without data leaves into as it is.
func (c *client) get(ctx context.Context, path string, into any) error {
	body, err := c.ask(ctx, path)
	if err != nil || into == nil {
		return err
	}
	doc := struct {
		Data any `json:"data"`
	}{into}
	return json.Unmarshal(body, &doc)
}

// ask reads a path and gives the answer as it came. It does not go through the
// library, which would parse every answer twice: reading is nearly all that an agent
// does in a year.
func (c *client) ask(ctx context.Context, path string) ([]byte, error) {
	req, err := c.newRequest(ctx, http.MethodGet, path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Accept", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.call(err)
	}
	defer func() { _ = res.Body.Close() }()
	if whole, ok := res.Body.(answer); ok {
		return whole.doc, nil
	}
	return io.ReadAll(res.Body)
}

// readList reads a list. Null is none: it proves nothing of what is there, and an empty
// list is what PVE answers where there is nothing.
func readList[T any](ctx context.Context, c *client, path string, into *[]T) error {
	err := c.get(ctx, path, into)
	if err == nil && *into == nil {
		err = errNoList
	}
	return err
}

var errNoList = errors.New("the answer is null where a list was expected")

// newRequest makes a request to a path, with the token.
func (c *client) newRequest(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err == nil {
		req.Header.Set("Authorization", "PVEAPIToken="+c.token)
	}
	return req, err
}

// post, put and delete answer the UPID of the task that PVE started, "" if none.
func (c *client) post(ctx context.Context, path string, p params) (string, error) {
	var data json.RawMessage
	err := c.call(c.api.Post(ctx, path, p.body(), &data))
	return upidOf(data), err
}

// postFor sends a POST that answers at once with data.
func (c *client) postFor(ctx context.Context, path string, p params, into any) error {
	return c.call(c.api.Post(ctx, path, p.body(), into))
}

// order sends a request that makes something, and waits until it is done.
func (c *client) order(ctx context.Context, path string, p params) error {
	upid, err := c.post(ctx, path, p)
	return c.settled(ctx, upid, err)
}

// settled waits for the task of a write that was just sent. Where the answer of
// the write was lost, it returns errLost: the work may be done or not, and the
// caller must look.
func (c *client) settled(ctx context.Context, upid string, err error) error {
	if err != nil {
		if classOf(err) == classUnknown {
			return errors.Join(errLost, err)
		}
		return err
	}
	err = c.tasks.wait(ctx, upid)
	if err != nil && classOf(err) == classUnknown {
		return errors.Join(errLost, err)
	}
	return err
}

// errLost marks a write whose outcome is not known.
var errLost = errors.New("whether it was done is not known")

func (c *client) put(ctx context.Context, path string, p params) (string, error) {
	var data json.RawMessage
	err := c.call(c.api.Put(ctx, path, p.body(), &data))
	return upidOf(data), err
}

// remove sends DELETE; PVE refuses a body there, so parameters are a query.
func (c *client) remove(ctx context.Context, path string, query url.Values) (string, error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	var data json.RawMessage
	err := c.call(c.api.Delete(ctx, path, &data))
	return upidOf(data), err
}

// call unwraps what net/http puts around the transport's own errors: its text
// repeats the URL, which ours has already.
func (*client) call(err error) error {
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

// seg makes a path of segments, each escaped: nodes("pve1", "qemu", "100").
func seg(parts ...any) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(fmt.Sprint(p)))
	}
	return b.String()
}

// text gives a scalar of PVE's JSON as canonical text: numbers as written,
// booleans as 1 and 0, null as "".
func text(raw json.RawMessage) string {
	switch s := bytes.TrimSpace(raw); {
	case len(s) == 0 || string(s) == "null":
		return ""
	case string(s) == "true":
		return "1"
	case string(s) == "false":
		return "0"
	case s[0] == '"':
		if inner := bytes.Trim(s, `"`); bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
			return string(inner) // nothing to translate, as in nearly all of the thousands that a pass reads
		}
		var out string
		if json.Unmarshal(raw, &out) != nil {
			return ""
		}
		return out
	default:
		return string(s)
	}
}

// number reads a scalar that PVE sends as number or as text; 0 if it is neither.
func number(raw json.RawMessage) int {
	f, err := strconv.ParseFloat(text(raw), 64)
	if err != nil {
		return 0
	}
	return int(f)
}
