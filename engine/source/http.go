package source

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"

	"github.com/homestak/homestak-gitops/engine/model"
)

// httpRemote speaks git's smart protocol over http, with go-git's client. One connection
// is kept open between checks; it is replaced when the trusted certificates change.
type httpRemote struct {
	o    remoteOptions
	from address

	base *http.Transport // nil as long as nothing was asked, and where Options has a transport
	ca   string          // the contents of the CA file that base trusts
}

// httpConversation is one check, and the fetch that may follow. It is the
// http.RoundTripper of go-git's session: there it limits and checks each answer.
type httpConversation struct {
	*httpRemote
	x        *exchange
	session  transport.UploadPackSession
	answered bool // the last request has an answer, which may end early
}

func (r *httpRemote) Ask(ctx context.Context) (conversation, *packp.AdvRefs, error) {
	if err := r.connect(); err != nil {
		return nil, nil, err
	}
	login, err := r.login()
	if err != nil {
		return nil, nil, err
	}
	c := &httpConversation{httpRemote: r, x: newExchange(ctx, r.o.Timeout)}
	c.session, err = githttp.NewClient(&http.Client{Transport: c}).
		NewUploadPackSession(r.endpoint(), login)
	var refs *packp.AdvRefs
	if err == nil {
		refs, err = c.session.AdvertisedReferencesContext(c.x.ctx) //nolint:contextcheck // it was made of ctx
	}
	if err != nil {
		err = c.explain(ctx, err)
		c.Close()
		return nil, nil, err
	}
	return c, refs, nil
}

// endpoint is the address as go-git takes it.
func (r *httpRemote) endpoint() *transport.Endpoint {
	u := r.from.url
	port, _ := strconv.Atoi(u.Port())
	host := u.Hostname()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return &transport.Endpoint{Protocol: u.Scheme, Host: host, Port: port, Path: u.EscapedPath()}
}

func (c *httpConversation) Pack(ctx context.Context, req *packp.UploadPackRequest, w io.Writer) error {
	c.x.download()
	res, err := c.session.UploadPack(c.x.ctx, req) //nolint:contextcheck // it was made of that of Ask, which ends with this one
	if err == nil {
		defer func() { _ = res.Close() }()
		err = copyPack(w, res, req)
	}
	if err != nil {
		return c.explain(ctx, err)
	}
	return nil
}

func (c *httpConversation) Close() { c.x.stop() }

// RoundTrip implements http.RoundTripper.
func (c *httpConversation) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("User-Agent", "git/homestak-gitops") // some servers check for git there
	c.answered = false
	if req.URL.Scheme != "https" && !model.OnThisMachine(req.URL.Hostname()) {
		return nil, c.x.fail(c.from.Fault(errNotGit, "it redirects to an unencrypted URL", "use its real URL", nil))
	}
	res, err := c.transport().RoundTrip(req)
	if err != nil {
		return nil, c.x.fail(err)
	}
	c.answered = true
	c.x.heard()
	if res.StatusCode >= 300 && res.StatusCode < 400 && req.Method == http.MethodGet {
		return res, nil // go-git decides whether it follows, and with which credentials
	}
	limit := int64(mostRefs)
	if req.Method == http.MethodPost {
		limit = mostAnswer(c.o.MaxPack)
	}
	in := c.x.body(res.Body, limit)
	err = c.status(res, c.o.Transport != nil || req.Header.Get("Authorization") != "")
	if err == nil && req.Method == http.MethodGet {
		err = c.smart(res, in)
	}
	if err != nil {
		_ = res.Body.Close()
		return nil, c.x.fail(err)
	}
	res.Body = &drained{in, res.Body}
	return res, nil
}

// drained reads the little that may be left, so that the connection can be used again.
type drained struct {
	io.Reader
	body io.Closer
}

func (d *drained) Close() error {
	_, _ = io.CopyN(io.Discard, d.Reader, 4<<10)
	return d.body.Close()
}

// transport sends requests, after connect.
func (r *httpRemote) transport() http.RoundTripper {
	if r.o.Transport != nil {
		return r.o.Transport
	}
	return r.base
}

// login returns what to log in with: the token file, or else what the URL has; nil for
// neither.
func (r *httpRemote) login() (transport.AuthMethod, error) {
	if r.o.Transport != nil {
		return nil, nil // no prompt
	}
	if r.o.Auth.TokenFile == "" {
		if r.from.user == "" && r.from.password == "" {
			return nil, nil // a public repository
		}
		return &githttp.BasicAuth{Username: r.from.user, Password: r.from.password}, nil
	}
	text, err := os.ReadFile(r.o.Auth.TokenFile)
	if err != nil {
		return nil, r.from.Fault(errLogin, err.Error(), "put a token there that this program can read", err)
	}
	token, _, _ := strings.Cut(string(text), "\n")
	token = strings.TrimSpace(token)
	if token == "" {
		return nil, r.from.Fault(errLogin, r.o.Auth.TokenFile+" is empty", "put a token there, on the first line", nil)
	}
	if r.from.user != "" && r.from.password == "" {
		return &githttp.BasicAuth{Username: r.from.user, Password: token}, nil
	}
	return &githttp.BasicAuth{Username: r.o.Auth.Username, Password: token}, nil
}

