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
	"unicode/utf8"

	pve "github.com/luthermonson/go-proxmox"
)

const userAgent = "homestak-gitops"

// client speaks to one PVE API. Safe for concurrent use: everything in it is set
// before the first request.
type client struct {
	api   *pve.Client
	http  *http.Client // for what the library cannot send: uploads that can be cancelled
	base  string       // URL with /api2/json
	token string
	tasks *tasks
}

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
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "PVEAPIToken="+c.token)
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

// post, put and delete answer the UPID of the task that PVE started, "" if none.
func (c *client) post(ctx context.Context, path string, p params) (string, error) {
	var data json.RawMessage
	err := c.call(c.api.Post(ctx, path, p.body(), &data))
	return upidOf(data), err
}

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
