package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

const (
	prefix = "/api2/json"
	// requestTimeout is a little above the 30 s that pveproxy waits for a node itself (pve-http-server
	// AnyEvent.pm), so that its answer arrives before we give up.
	requestTimeout = 35 * time.Second
	// maxAnswer bounds an answer; the list of 10,000 guests is about 3 MB.
	maxAnswer = 64 << 20
	// readTries is the number of times that a GET is sent. Nothing else is ever sent twice: PVE may have done the work.
	readTries = 3
)

// transport sits under the client library and makes its answers trustworthy: every
// non-2xx becomes a typed error (the library takes some of them for success),
// reads are repeated, and no node gets more requests at once than it can serve.
type transport struct {
	inner http.RoundTripper
	token string // user@realm!name
	sent  func(method string, status int)
	all   chan struct{} // a slot for each request in flight
	// perNode has one such channel a PVE node, made before the first request and never changed.
	perNode map[string]chan struct{}
}

// RoundTrip sends a request; an answer that is returned is always a 2xx.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.enter(r.Context(), r.URL.Path); err != nil {
		return nil, err
	}
	defer t.leave(r.URL.Path)
	for try := 1; ; try++ {
		res, err := t.once(r)
		if err == nil || r.Method != http.MethodGet || try == readTries || ClassOf(err) != OutcomeUnknown || r.Context().Err() != nil {
			return res, err
		}
		if Sleep(r.Context(), backoff(try, r.URL.Path)) != nil {
			return nil, err
		}
	}
}

// once sends the request and reads the whole answer, so that the slot it has
// covers all of its work and the connection can be used again.
func (t *transport) once(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	if strings.HasSuffix(r.URL.Path, "/upload") {
		ctx = r.Context() // as long as the file takes; the step has a deadline of its own
	}
	path := strings.TrimPrefix(r.URL.Path, prefix)
	res, err := t.inner.RoundTrip(r.WithContext(ctx))
	if err != nil {
		t.sent(r.Method, 0)
		return nil, &NetError{r.Method, path, Explain(err)}
	}
	t.sent(r.Method, res.StatusCode)
	defer res.Body.Close()
	body, err := readAnswer(res)
	if err != nil {
		return nil, &NetError{r.Method, path, fmt.Errorf("reading the answer: %w", err)}
	}
	if res.StatusCode/100 != 2 {
		return nil, t.answerError(r.Method, path, res, body)
	}
	if doc := bytes.TrimSpace(body); len(doc) < 2 || doc[0] != '{' || doc[len(doc)-1] != '}' { // the client library parses it; this is for pages and proxies
		return nil, &Error{
			Method: r.Method, Path: path, Status: http.StatusBadGateway,
			Message: fmt.Sprintf("the answer is not JSON (%s): is this the API of a PVE host?", res.Header.Get("Content-Type")),
		}
	}
	res.Body = answer{bytes.NewReader(body), body}
	return res, nil
}

// answer is a body that was read already; who knows it takes doc as it is.
type answer struct {
	*bytes.Reader
	doc []byte
}

// Close has nothing to do.
func (answer) Close() error { return nil }

// readAnswer reads a whole body, at once where its length is known.
func readAnswer(res *http.Response) ([]byte, error) {
	if n := res.ContentLength; n > 0 && n <= maxAnswer {
		body := make([]byte, n)
		_, err := io.ReadFull(res.Body, body)
		return body, err
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = errors.New("the answer is larger than 64 MiB")
	}
	return body, err
}

// answerError reads PVE's message from the body, or before libpve-http-server
// 5.2 and behind its plain answers from the status line.
func (t *transport) answerError(method, path string, res *http.Response, body []byte) error {
	e := &Error{Method: method, Path: path, Status: res.StatusCode, Token: t.token}
	var doc struct {
		Message string         `json:"message"`
		Errors  map[string]any `json:"errors"`
	}
	if json.Unmarshal(body, &doc) == nil {
		e.Message = strings.TrimSpace(doc.Message)
		for k, v := range doc.Errors {
			if e.Params == nil {
				e.Params = map[string]string{}
			}
			e.Params[k] = fmt.Sprint(v)
		}
	}
	if e.Message == "" {
		_, e.Message, _ = strings.Cut(res.Status, " ")
	}
	return e
}

