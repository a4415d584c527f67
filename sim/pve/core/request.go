package core

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/content"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// bodyLimit is the limit of a body that is not an upload (APIServer/AnyEvent.pm).
const bodyLimit = 512 << 10

// Request is the incoming request, read to its end.
type Request struct {
	HTTP   *http.Request
	Method string
	Format string // Of the answer, as the path says; empty for what is not of the API.
	Path   string // Behind /api2/FORMAT, percent-encoded.
	Params map[string]any
	Body   []byte // The first bodyLimit bytes.
	Upload *upload
	Err    error     // Error of the body, returned after the login was checked.
	Begun  time.Time // When its service began; it may have waited for locks since.
	v9     bool      // The host is of the ninth major version.
	Forked *Task     // The task that it started and waits for, see call.await.

	NoWorker bool // The process of its task does not start, see NoWorker.
}

// ReadRequest reads a request. It never fails: what is wrong is for later.
func ReadRequest(r *http.Request, v9 bool) *Request {
	escaped := r.URL.EscapedPath()
	req := &Request{HTTP: r, Method: r.Method, Params: map[string]any{}, v9: v9}
	req.Format, req.Path = APIPath(escaped)
	if parts := perl.Segments(req.Path); len(parts) > 6 && parts[0] == "nodes" && parts[2] == "storage" && parts[4] == "content" {
		// A volume's name takes the rest of the path, slashes included.
		req.Path = "/" + strings.Join(parts[:5], "/") + "/" + strings.Join(parts[5:], "%2F")
	}
	req.Method = cmp.Or(req.Method, http.MethodGet)
	maps.Copy(req.Params, pveapi.DecodeForm(r.URL.RawQuery))
	req.Err = req.readBody()
	delete(req.Params, "_dc") // Sent by browsers against caches.
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
	before := cmp.Or(string(body[offset:]), "(end of string)")
	return req.diedInServer(fmt.Sprintf("%s, at character offset %d (before \"%s\")", expected, offset, before), 917, 934)
}

// diedInServer is a die of the HTTP server itself, which names its line: in PVE 8 and 9.
func (req *Request) diedInServer(text string, line8, line9 int) error {
	line := line8
	if req.v9 {
		line = line9
	}
	return died(fmt.Sprintf("%s at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line %d.", text, line))
}

// APIPath takes a path apart: the format and the path of the call. A path that is not
// one of the API stays whole, without a format. It begins as $split_abs_uri in
// PVE/APIServer/AnyEvent.pm says: ^/api2/+([a-z][a-z0-9]+)(/.*)?$. Every request is read
// here, and that expression took a fiftieth of the time of the simulator.
func APIPath(path string) (format, rest string) {
	after, found := strings.CutPrefix(path, "/api2/")
	after = strings.TrimLeft(after, "/")
	format, _, _ = strings.Cut(after, "/")
	rest = after[len(format):]
	if !found || len(format) < 2 || format[0] < 'a' || strings.Contains(rest, "\n") ||
		strings.TrimLeft(format, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return "", path
	}
	return format, rest
}

// upload is the file part of a multipart body.
type upload struct {
	filename string
	*content.FileContent
}

