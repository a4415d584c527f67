// Package client sends a child's requests to its parent over HTTPS. It authenticates the parent by pinned keys,
// limits every wait and size, and retries where that can help.
//
// Read in this order: Client and Spec (the attempts and the pauses between them), Report, exchange (one request),
// failed.go (which errors end the attempts).
package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// clientLimits bound one attempt.
type clientLimits struct {
	Connect time.Duration // TCP and TLS
	Header  time.Duration // from the request to the header of the answer
	Idle    time.Duration // between two pieces of the body
	Total   time.Duration // of the whole attempt
	Body    int64         // bytes
}

// The most that a child reads beside wire.MaxSpec, in bytes.
const (
	maxError   = 64 << 10
	maxHeader  = 64 << 10
	maxProgram = 256 << 20
)

// usual are the limits of a child.
func usual() clientLimits {
	return clientLimits{Connect: 10 * time.Second, Header: 15 * time.Second, Idle: 15 * time.Second, Total: time.Minute, Body: wire.MaxSpec}
}

// pauses are those before each attempt; each is longer or shorter by up to a fifth, so that nodes
// that lost their parent together do not come back together.
func pauses() []time.Duration {
	return []time.Duration{0, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second}
}

// maxRetryAfter is the longest pause that a server may ask for. With a longer one the attempts end, and the caller
// retries later.
const maxRetryAfter = 2 * time.Minute

// Client asks one parent. The zero values of Limits and Dial are the usual ones.
type Client struct {
	Parent wire.Parent
	Agent  string // the name and version of this program, for the log of the server
	Limits clientLimits
	// Dial opens a connection; nil for the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Failed is called after an attempt that failed and before the pause that follows. May be nil.
	Failed func(err error, pause time.Duration)
}

// Fetched is a parent's response.
type Fetched struct {
	wire.Answer        // empty if nothing changed
	ETag        string // to be sent the next time
	NotModified bool   // the spec is still the one of the ETag that was sent
}

// Spec fetches the spec of the child. tag is that of the spec that it has, "" for none. The error is a *wire.Error,
// or that of ctx.
func (c *Client) Spec(ctx context.Context, tag string) (Fetched, error) {
	pauses, start := pauses(), time.Now()
	for attempt := 1; ; attempt++ {
		got, err := c.once(ctx, tag)
		switch {
		case err == nil:
			return got, nil
		case ctx.Err() != nil:
			return Fetched{}, fmt.Errorf("fetching the spec of %s: %w", c.Parent.Identity, context.Cause(ctx))
		}
		f := c.asFailure(err)
		if f.final || attempt == len(pauses) {
			return Fetched{}, c.explain(f, attempt, time.Since(start))
		}
		pause := max(wire.Jitter(pauses[attempt]), f.after)
		if c.Failed != nil {
			c.Failed(f.problem, pause)
		}
		if !wire.Sleep(ctx, pause, nil) {
			return Fetched{}, fmt.Errorf("fetching the spec of %s: %w", c.Parent.Identity, context.Cause(ctx))
		}
	}
}

// explain adds to the last error what was attempted.
func (c *Client) explain(f failure, attempts int, took time.Duration) error {
	e := *f.problem
	e.Message = fmt.Sprintf("fetching the spec of %s from %s: %s", c.Parent.Identity, c.Parent.Server, e.Message)
	if attempts > 1 {
		e.Message += fmt.Sprintf(" (after %d attempts in %s)", attempts, took.Round(time.Second))
	}
	return &e
}

// errStalled and errTooLong say which limit ended an attempt.
var (
	errStalled = errors.New("the server stopped sending in the middle of its answer")
	errTooLong = errors.New("the server took too long to answer")
)

// reportLimits are the default limits of a report, which delays nothing.
func reportLimits() clientLimits {
	l := usual()
	l.Total, l.Body = 15*time.Second, maxError
	return l
}

// Report sends the report of the child, which is a JSON document. There is one attempt: the next
// report says what this one would have said. The error is a *wire.Error, or that of ctx.
func (c *Client) Report(ctx context.Context, document []byte) error {
	status, header, body, err := c.exchange(ctx, reportLimits(), http.MethodPost, wire.ReportPath.Of(c.Parent.Identity), document, http.Header{"Content-Type": {"application/json"}})
	switch {
	case err == nil && status == http.StatusAccepted:
		return nil
	case err == nil:
		err = &statusError{status, wire.RetryAfter(header, time.Now()), wire.ReadProblem(status, body)}
	case ctx.Err() != nil:
		return fmt.Errorf("sending the report of %s: %w", c.Parent.Identity, context.Cause(ctx))
	}
	e := *c.asFailure(err).problem
	e.Message = fmt.Sprintf("sending the report of %s to %s: %s", c.Parent.Identity, c.Parent.Server, e.Message)
	return &e
}

// Receipts sends receipts to the parent, and returns its answer. There is one attempt.
func (c *Client) Receipts(ctx context.Context, document []byte) ([]byte, error) {
	status, header, body, err := c.exchange(ctx, reportLimits(), http.MethodPost, wire.ReceiptsPath.Of(c.Parent.Identity), document, http.Header{"Content-Type": {"application/json"}})
	if err == nil && status != http.StatusOK {
		err = &statusError{status, wire.RetryAfter(header, time.Now()), wire.ReadProblem(status, body)}
	}
	if err != nil {
		return nil, fmt.Errorf("sending the receipts of %s: %w", c.Parent.Identity, err)
	}
	return body, nil
}

