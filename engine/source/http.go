package source

import (
	"bytes"
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
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
)

// httpRemote speaks git's smart protocol over http. One connection is kept open
// between questions; it is made anew when the trusted certificates change.
type httpRemote struct {
	o    Options
	from address

	client *http.Client
	ca     string // the contents of the CA file that client trusts
}

// httpTalk is one question, and where its answer came from.
type httpTalk struct {
	r      *httpRemote
	base   *url.URL // after redirects
	user   *url.Userinfo
	advert advert
}

func (r *httpRemote) ask(ctx context.Context) (talk, error) {
	client, err := r.connect()
	if err != nil {
		return nil, err
	}
	user, err := r.login()
	if err != nil {
		return nil, err
	}
	watched, g := newGuard(ctx, silentTime(r.o.Timeout), r.o.Timeout)
	defer g.stop()
	u := r.from.url.JoinPath("info", "refs")
	u.RawQuery = "service=git-upload-pack"
	req, err := http.NewRequestWithContext(watched, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, r.fault(ErrNotGit, err.Error(), "look at the URL", false, err)
	}
	authorize(req, user)
	res, err := client.Do(req)
	if err != nil {
		return nil, r.failed(ctx, g, err)
	}
	defer done(res)
	t := &httpTalk{r: r, base: r.from.url, user: user}
	if moved := res.Request.URL; moved.Path != u.Path || moved.Host != u.Host {
		if err := t.follow(u, moved); err != nil {
			return nil, err
		}
	}
	if err := r.status(res, user != nil); err != nil {
		return nil, err
	}
	body := g.reader(res.Body)
	if err := r.smart(res, body); err != nil {
		return nil, err
	}
	if t.advert, err = readAdvert(body, r.from); err != nil {
		return nil, r.answer(ctx, g, err)
	}
	return t, nil
}

// done reads the little that may be left, so that the connection can be used again.
func done(res *http.Response) {
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10)
	_ = res.Body.Close()
}

func authorize(req *http.Request, user *url.Userinfo) {
	req.Header.Set("User-Agent", "git/homestak-gitops") // some servers look for git there
	if user != nil {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
}

// follow takes the place a redirect led to as the repository's, as git does. The
// login stays behind where that is another server.
func (t *httpTalk) follow(asked, moved *url.URL) error {
	base, ok := strings.CutSuffix(moved.Path, "/info/refs")
	if !ok {
		return t.r.fault(ErrNotGit, "it redirects to "+moved.Redacted(), "look at the URL; perhaps it wants a login", false, nil)
	}
	if !sameOrigin(asked, moved) {
		t.user = nil
	}
	t.base = &url.URL{Scheme: moved.Scheme, Host: moved.Host, Path: base}
	return nil
}

func sameOrigin(a, b *url.URL) bool { return a.Scheme == b.Scheme && a.Host == b.Host }

func (t *httpTalk) tip() (plumbing.Hash, error) { return t.advert.tip(t.r.o.Branch) }

func (*httpTalk) close() {}

func (t *httpTalk) bring(ctx context.Context, n need, w io.Writer) error {
	r := t.r
	ask, err := t.advert.request(n)
	if err != nil {
		return r.fault(ErrNotGit, err.Error(), "", false, err)
	}
	message, err := encode(ask)
	if err != nil {
		return err
	}
	watched, g := newGuard(ctx, silentTime(r.o.Timeout), packTime(r.o.Timeout))
	defer g.stop()
	req, err := http.NewRequestWithContext(watched, http.MethodPost, t.base.JoinPath("git-upload-pack").String(), bytes.NewReader(message))
	if err != nil {
		return r.fault(ErrNotGit, err.Error(), "look at the URL", false, err)
	}
	req.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	req.Header.Set("Accept", "application/x-git-upload-pack-result")
	authorize(req, t.user)
	res, err := r.client.Do(req)
	if err != nil {
		return r.failed(ctx, g, err)
	}
	defer func() { _ = res.Body.Close() }()
	if err := r.status(res, t.user != nil); err != nil {
		return err
	}
	if err := receive(g.reader(res.Body), mostAnswer(r.o.MaxPack), ask, w); err != nil {
		return r.answer(ctx, g, err)
	}
	return nil
}

// login gives what to log in with: the token file, or else what the URL has; nil for
// neither.
func (r *httpRemote) login() (*url.Userinfo, error) {
	if r.o.Auth.TokenFile == "" {
		switch {
		case r.from.password != "":
			return url.UserPassword(r.from.user, r.from.password), nil
		case r.from.user != "":
			return url.UserPassword(r.from.user, ""), nil // a token alone
		}
		return nil, nil // a repository for everybody
	}
	text, err := os.ReadFile(r.o.Auth.TokenFile)
	if err != nil {
		return nil, r.fault(ErrLogin, err.Error(), "put a token there, readable for this program", false, err)
	}
	token, _, _ := strings.Cut(string(text), "\n")
	token = strings.TrimSpace(token)
	if token == "" {
		return nil, r.fault(ErrLogin, r.o.Auth.TokenFile+" is empty", "put a token there, on the first line", false, nil)
	}
	if r.from.user != "" && r.from.password == "" {
		return url.UserPassword(r.from.user, token), nil
	}
	return url.UserPassword(r.o.Auth.Username, token), nil
}

// connect gives the client, with the certificates that are trusted now.
func (r *httpRemote) connect() (*http.Client, error) {
	var ca []byte
	if r.o.Auth.CAFile != "" {
		var err error
		if ca, err = os.ReadFile(r.o.Auth.CAFile); err != nil {
			return nil, r.fault(ErrUntrusted, err.Error(), "put the certificate there that the server's is signed with", false, err)
		}
	}
	if r.client != nil && r.ca == string(ca) {
		return r.client, nil
	}
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != nil {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(ca) {
			return nil, r.fault(ErrUntrusted, r.o.Auth.CAFile+" holds no certificate", "put it there in PEM form", false, nil)
		}
		trust.RootCAs = pool
	}
	if r.client != nil {
		r.client.CloseIdleConnections()
	}
	r.ca = string(ca)
	r.client = &http.Client{
		CheckRedirect: checkRedirect,
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: connectTime(r.o.Timeout)}).DialContext,
			TLSClientConfig:        trust,
			TLSHandshakeTimeout:    connectTime(r.o.Timeout),
			TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // no http/2: one question at a time
			MaxIdleConns:           1,
			MaxResponseHeaderBytes: 64 << 10,
		},
	}
	return r.client, nil
}