// readUpload reads a multipart body: text fields become parameters, the part
// named filename is the file. Only its size and sums are kept. PVE does not parse
// the body part by part: it searches for the fields it knows one after the other, each
// from where the last one ended (file_upload_multipart in pve-http-server,
// PVE/APIServer/AnyEvent.pm). So their order counts, and anything between them is refused.
func (req *Request) readUpload(body io.Reader, boundary string) (*upload, error) {
	if boundary == "" {
		return nil, perl.PlainError(http.StatusNotImplemented, "upload without a boundary")
	}
	stream := bufio.NewReaderSize(body, fieldsMost)
	head, err := stream.Peek(fieldsMost)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, perl.PlainError(http.StatusBadRequest, "reading the upload: "+err.Error())
	}
	defer func() { _, _ = io.Copy(io.Discard, stream) }()
	all := len(head)
	f := form{req: req, rest: head, delim: "--" + regexp.QuoteMeta(boundary) + `\r?\n`}
	f.skip(`^.*?(` + f.delim + `)`)
	for _, name := range []string{"content", "checksum-algorithm", "checksum"} {
		value, there, err := f.field(name)
		if err != nil {
			return nil, err
		}
		if there {
			req.Params[name] = value
		}
	}
	filename, err := f.file()
	if err != nil {
		return nil, err
	}
	if _, err := stream.Discard(all - len(f.rest)); err != nil {
		return nil, perl.PlainError(http.StatusBadRequest, "reading the upload: "+err.Error())
	}
	// The rest is the data of one part, up to the last boundary.
	data := multipart.NewReader(io.MultiReader(strings.NewReader("--"+boundary+"\r\n\r\n"), stream), boundary)
	part, err := data.NextPart()
	if err != nil {
		return nil, req.uploadFailed()
	}
	content, err := content.ReadContent(part)
	if err != nil {
		return nil, req.uploadFailed()
	}
	req.Params["filename"] = filename
	return &upload{filename, content}, nil
}

// fieldsMost bounds how much of a body is searched for its text fields.
const fieldsMost = 64 << 10

// form is a multipart body, as far as it was not taken yet.
type form struct {
	req   *Request
	rest  []byte
	delim string // pattern of the line between two parts
}

func (req *Request) uploadFailed() error { return req.diedInServer("upload failed", 1317, 1370) }

// skip drops what a pattern matches but for its first group.
func (f *form) skip(pattern string) {
	if m := regexp.MustCompile(`(?s)` + pattern).FindSubmatchIndex(f.rest); m != nil {
		keep := m[1]
		if len(m) > 2 {
			keep = m[2]
		}
		f.rest = f.rest[keep:]
	}
}

// field takes a text field, which must be in the next part.
func (f *form) field(name string) (value string, there bool, err error) {
	pattern := regexp.MustCompile(`(?s)^` + f.delim + `.*?Content-Disposition: (.*?); name="` + name + `"(.*?` + f.delim + `)`)
	m := pattern.FindSubmatchIndex(f.rest)
	if m == nil {
		return "", false, nil
	}
	disposition := string(f.rest[m[2]:m[3]])
	f.rest = f.rest[m[4]:]
	if err := mustBeFormData(disposition); err != nil {
		return "", false, err
	}
	f.skip(`^.*?\r?\n\r?\n`)
	if m := regexp.MustCompile(`(?s)^(.*?)` + f.delim).FindSubmatchIndex(f.rest); m != nil {
		value, f.rest = strings.TrimSpace(string(f.rest[m[2]:m[3]])), f.rest[m[3]:]
	}
	return value, true, nil
}

// file takes the head of the file's part, which must be the next one and begin with
// what it is, and gives the name of the file.
func (f *form) file() (string, error) {
	pattern := regexp.MustCompile(`(?s)^` + f.delim + `Content-Disposition: (.*?); name="(.*?)"; filename="([^"]+)"`)
	m := pattern.FindSubmatchIndex(f.rest)
	if m == nil {
		return "", f.req.uploadFailed()
	}
	disposition, field, name := string(f.rest[m[2]:m[3]]), string(f.rest[m[4]:m[5]]), string(f.rest[m[6]:m[7]])
	f.rest = f.rest[m[1]:]
	if err := mustBeFormData(disposition); err != nil {
		return "", err
	}
	if field != "filename" {
		return "", f.req.diedInServer("wrong field name '"+field+"' for file upload, expected 'filename'", 1281, 1325)
	}
	f.skip(`^.*?\r?\n\r?\n`)
	return strings.TrimSpace(name), nil
}

func mustBeFormData(disposition string) error {
	if disposition == "form-data" {
		return nil
	}
	return died("wrong Content-Disposition '" + disposition + "' in multipart, expected 'form-data'")
}

// died is a die inside the HTTP server.
func died(text string) error {
	return &perl.APIError{Status: http.StatusInternalServerError, Message: text, Plain: true, Text: text + "\n"}
}