func (t *transport) enter(ctx context.Context, path string) error {
	if node := t.perNode[nodeOf(path)]; node != nil {
		select {
		case node <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case t.all <- struct{}{}:
		return nil
	case <-ctx.Done():
		if node := t.perNode[nodeOf(path)]; node != nil {
			<-node
		}
		return ctx.Err()
	}
}

func (t *transport) leave(path string) {
	<-t.all
	if node := t.perNode[nodeOf(path)]; node != nil {
		<-node
	}
}

// nodeOf returns the node that serves a path; "" if the one we are connected to does.
func nodeOf(path string) string {
	rest, ok := strings.CutPrefix(path, prefix+"/nodes/")
	if !ok {
		return ""
	}
	node, _, _ := strings.Cut(rest, "/")
	return node
}

// backoff is the pause before try+1: 100 ms, 400 ms, each up to a quarter longer
// so that many clients do not come back together. It is drawn from the clock and from
// what is asked: where time is made up, the same comes again.
func backoff(try int, path string) time.Duration {
	base := 100 * time.Millisecond << (2 * (try - 1))
	h := fnv.New64a()
	_, _ = io.WriteString(h, path)                                       // never fails
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), h.Sum64())) //nolint:gosec // no secret depends on it
	return base + time.Duration(r.Int64N(int64(base/4)))
}

// Sleep pauses, or returns the context's error at once when it ends.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// NewTLSTransport is the connection to a real pveproxy: HTTP/1.1 only, idle
// connections given up before the server's 5 s, as many as requests may run.
func NewTLSTransport(h *model.Host, width int) (http.RoundTripper, error) {
	cfg, err := TLSConfig(h)
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		TLSClientConfig:       cfg,
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 0, // the whole request has a deadline
		IdleConnTimeout:       4 * time.Second,
		MaxIdleConns:          width,
		MaxIdleConnsPerHost:   width,
		MaxConnsPerHost:       width,
		DisableCompression:    true, // in a local network it only costs both sides CPU
		ForceAttemptHTTP2:     false,
		TLSNextProto:          map[string]func(string, *tls.Conn) http.RoundTripper{},
	}, nil
}

// TLSConfig checks the host by fingerprint, else by its CA, else by the system's.
func TLSConfig(h *model.Host) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(8)}
	switch {
	case h.Fingerprint != "":
		want, err := ParseFingerprint(h.Fingerprint)
		if err != nil {
			return nil, err
		}
		cfg.InsecureSkipVerify = true //nolint:gosec // the fingerprint below is the check
		cfg.VerifyConnection = func(cs tls.ConnectionState) error {
			got := sha256.Sum256(cs.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare(got[:], want) != 1 {
				return &fingerprintError{got: hex.EncodeToString(got[:]), want: hex.EncodeToString(want)}
			}
			return nil
		}
	case len(h.CAPEM) > 0:
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(h.CAPEM) {
			return nil, fmt.Errorf("ca %s of host %s contains no certificate in PEM form", h.CA, h.Name)
		}
		cfg.RootCAs = pool
	case h.InsecureTLS:
		cfg.InsecureSkipVerify = true //nolint:gosec // asked for in the site, which warns
	}
	return cfg, nil
}

// ParseFingerprint reads a SHA-256 fingerprint in hex, with or without colons.
func ParseFingerprint(s string) ([]byte, error) {
	clean := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(strings.TrimSpace(s)), "sha256:"), ":", "")
	b, err := hex.DecodeString(clean)
	if err != nil || len(b) != sha256.Size {
		return nil, fmt.Errorf("fingerprint %q is not a SHA-256 in hex (`pvenode cert info` prints it)", s)
	}
	return b, nil
}

// fingerprintError distinguishes a changed certificate from any other trouble with TLS.
type fingerprintError struct{ got, want string }

// Error names both fingerprints and what to do when the change was meant.
func (e *fingerprintError) Error() string {
	return fmt.Sprintf("the host's certificate has the fingerprint sha256:%s, the site expects sha256:%s: "+
		"another host answers, or the certificate was renewed; compare `pvenode cert info` on the host and set fingerprint in its host block", e.got, e.want)
}

// Explain turns the usual network errors into what to do about them.
func Explain(err error) error {
	var unknownCA x509.UnknownAuthorityError
	var dns *net.DNSError
	var fp *fingerprintError
	switch {
	case errors.As(err, &fp):
		return fp
	case errors.As(err, &unknownCA):
		return fmt.Errorf("%w: set fingerprint (or ca) in the host block; `pvenode cert info` on the host prints it", err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: does pveproxy run there, and is the port in api right (8006 unless changed)?", err)
	case errors.As(err, &dns):
		return fmt.Errorf("%w: is the name in api right?", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer in %s: %w", requestTimeout, err)
	default:
		return err
	}
}