// checkRedirect lets the first question be redirected, never to a place that others
// can listen to, and never with the login to another server.
func checkRedirect(req *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case first.Method != http.MethodGet:
		return errors.New("it redirects a request that has contents")
	case len(via) > 5:
		return errors.New("it redirects again and again")
	case req.URL.Scheme != "https" && (via[len(via)-1].URL.Scheme == "https" || !loopback(req.URL.Hostname())):
		return errors.New("it redirects to a place without encryption")
	}
	req.URL.User = nil
	if !sameOrigin(first.URL, req.URL) {
		req.Header.Del("Authorization")
	}
	return nil
}

// failed says why a request got no answer.
func (r *httpRemote) failed(ctx context.Context, g *guard, err error) error {
	if why, ok := errors.AsType[*url.Error](err); ok {
		err = why.Err // without the URL
	}
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &cert):
		return r.fault(ErrUntrusted, cert.Err.Error(), "if it is your own, name the certificate it is signed with in ca_file", false, err)
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return r.fault(ErrNotGit, "it does not speak TLS", "look at the port in the URL", false, err)
	case strings.Contains(err.Error(), "it redirects"):
		return r.fault(ErrNotGit, err.Error(), "use the URL it really has", false, err)
	}
	return g.trouble(ctx, r.from.String(), err, ErrUnreachable)
}

// answer says what is wrong with an answer that began well.
func (r *httpRemote) answer(ctx context.Context, g *guard, err error) error {
	var said *pktline.ErrorLine
	var odd *packp.ErrUnexpectedData
	switch {
	case errors.As(err, &said):
		return refused(r.from, said.Text)
	case errors.As(err, &odd) && g.ctx.Err() == nil && !strings.Contains(odd.Msg, "EOF"):
		return r.fault(ErrNotGit, odd.Msg, "look at the URL", false, err)
	}
	return g.trouble(ctx, r.from.String(), err, ErrCut)
}

// status looks at the code of an answer.
func (r *httpRemote) status(res *http.Response, loggedIn bool) error {
	code, temporary := res.StatusCode, false
	detail := "the server answers " + oneLine(res.Status)
	switch {
	case code == http.StatusOK:
		return nil
	case code == http.StatusUnauthorized && !loggedIn:
		return r.fault(ErrDenied, detail, "it wants a login: put a token into a file and name that in token_file", false, nil)
	case code == http.StatusUnauthorized:
		return r.fault(ErrDenied, detail, "it does not accept this token and user name: renew it in its file, no restart is needed", false, nil)
	case code == http.StatusForbidden:
		return r.fault(ErrDenied, detail, "give the token the right to read this repository", false, nil)
	case code == http.StatusNotFound, code == http.StatusGone:
		return r.fault(ErrNotFound, detail, adviceNotFound, false, nil)
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		temporary = true
		return r.fault(ErrUnreachable, detail, "it is tried again", temporary, nil)
	}
	return r.fault(ErrNotGit, detail, "look at the URL", false, nil)
}

// dumb is how the list of branches begins that is only a file.
var dumb = regexp.MustCompile(`^[0-9a-f]{40}\t`)

// smart looks whether the answer is from a git server, by its content type.
func (r *httpRemote) smart(res *http.Response, body io.Reader) error {
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if kind == "application/x-git-upload-pack-advertisement" {
		return nil
	}
	start := make([]byte, 41)
	n, _ := io.ReadFull(body, start)
	if dumb.Match(start[:n]) {
		return r.fault(ErrDumb, "", "serve it by git http-backend, ssh or a host of git repositories", false, nil)
	}
	return r.fault(ErrNotGit, fmt.Sprintf("it answers with %q", kind), "look at the URL; perhaps it shows a page for people there", false, nil)
}

func (r *httpRemote) fault(kind error, detail, advice string, temporary bool, err error) error {
	return &RemoteError{Kind: kind, Where: r.from.String(), Detail: detail, Advice: advice, Err: err, temporary: temporary}
}
