package serve

// Handler serves the repository of a site over git's smart http, read-only, and single files of it:
//
//	GET  /site.git/info/refs?service=git-upload-pack
//	POST /site.git/git-upload-pack
//	GET  /site.git/raw/{commit}/{path}
//
// The caller wraps it with authorization, TLS and rate limits.

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"
)

// RepositoryPrefix is the path of the repository: a client clones the URL of the server with "/site.git".
const RepositoryPrefix = "/site.git/"

// HandlerOptions of a handler. The zero value is useful.
type HandlerOptions struct {
	Bounds Options

	// Quiet limits the time in which a client sends its request, and then reads each part of
	// the answer; 30 s if zero. Total is how long the answer may take, 15 minutes if zero.
	Quiet, Total time.Duration

	Log *slog.Logger // gets what is wrong with the repository itself; nil: none
}

// RefusalError is the reason for a refused request. Errors in requests of git's protocol are sent in its own form
// instead, which git shows to its user.
type RefusalError struct {
	Status  int    // of HTTP
	Message string // what is wrong
	Hint    string // what to do
}

func (e *RefusalError) Error() string { return e.Message + "; " + e.Hint }

// Handler is the http.Handler of one repository.
type Handler struct {
	o      HandlerOptions
	server *server
}

// NewHandler makes a handler that shows nothing yet.
func NewHandler(o HandlerOptions) *Handler {
	o.Quiet, o.Total = cmp.Or(o.Quiet, 30*time.Second), cmp.Or(o.Total, 15*time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Handler{o, newServer(o.Bounds)}
}

// Publish shows a snapshot from now on; nil shows nothing. Clients that began with the one
// before can end what they began.
func (h *Handler) Publish(s *Snapshot) { h.server.Publish(s) }

// ServeHTTP implements http.Handler. A refusal is one line of text.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := h.Serve(w, r)
	if refused, ok := errors.AsType[*RefusalError](err); ok {
		http.Error(w, refused.Error(), refused.Status)
	} else if errors.Is(err, ErrCut) {
		panic(http.ErrAbortHandler)
	}
}

// Serve answers a request. If it cannot, the error is a RefusalError, and nothing is written
// but headers. If the answer was begun and has to end early, the error is serve.ErrCut: the
// caller has to end the connection, since the client would take what it has for all.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), h.o.Total)
	defer cancel()
	r = r.WithContext(ctx)
	w.Header().Set("Cache-Control", "private, no-cache")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	// The path is split before it is decoded: a slash that is encoded does not separate.
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), RepositoryPrefix)
	answer, allowed := h.refs, []string{http.MethodGet, http.MethodHead}
	switch {
	case ok && path == "info/refs":
	case ok && path == "git-upload-pack":
		answer, allowed = h.uploadPack, []string{http.MethodPost}
	case ok && strings.HasPrefix(path, "raw/"):
		answer = func(w http.ResponseWriter, r *http.Request) error {
			return h.raw(w, r, strings.TrimPrefix(path, "raw/"))
		}
	default:
		return &RefusalError{http.StatusNotFound, "nothing is served at this path", "clone " + strings.TrimSuffix(RepositoryPrefix, "/") + " of this server with git, or get one file below " + RepositoryPrefix + "raw/HEAD/"}
	}
	if !slices.Contains(allowed, r.Method) {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		return &RefusalError{http.StatusMethodNotAllowed, "this path takes " + strings.Join(allowed, " and ") + " only", "the repository is read-only; push to the one that its server follows"}
	}
	return answer(w, r)
}

// refs answers with the list of refs.
func (h *Handler) refs(w http.ResponseWriter, r *http.Request) error {
	service := r.URL.Query().Get("service")
	switch service {
	case "git-upload-pack":
	case "git-receive-pack":
		return h.protocolError(w, service, "this repository is read-only; push to the one that its server follows")
	default:
		return &RefusalError{http.StatusForbidden, "only git's smart protocol is served", "use git 1.6.6 or newer, and leave GIT_SMART_HTTP alone"}
	}
	snapshot := h.server.Current()
	if snapshot == nil {
		return h.protocolError(w, service, errNothing.Error()+"; try again")
	}
	sum := sha256.Sum256(snapshot.Refs())
	return h.content(w, r, "application/x-git-upload-pack-advertisement", base64.RawURLEncoding.EncodeToString(sum[:18]), int64(len(snapshot.Refs())),
		func(_ context.Context, w io.Writer) error { _, err := w.Write(snapshot.Refs()); return err })
}

// protocolError answers a request for refs with a message that git shows.
func (h *Handler) protocolError(w http.ResponseWriter, service, message string) error {
	var b bytes.Buffer
	if err := writeRefusal(&b, service, message); err != nil {
		panic(err) // a buffer takes everything
	}
	w.Header().Set("Content-Type", "application/x-"+service+"-advertisement")
	out := h.paced(w)
	defer out.end()
	_, _ = out.Write(b.Bytes()) // the server notices a client that went away
	return nil
}