// connect makes the transport, with the certificates that are trusted now.
func (r *httpRemote) connect() error {
	if r.o.Transport != nil {
		return nil
	}
	var ca []byte
	if r.o.Auth.CAFile != "" {
		var err error
		if ca, err = os.ReadFile(r.o.Auth.CAFile); err != nil {
			return r.from.Fault(errUntrusted, err.Error(), "put the certificate of the server's CA there", err)
		}
	}
	if r.base != nil && r.ca == string(ca) {
		return nil
	}
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != nil {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(ca) {
			return r.from.Fault(errUntrusted, r.o.Auth.CAFile+" contains no certificate", "put it there in PEM form", nil)
		}
		trust.RootCAs = pool
	}
	if r.base != nil {
		r.base.CloseIdleConnections()
	}
	r.ca = string(ca)
	r.base = &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: connectTime(r.o.Timeout)}).DialContext,
		TLSClientConfig:        trust,
		TLSHandshakeTimeout:    connectTime(r.o.Timeout),
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // no http/2: one request at a time
		MaxIdleConns:           1,
		IdleConnTimeout:        2 * time.Minute, // of a repository that is not asked again
		MaxResponseHeaderBytes: 64 << 10,
	}
	return nil
}

// explain says why the request failed, or what is wrong with the response.
func (c *httpConversation) explain(ctx context.Context, err error) error {
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var line *pktline.ErrorLine
	var odd *packp.ErrUnexpectedData
	failure := c.x.failure
	if why, ok := errors.AsType[*url.Error](err); ok {
		err = why.Err // without the URL
	}
	switch {
	case errors.As(failure, &cert):
		return c.from.Fault(errUntrusted, cert.Err.Error(), "if it is yours, name the certificate of its CA in ca_file", failure)
	case errors.As(failure, &record), failure != nil && strings.Contains(failure.Error(), "server gave HTTP response to HTTPS client"):
		return c.from.Fault(errNotGit, "it does not speak TLS", "check the port in the URL", failure)
	case failure != nil || c.x.ctx.Err() != nil:
		if !c.answered {
			return c.x.explain(ctx, c.from, err, errUnreachable)
		}
		return c.x.explain(ctx, c.from, err, errCut)
	case strings.Contains(err.Error(), "redirect"):
		return c.from.Fault(errNotGit, err.Error(), "use its real URL", nil)
	case errors.Is(err, transport.ErrEmptyRemoteRepository):
		return c.from.NoCommit()
	case errors.As(err, &line):
		return c.from.refused(line.Text)
	case errors.As(err, &odd) && !strings.Contains(odd.Msg, "EOF"):
		return c.from.Fault(errNotGit, odd.Msg, "check the URL", err)
	}
	if said := c.from.refused(err.Error()); said.Kind != errUnreachable { //nolint:errorlint // it was made of a kind
		return said
	}
	return c.x.explain(ctx, c.from, err, errCut)
}

// status checks the code of an answer.
func (r *httpRemote) status(res *http.Response, loggedIn bool) error {
	code, detail := res.StatusCode, "the server answers "+oneLine(res.Status)
	switch {
	case code == http.StatusOK:
		return nil
	case code == http.StatusUnauthorized && !loggedIn:
		return r.from.Fault(errDenied, detail, "it requires a login: put a token into a file and name that in token_file", nil)
	case code == http.StatusUnauthorized:
		return r.from.Fault(errDenied, detail, "it does not accept this token and user name: renew it in its file, no restart is needed", nil)
	case code == http.StatusForbidden:
		return r.from.Fault(errDenied, detail, "give the token the right to read this repository", nil)
	case code == http.StatusNotFound, code == http.StatusGone:
		return r.from.Fault(errNotFound, detail, adviceNotFound, nil)
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		return r.from.Fault(errUnreachable, detail, "this is retried", nil)
	}
	return r.from.Fault(errNotGit, detail, "check the URL", nil)
}

// dumb is the beginning of a list of branches that is only a file.
var dumb = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{40}\t`) })

// smart checks that the answer is from a git server, by its content type.
func (r *httpRemote) smart(res *http.Response, in io.Reader) error {
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if kind == "application/x-git-upload-pack-advertisement" {
		return nil
	}
	start := make([]byte, 41)
	n, _ := io.ReadFull(in, start)
	if dumb().Match(start[:n]) {
		return r.from.Fault(errDumb, "", "serve it with git http-backend, over ssh, or from a git hosting service", nil)
	}
	return r.from.Fault(errNotGit, fmt.Sprintf("it answers with %q", kind), "check the URL; it may be a web page", nil)
}
