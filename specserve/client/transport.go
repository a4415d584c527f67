package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// longestPoll is the longest time until the header of an answer: a long poll, and a margin.
const longestPoll = 90 * time.Second

// Transport is an http.RoundTripper to one server that is known by its pins. It adds the credential to
// each request, and sends nothing to any other server. Pins and credential may change between two
// requests. Its methods may be called from any goroutine.
type Transport struct {
	known func() (wire.Parent, error)
	given string // URL of the parent that was given: what is asked of it is asked of the one of now
	dial  func(ctx context.Context, network, address string) (net.Conn, error)

	mutex sync.Mutex // for moments: requests find the connections of the pins of now
	pins  []wire.Pin
	base  *http.Transport
}

// NewTransport makes a transport to the server that known gives at each request. Requests to the one with the URL given go to
// that, too. An error of known is that of the request. Dial opens connections; nil for the network.
func NewTransport(known func() (wire.Parent, error), given string, dial func(ctx context.Context, network, address string) (net.Conn, error)) *Transport {
	if dial == nil {
		dial = (&net.Dialer{Timeout: usual().Connect}).DialContext
	}
	return &Transport{known: known, given: given, dial: dial}
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	p, err := t.known()
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(p.Server)
	if err != nil || server.Host == "" {
		return nil, errors.New("the address of the server cannot be read")
	}
	given, err := url.Parse(t.given)
	if err != nil || r.URL.Scheme != server.Scheme || r.URL.Host != server.Host && r.URL.Host != given.Host {
		return nil, fmt.Errorf("%s is not the server that is asked, %s", r.URL.Host, server.Host)
	}
	out := r.Clone(r.Context())
	out.URL.Host, out.Host = server.Host, ""
	if p.Token != "" {
		wire.SetToken(out.Header, p.Token)
	}
	return t.to(p.Pins).RoundTrip(out)
}

// to returns the transport for a server with one of these keys.
func (t *Transport) to(pins []wire.Pin) *http.Transport {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.base != nil && slices.Equal(pins, t.pins) {
		return t.base
	}
	if t.base != nil {
		t.base.CloseIdleConnections()
	}
	l := usual()
	t.pins, t.base = pins, &http.Transport{
		DialContext:            t.dial, // no proxy of the environment: a parent is reached directly
		TLSClientConfig:        wire.PinnedTLS(pins),
		TLSHandshakeTimeout:    l.Connect,
		ResponseHeaderTimeout:  longestPoll,
		MaxResponseHeaderBytes: maxHeader,
		IdleConnTimeout:        time.Minute,
		MaxIdleConns:           2,
		DisableCompression:     true,
	}
	return t.base
}

// CloseIdleConnections closes the connections that are not in use.
func (t *Transport) CloseIdleConnections() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.base != nil {
		t.base.CloseIdleConnections()
	}
}
