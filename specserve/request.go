package specserve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// request is a request and its answer. It belongs to the goroutine that serves it.
type request struct {
	*Server
	*http.Request

	w    http.ResponseWriter
	view *View
	now  time.Time

	endpoint string // path of its row; "" for an unknown one
	identity string // of the node that it is about; "" for none
	shown    Credential
	reason   string        // why it was refused, for the log
	limited  time.Duration // how long its client has to wait, having been refused too often; 0: it has not
	status   int           // of the answer; 0 as long as there is none
	sent     int           // bytes of its body
}

// refusal is a problem with a status of its own.
type refusal struct {
	problem *wire.Error
	status  int
}

func (r refusal) Error() string { return r.problem.Error() }

// Unwrap returns the problem.
func (r refusal) Unwrap() error { return r.problem }

// ServeHTTP answers a request. Whatever goes wrong is answered as JSON.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.underWay.Add(1)
	defer s.underWay.Done()
	x := &request{Server: s, Request: r, w: w, now: s.o.Now(), view: s.view.Load()}
	var err error
	defer func() { //nolint:contextcheck // it has the context of the request
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			s.o.Log.Error("a request ended in a panic", "error", err, "endpoint", x.endpoint, "stack", string(debug.Stack()))
		}
		if err != nil {
			x.fail(err)
		}
		x.count(err)
		x.log(r.Context(), err)
		if errors.Is(err, serve.ErrCut) {
			panic(http.ErrAbortHandler) // or the client would take what it has for all
		}
	}()
	err = x.serve()
}

// serve finds the endpoint and lets it answer. The cheap checks come first.
func (x *request) serve() error {
	w := x.w.Header()
	w.Set("X-Content-Type-Options", "nosniff")
	w.Set("Cache-Control", "no-store")
	client := networkOf(x.RemoteAddr)
	x.limited = x.refusals.Wait(rateKey{Client: client}, x.now)
	rows, name := match(x.table, x.URL.EscapedPath())
	if len(rows) == 0 {
		if x.limited > 0 {
			return x.tooMany()
		}
		return &wire.Error{Code: wire.CodeNoEndpoint}
	}
	x.endpoint = rows[0].path
	method := x.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	i := slices.IndexFunc(rows, func(e endpoint) bool { return e.method == method })
	if i < 0 {
		w.Set("Allow", allowed(rows))
		return refusal{&wire.Error{Code: wire.CodeBadRequest, Message: "this endpoint does not have the method"}, http.StatusMethodNotAllowed}
	}
	if rows[i].under == "" && (name != "" || rows[i].path != x.URL.EscapedPath()) {
		if !isName(name) {
			return &wire.Error{Code: wire.CodeBadRequest, Message: "the path does not have the name of a node", Hint: "a name has letters, digits and dashes, and begins with a letter"}
		}
		x.identity = name
		x.limited = max(x.limited, x.perNode.Wait(rateKey{Client: client, About: name}, x.now))
	}
	if x.limited > 0 && !rows[i].signed && !x.proven() {
		return x.tooMany()
	}
	if err := x.bound(rows[i].body); err != nil {
		return err
	}
	if x.view.Catalog == nil && !rows[i].early {
		return noCommit()
	}
	if err := rows[i].access(x); err != nil {
		return err
	}
	return rows[i].do(x)
}

// noCommit refuses a request that needs a commit, as long as there is none.
func noCommit() error {
	return refusal{&wire.Error{Code: wire.CodeInternal, Message: "there is no commit to serve yet", Hint: "try again later; the log of the server says what is wrong"}, http.StatusServiceUnavailable}
}

// count counts a request. Those that were refused are counted for the client, too.
func (x *request) count(err error) {
	code := wire.Code("")
	if x.status >= http.StatusBadRequest {
		code = wire.CodeOf(err)
	}
	x.counts.add(cmp.Or(x.endpoint, "unknown"), x.status, code, x.o.Now().Sub(x.now))
	if x.status < 400 || x.status >= 500 || x.status == http.StatusTooManyRequests {
		return
	}
	key := rateKey{Client: networkOf(x.RemoteAddr)}
	x.refusals.Count(key, x.now)
	if key.About = x.identity; key.About != "" {
		x.perNode.Count(key, x.now)
	}
}

// tooMany refuses a request of a client that was refused too often.
func (x *request) tooMany() error {
	x.note(networkOf(x.RemoteAddr), "refused a request: the client sent too many that were refused")
	x.unread()
	return x.later(x.limited, "")
}

// unread closes the connection with the response if a body is left unread: else the response would wait for it. A
// stream of HTTP/2 ends anyway.
func (x *request) unread() {
	if x.ContentLength != 0 && x.ProtoMajor < 2 {
		x.w.Header().Set("Connection", "close")
	}
}