// Answers reports whether the parent answers, as the one that is known by its pins. There is one attempt; what the
// answer says does not matter. The error is a *wire.Error, or that of ctx.
func (c *Client) Answers(ctx context.Context) error {
	_, _, _, err := c.exchange(ctx, reportLimits(), http.MethodGet, string(wire.HealthPath), nil, http.Header{})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("asking %s for an answer: %w", c.Parent.Server, context.Cause(ctx))
	}
	e := *c.asFailure(err).problem
	e.Message = fmt.Sprintf("asking %s for an answer: %s", c.Parent.Server, e.Message)
	return &e
}

// once is one attempt to fetch the spec.
func (c *Client) once(ctx context.Context, tag string) (Fetched, error) {
	headers := http.Header{}
	if tag != "" {
		headers.Set("If-None-Match", tag)
	}
	status, header, body, err := c.exchange(ctx, usual(), http.MethodGet, wire.SpecPath.Of(c.Parent.Identity), nil, headers)
	if err != nil {
		return Fetched{}, err
	}
	return c.read(status, header, body, tag)
}

// exchange sends a request on a connection of its own, and takes the answer. The limits are those
// unless others are set.
func (c *Client) exchange(ctx context.Context, limits clientLimits, method, path string, document []byte, headers http.Header) (status int, header http.Header, body []byte, err error) {
	if c.Limits != (clientLimits{}) {
		limits = c.Limits
	}
	ctx, cancelTotal := context.WithTimeoutCause(ctx, limits.Total, errTooLong)
	defer cancelTotal()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	transport := c.transport(limits)
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.Parent.Server, "/")+path, bytes.NewReader(document))
	if err != nil {
		return 0, nil, nil, err
	}
	request.Header = headers
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", c.Agent)
	wire.SetToken(request.Header, c.Parent.Token)
	answer, err := transport.RoundTrip(request) // no client: it would follow redirects, with the token
	if err != nil {
		return 0, nil, nil, causeOf(ctx, err)
	}
	defer answer.Body.Close()
	most := limits.Body
	if answer.StatusCode != http.StatusOK {
		most = maxError
	}
	watchdog := time.AfterFunc(limits.Idle, func() { cancel(errStalled) })
	defer watchdog.Stop()
	body, err = io.ReadAll(&watched{io.LimitReader(answer.Body, most+1), func() { watchdog.Reset(limits.Idle) }})
	if err == nil && ctx.Err() != nil {
		err = ctx.Err() // the server may end its answer because we hang up: it is incomplete
	}
	if err != nil {
		return 0, nil, nil, causeOf(ctx, err)
	}
	if int64(len(body)) > most {
		return 0, nil, nil, wire.Errorf(wire.CodeSchema, "the answer is longer than %d bytes", most)
	}
	return answer.StatusCode, answer.Header, body, nil
}

// read takes the answer to a request for the spec.
func (c *Client) read(status int, header http.Header, body []byte, tag string) (Fetched, error) {
	switch {
	case status == http.StatusNotModified && tag != "":
		return Fetched{NotModified: true, ETag: tag}, nil
	case status == http.StatusOK:
		got, err := wire.ReadSpec(body, c.Parent.Identity)
		if err != nil {
			return Fetched{}, wire.Errorf(wire.CodeSchema, "%w", err)
		}
		if !slices.ContainsFunc(got.Pins, func(p wire.Pin) bool { return slices.Contains(c.Parent.Pins, p) }) {
			// A rotation keeps one of the two; none would cut this child off.
			return Fetched{}, wire.Errorf(wire.CodeSchema, "the answer has none of the pins that this node knows: %s", strings.Join(wire.PinTexts(got.Pins), ", "))
		}
		return Fetched{Answer: got, ETag: header.Get("ETag")}, nil
	default:
		return Fetched{}, &statusError{status, wire.RetryAfter(header, time.Now()), wire.ReadProblem(status, body)}
	}
}

func (c *Client) transport(limits clientLimits) *http.Transport {
	dial := c.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return &http.Transport{
		// No proxy of the environment: a parent is reached directly.
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeoutCause(ctx, limits.Connect, errTooLong)
			defer cancel()
			conn, err := dial(ctx, network, address)
			return conn, causeOf(ctx, err)
		},
		TLSClientConfig:        wire.PinnedTLS(c.Parent.Pins),
		TLSHandshakeTimeout:    limits.Connect,
		ResponseHeaderTimeout:  limits.Header,
		MaxResponseHeaderBytes: maxHeader,
		DisableKeepAlives:      true,
		DisableCompression:     true, // so that the limit of the body is the one of what is unpacked
	}
}

// causeOf prefers the reason why a context ended over what that broke.
func causeOf(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// watched calls a function whenever something was read.
type watched struct {
	io.Reader
	alive func()
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if n > 0 {
		w.alive()
	}
	return n, err
}
