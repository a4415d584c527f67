package core

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// bodyLimit is how much a body may hold that is no upload (APIServer/AnyEvent.pm).
const bodyLimit = 512 << 10

// Request is what came in, read to its end.
type Request struct {
	HTTP   *http.Request
	Method string
	Format string // Of the answer, as the path says; empty for what is not of the API.
	Path   string // Behind /api2/FORMAT, percent-encoded.
	Params map[string]any
	Body   []byte // The first bodyLimit bytes.
	Upload *upload
	Err    error     // What is wrong with the body, told after the login was checked.
	Begun  time.Time // When its service began; it may have waited for locks since.
	v9     bool      // The host is of the ninth major version.
	Forked *Task     // The task that it started and waits for, see call.await.

	NoWorker bool // The process of its task does not start, see NoWorker.
}

// ReadRequest reads a request. It never fails: what is wrong is for later.
func ReadRequest(r *http.Request, v9 bool) *Request {
	escaped := r.URL.EscapedPath()
	req := &Request{HTTP: r, Method: r.Method, Params: map[string]any{}, v9: v9}
	req.Format, req.Path = apiPath(escaped)
	if parts := perl.Segments(req.Path); len(parts) > 6 && parts[0] == "nodes" && parts[2] == "storage" && parts[4] == "content" {
		// A volume's name takes the rest of the path, slashes included.
		req.Path = "/" + strings.Join(parts[:5], "/") + "/" + strings.Join(parts[5:], "%2F")
	}
	if req.Method == "" {
		req.Method = http.MethodGet
	}
	maps.Copy(req.Params, pveapi.DecodeForm(r.URL.RawQuery))
	req.Err = req.readBody()
	delete(req.Params, "_dc") // What browsers send against caches.
	return req
}

// Shown is the path as error texts have it.
func (req *Request) Shown() string {
	path := "/" + strings.Join(perl.Segments(req.Path), "/")
	if plain, err := url.PathUnescape(path); err == nil {
		return plain
	}
	return path
}

// Node is the node that will do the work, as far as the path tells.
func (req *Request) Node() string {
	parts := perl.Segments(req.Path)
	if len(parts) > 2 && parts[0] == "nodes" {
		return parts[1]
	}
	return ""
}

// Again is the request with its body to be read once more.
func (req *Request) Again(ctx context.Context) *http.Request {
	r := req.HTTP.Clone(ctx)
	r.Body = io.NopCloser(bytes.NewReader(req.Body))
	return r
}

// readBody reads the parameters of a body, in the order of checks of
// unshift_read_header in APIServer/AnyEvent.pm.
func (req *Request) readBody() error {
	r := req.HTTP
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if r.ContentLength < 0 {
		_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, bodyLimit))
		return perl.PlainError(http.StatusNotImplemented, "chunked transfer encoding not supported")
	}
	if r.ContentLength == 0 {
		return nil
	}
	kind, options, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind == "multipart/form-data" && r.Method == http.MethodPost {
		var err error
		req.Upload, err = req.readUpload(r.Body, options["boundary"])
		return err
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, bodyLimit+1))
	if err != nil {
		return perl.PlainError(http.StatusBadRequest, "reading the body: "+err.Error())
	}
	req.Body = body
	switch {
	case r.Method != http.MethodPut && r.Method != http.MethodPost:
		return perl.PlainError(http.StatusNotImplemented, fmt.Sprintf("Unexpected content for method '%s'", r.Method))
	case len(body) > bodyLimit:
		req.Body = body[:bodyLimit]
		return perl.PlainError(http.StatusNotImplemented, "for data too large")
	case kind == "application/json":
		return req.readJSON()
	case kind == "" || kind == "application/x-www-form-urlencoded":
		maps.Copy(req.Params, pveapi.DecodeForm(string(body)))
		return nil
	default:
		return perl.PlainError(http.StatusHTTPVersionNotSupported+1, // 506, as PVE has it.
			fmt.Sprintf("upload 'Content-Type '%s' not implemented", kind))
	}
}

// readJSON reads an object. The texts of failures are Perl's.
func (req *Request) readJSON() error {
	decoder := json.NewDecoder(bytes.NewReader(req.Body))
	decoder.UseNumber()
	var value any
	err := decoder.Decode(&value)
	if err == nil && decoder.More() {
		err = &json.SyntaxError{Offset: decoder.InputOffset() + 1}
	}
	if err != nil {
		return req.jsonError(err)
	}
	object, ok := value.(map[string]any)
	if !ok {
		return req.diedInServer("Not a HASH reference", 957, 978)
	}
	maps.Copy(req.Params, object)
	return nil
}

// jsonError tells a syntax error as JSON::XS does.
func (req *Request) jsonError(err error) error {
	body := req.Body
	offset, expected := len(body), ", or } expected while parsing object/hash"
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) && int(syntax.Offset) <= len(body) && !errors.Is(err, io.ErrUnexpectedEOF) &&
		syntax.Error() != "unexpected end of JSON input" {
		offset = max(int(syntax.Offset)-1, 0)
		switch text := syntax.Error(); {
		case strings.Contains(text, "beginning of object key"):
			expected = `'"' expected`
		case strings.Contains(text, "beginning of value"):
			expected = "malformed JSON string, neither tag, array, object, number, string or atom"
		case text == "":
			expected = "garbage after JSON object"
		}
	}
	before := string(body[offset:])
	if before == "" {
		before = "(end of string)"
	}
	return req.diedInServer(fmt.Sprintf("%s, at character offset %d (before \"%s\")", expected, offset, before), 917, 934)
}

// diedInServer is a die of the HTTP server itself, which names its line: in PVE 8 and 9.
func (req *Request) diedInServer(text string, line8, line9 int) error {
	line := line8
	if req.v9 {
		line = line9
	}
	return perl.Died(fmt.Sprintf("%s at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line %d.", text, line))
}

// apiPath takes a path apart: the format and the path of the call. A path that is not
// one of the API stays whole, without a format.
func apiPath(path string) (format, rest string) {
	if m := apiURI.FindStringSubmatch(path); m != nil {
		return m[1], m[2]
	}
	return "", path
}

// apiURI is how a path of the API begins ($split_abs_uri in PVE/APIServer/AnyEvent.pm).
var apiURI = regexp.MustCompile(`^/api2/+([a-z][a-z0-9]+)(/.*)?$`)