// uploadPack answers a round of a fetch.
func (h *Handler) uploadPack(w http.ResponseWriter, r *http.Request) error {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != "application/x-git-upload-pack-request" {
		return &RefusalError{http.StatusUnsupportedMediaType, "the body is not a request of git", "use git, or send application/x-git-upload-pack-request"}
	}
	in := &body{in: http.MaxBytesReader(w, r.Body, MostRequest), left: MostRequest}
	switch strings.ToLower(r.Header.Get("Content-Encoding")) {
	case "", "identity":
	case "gzip", "x-gzip":
		in.zipped = true
	default:
		return &RefusalError{http.StatusUnsupportedMediaType, "the body is compressed in an unknown way", "use gzip, or none"}
	}
	w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
	out := h.paced(w)
	defer out.end()
	_ = out.control.SetReadDeadline(time.Now().Add(h.o.Quiet))
	err := h.server.UploadPack(r.Context(), in, out)
	var large *http.MaxBytesError
	switch {
	case err == nil:
		return nil
	case out.begun:
		return h.cut(r, err)
	case errors.As(err, &large), errors.Is(err, errLarge):
		return &RefusalError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the request has more than %d KiB", MostRequest>>10), "clone again: the histories are too different"}
	case in.err != nil:
		return &RefusalError{http.StatusBadRequest, "the body of the request cannot be read", "try again"}
	}
	return h.broken(r, err)
}

// cut ends a response that was begun and cannot be completed. If the protocol has no room for a message, it closes
// the connection.
func (h *Handler) cut(r *http.Request, err error) error {
	if r.Context().Err() == nil {
		h.o.Log.Info("A client of the repository did not get all of its answer.", "error", err)
	}
	if errors.Is(err, ErrCut) {
		return err
	}
	return nil // the client got a message
}

// broken answers where the repository cannot be read.
func (h *Handler) broken(r *http.Request, err error) error {
	if r.Context().Err() == nil {
		h.o.Log.Error("The repository cannot be read for a client.", "error", err)
	}
	return &RefusalError{http.StatusInternalServerError, "the repository cannot be read", "see the log of the server"}
}

// content answers with something that has an ETag.
func (h *Handler) content(w http.ResponseWriter, r *http.Request, kind, tag string, size int64, write func(context.Context, io.Writer) error) error {
	tag = `"` + tag + `"`
	w.Header().Set("ETag", tag)
	if matches(r.Header.Values("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", fmt.Sprint(size))
	if r.Method == http.MethodHead {
		return nil
	}
	out := h.paced(w)
	defer out.end()
	err := write(r.Context(), out)
	switch {
	case err == nil:
		return nil
	case out.begun:
		return h.cut(r, fmt.Errorf("%w: %w", ErrCut, err))
	}
	w.Header().Del("ETag")
	w.Header().Del("Content-Length")
	return h.broken(r, err)
}

// matches reads If-None-Match.
func matches(header []string, tag string) bool {
	for item := range strings.SplitSeq(strings.Join(header, ","), ",") {
		item = strings.TrimPrefix(strings.TrimSpace(item), "W/")
		if item == tag || item == "*" {
			return true
		}
	}
	return false
}

// errLarge is of a body that is larger once it is decompressed.
var errLarge = errors.New("the request is too large")

// body is the body of a request, decompressed. It ends when it is too large.
type body struct {
	in     io.Reader
	zipped bool
	unzip  *gzip.Reader
	left   int64
	err    error // not the end
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.read(p)
	if b.left -= int64(n); b.left < 0 {
		err = errLarge
	}
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = err
	}
	return n, err
}

func (b *body) read(p []byte) (int, error) {
	if !b.zipped {
		return b.in.Read(p)
	}
	var err error
	if b.unzip == nil {
		b.unzip, err = gzip.NewReader(b.in)
	}
	n := 0
	if err == nil {
		n, err = b.unzip.Read(p)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		err = errZip
	}
	return n, err
}

// errZip is of a body that is not what gzip writes.
var errZip = errors.New("the body of the request cannot be decompressed")

// paced is a writer that ends if the client takes nothing for a while.
type paced struct {
	w       http.ResponseWriter
	control *http.ResponseController
	quiet   time.Duration
	begun   bool
}

func (h *Handler) paced(w http.ResponseWriter) *paced {
	return &paced{w, http.NewResponseController(w), h.o.Quiet, false}
}

// Write implements io.Writer. Some writers, those of tests, have no deadlines.
func (p *paced) Write(b []byte) (int, error) {
	if !p.begun {
		p.begun = true
		_ = p.control.SetReadDeadline(time.Time{}) // the request is read
	}
	_ = p.control.SetWriteDeadline(time.Now().Add(p.quiet))
	return p.w.Write(b)
}

// Flush sends what was written.
func (p *paced) Flush() error {
	_ = p.control.SetWriteDeadline(time.Now().Add(p.quiet))
	return p.control.Flush()
}

// end sends what is left, and removes the deadline: the connection may have another request.
func (p *paced) end() {
	if p.begun {
		_ = p.control.Flush()
		_ = p.control.SetWriteDeadline(time.Time{})
	}
}
