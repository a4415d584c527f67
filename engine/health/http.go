package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

const (
	longestBody   = 64 << 10 // of an answer is read
	mostRedirects = 3
)

var errElsewhere = errors.New("redirected elsewhere")

// tryHTTP sends a GET. It follows up to three redirects, and only to the same host: another host
// says nothing about this guest. The certificate at a guest's own address is not verified, because
// a new guest has a self-signed one; that of a host with a name is.
func (a *attempt) tryHTTP(ctx context.Context, n network, c *model.Check, e model.Endpoint, addr string) (string, error) {
	scheme := "http"
	if e.TLS {
		scheme = "https"
	}
	var last atomic.Pointer[conn] // set by the transport's goroutine
	t := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: longestBody,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: e.Host == ""}, //nolint:gosec // see above
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			c, err := a.dial(ctx, n, addr) // the transport's own context outlives the request
			if err != nil {
				return nil, err
			}
			last.Store(c)
			return c, nil
		},
	}
	defer t.CloseIdleConnections()
	client := http.Client{Transport: t, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		switch {
		case r.URL.Hostname() != via[0].URL.Hostname():
			return fmt.Errorf("%w, to %s", errElsewhere, r.URL.Host)
		case len(via) > mostRedirects:
			return fmt.Errorf("%w more than %d times", errElsewhere, mostRedirects)
		}
		return nil
	}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+addr+e.Path, http.NoBody)
	if err != nil {
		return "", unreadable(err)
	}
	r.Header.Set("User-Agent", "homestak-gitops")
	began := time.Now()
	res, err := client.Do(r)
	if err != nil {
		return "", httpError(addr, err, last.Load())
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, longestBody))
	if err != nil {
		err = errors.New(last.Load().story(err))
	}
	text, err := a.checkAnswer(c, res.StatusCode, string(body), err)
	if err != nil {
		return "", fmt.Errorf("%s: %w", addr, err)
	}
	return fmt.Sprintf("%s: %s in %s", addr, text, short(time.Since(began))), nil
}

// checkAnswer compares an answer with the expectation. An incomplete body counts as far as it was
// received; broke is the error that ended it.
func (a *attempt) checkAnswer(c *model.Check, status int, body string, broke error) (string, error) {
	first := ""
	if l := a.line(body); l != "" {
		first = ", first line: " + l
	}
	want := c.Status()
	text := fmt.Sprintf("answered %d", status)
	switch {
	case want != 0 && status != want:
		return "", fmt.Errorf("%s, not %d%s", text, want, first)
	case want == 0 && status/100 != 2:
		return "", fmt.Errorf("%s%s", text, first)
	case want == 0 && c.Expect != "" && !strings.Contains(body, c.Expect):
		if broke != nil {
			first += ", " + broke.Error()
		}
		return "", fmt.Errorf("%s, but its body has no %q%s", text, c.Expect, first)
	}
	return text, nil
}

// httpError says what was seen instead of an answer.
func httpError(addr string, err error, at *conn) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // its text repeats the URL
	}
	var bad *tls.CertificateVerificationError
	var connect *connectError
	switch {
	case errors.As(err, &connect):
		return connect
	case errors.Is(err, errElsewhere):
		return fmt.Errorf("%s: %w", addr, err)
	case errors.As(err, &bad):
		return fmt.Errorf("%s: its certificate is not accepted: %w", addr, bad.Err)
	case at == nil:
		return fmt.Errorf("%s: %w", addr, err)
	}
	return fmt.Errorf("%s: %s", addr, at.story(err))
}