// bound refuses a body that is too large.
func (x *request) bound(most int64) error {
	if x.ContentLength > most {
		x.w.Header().Set("Connection", "close") // or the answer would wait for the body
		return tooLarge(most)
	}
	x.Body = http.MaxBytesReader(x.w, x.Body, most)
	if most > 0 || x.ContentLength == 0 {
		return nil
	}
	// Its length is not known before it was read, and none is expected.
	_, err := io.Copy(io.Discard, x.Body)
	if _, is := errors.AsType[*http.MaxBytesError](err); is {
		return tooLarge(most)
	}
	if err != nil {
		return &wire.Error{Code: wire.CodeBadRequest, Message: "the body cannot be read", Cause: err}
	}
	return nil
}

func tooLarge(most int64) error {
	return refusal{&wire.Error{Code: wire.CodeBadRequest, Message: fmt.Sprintf("the body is larger than %d bytes", most)}, http.StatusRequestEntityTooLarge}
}

// send sends an answer.
func (x *request) send(status int, contentType string, body []byte) error {
	h := x.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.status = status
	x.w.WriteHeader(status)
	if x.Method == http.MethodHead {
		return nil
	}
	n, err := x.w.Write(body)
	x.sent = n
	return err
}

// unavailable is after how many seconds to try again what the server cannot answer yet.
const unavailable = "5"

// fail sends the answer to an error, if there is none yet.
func (x *request) fail(err error) {
	if x.status != 0 {
		return // the client does not take it
	}
	p, ok := errors.AsType[*wire.Error](err)
	if !ok {
		p = &wire.Error{Code: wire.CodeInternal} // its text is for the log
	}
	status := p.Status()
	if r, ok := errors.AsType[refusal](err); ok {
		status = r.status
	}
	h := x.w.Header()
	h.Del("Etag")
	h.Set("Cache-Control", "no-store")
	if status == http.StatusServiceUnavailable && h.Get("Retry-After") == "" {
		h.Set("Retry-After", unavailable)
	}
	if status == http.StatusUnauthorized {
		challenge := `Bearer realm="homestak-gitops"`
		if p.Code != wire.CodeNoCredential {
			challenge += `, error="invalid_token"` // RFC 6750, section 3
		}
		h.Set("WWW-Authenticate", challenge)
		if strings.HasPrefix(x.endpoint, serve.RepositoryPrefix) {
			h.Add("WWW-Authenticate", `Basic realm="homestak-gitops", charset="UTF-8"`) // what git can do
		}
	}
	_ = x.send(status, "application/json", p.Body()) // fails only if the client is gone
}

// log writes the line of a request. It has nothing that a client wrote, but for the name of a node
// that is in the table: a credential may be sent as anything.
func (x *request) log(ctx context.Context, err error) {
	level := slog.LevelInfo
	switch {
	case x.status == http.StatusTooManyRequests, x.endpoint == "/health":
		level = slog.LevelDebug // a warning was logged, or nothing happened
	case x.status >= http.StatusInternalServerError:
		level = slog.LevelError
	}
	if !x.o.Log.Enabled(ctx, level) {
		return
	}
	attrs := []any{
		"method", methodOf(x.Request), "endpoint", cmp.Or(x.endpoint, "unknown"), "status", x.status, "bytes", x.sent,
		"remote", x.RemoteAddr, "took", x.o.Now().Sub(x.now).Round(time.Microsecond), "proto", x.Proto,
	}
	if x.identity != "" {
		attrs = append(attrs, "identity", x.knownIdentity())
	}
	if x.shown.Kind != "" {
		attrs = append(attrs, "credential", x.shown.Kind)
	}
	if x.shown.Identity != "" {
		attrs = append(attrs, "of", x.shown.Identity)
	}
	if c := x.view.commit(); c != "" {
		attrs = append(attrs, "commit", c)
	}
	if p, ok := errors.AsType[*wire.Error](err); ok {
		attrs = append(attrs, "code", string(p.Code), "reason", cmp.Or(x.reason, causeOf(p)))
	} else if err != nil {
		attrs = append(attrs, "error", err)
	}
	x.o.Log.Log(ctx, level, "request", attrs...)
}

// causeOf is the reason of a problem for the log.
func causeOf(p *wire.Error) string {
	if p.Cause != nil {
		if inner, ok := errors.AsType[*wire.Error](p.Cause); ok {
			return cmp.Or(inner.Message, inner.Code.Kind().Message)
		}
		return p.Cause.Error()
	}
	return cmp.Or(p.Message, p.Code.Kind().Message)
}

func (x *request) knownIdentity() string {
	if x.view.node(x.identity) != nil || x.view.Catalog.Suspended(x.identity) != "" {
		return x.identity
	}
	return "unknown"
}

// methodOf is a method that HTTP knows; a client may send any word.
func methodOf(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodConnect, http.MethodTrace:
		return r.Method
	default:
		return "other"
	}
}
