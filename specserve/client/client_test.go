package client_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

const (
	secret  = "canary-token-1"
	renewed = "canary-token-2"
)

// certificate makes a key and its self-signed certificate, as a server does.
func certificate(t *testing.T) (tls.Certificate, wire.Pin) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{SerialNumber: big.NewInt(1)}, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, wire.PinOf(leaf)
}

// server is an HTTPS server whose connections are pipes, so that time is that of the test.
type server struct {
	tls   *tls.Config
	serve http.HandlerFunc
	// silent: connections are accepted, and nothing is ever sent.
	silent bool
	// refuse: nobody listens.
	refuse bool
	dials  []time.Time
	conns  chan net.Conn
	ended  chan struct{}
}

// start serves until stop is called.
func start(cert tls.Certificate, serve http.HandlerFunc) *server {
	s := &server{serve: serve, conns: make(chan net.Conn), ended: make(chan struct{}), tls: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}}
	h := &http.Server{ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r) })}
	go func() {
		defer close(s.ended)
		_ = h.Serve(s) // it ends when Accept does
	}()
	return s
}

func (s *server) Accept() (net.Conn, error) {
	c, ok := <-s.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return tls.Server(c, s.tls), nil
}

func (*server) Close() error { return nil }

func (*server) Addr() net.Addr { return &net.TCPAddr{} }

// stop also waits until both ends of the last connection have given up saying goodbye.
func (s *server) stop() {
	close(s.conns)
	<-s.ended
	<-time.After(time.Minute)
}

func (s *server) dial(context.Context, string, string) (net.Conn, error) {
	s.dials = append(s.dials, time.Now())
	if s.refuse {
		return nil, errors.New("connection refused")
	}
	here, there := net.Pipe()
	if !s.silent {
		s.conns <- there
		return here, nil
	}
	go func() { _, _ = io.Copy(io.Discard, there) }() // until the client hangs up
	return here, nil
}

func (s *server) client(pins ...wire.Pin) *client.Client {
	return &client.Client{
		Parent: wire.Parent{Identity: "edge", Server: "https://192.0.2.1:44443", Pins: pins, Token: secret},
		Agent:  "homestak-gitops/test", Dial: s.dial,
	}
}

// body is an answer with these pins.
func body(t *testing.T, node, token string, pins ...wire.Pin) []byte {
	t.Helper()
	s := wire.Spec{Spec: spec.Empty(node), Pins: wire.PinTexts(pins), Token: token}
	s.Name = "base"
	b, err := s.Document()
	require.NoError(t, err)
	return b
}

func TestFetch(t *testing.T) {
	cert, now := certificate(t)
	_, next := certificate(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(cert, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"one"`)
			if r.Header.Get("If-None-Match") == `"one"` {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			if r.URL.Path != "/spec/edge" || wire.Token(r.Header) != secret || r.UserAgent() != "homestak-gitops/test" {
				w.WriteHeader(http.StatusTeapot)
				return
			}
			_, _ = w.Write(body(t, "edge", renewed, now, next))
		})
		defer s.stop()
		c := s.client(now)
		got, err := c.Spec(t.Context(), "")
		require.NoError(t, err)
		require.Equal(t, []wire.Pin{now, next}, got.Pins)
		require.Equal(t, renewed, got.Token)
		require.Equal(t, `"one"`, got.ETag)
		require.False(t, got.NotModified)
		require.NotContains(t, string(got.Spec), renewed, "the token is no part of the spec")
		want, err := spec.Read(got.Spec)
		require.NoError(t, err)
		require.Equal(t, "base", want.Name)

		got, err = c.Spec(t.Context(), `"one"`)
		require.NoError(t, err)
		require.Equal(t, client.Fetched{NotModified: true, ETag: `"one"`}, got)
		require.Len(t, s.dials, 2)
	})
}

// A parent answers if it is the one that is known, whatever it says.
func TestAnswers(t *testing.T) {
	cert, now := certificate(t)
	_, other := certificate(t)
	synctest.Test(t, func(t *testing.T) {
		var path string
		s := start(cert, func(w http.ResponseWriter, r *http.Request) {
			path = r.URL.Path
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		defer s.stop()
		require.NoError(t, s.client(now).Answers(t.Context()))
		require.Equal(t, "/health", path)
		require.ErrorContains(t, s.client(other).Answers(t.Context()), "asking https://192.0.2.1:44443 for an answer: ")
		require.Len(t, s.dials, 2)
	})
}

// A key is accepted if it is any of the pinned ones: the server takes the next key into use whenever
// it likes.
func TestPins(t *testing.T) {
	cert, now := certificate(t)
	_, next := certificate(t)
	_, other := certificate(t)
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		s := start(cert, func(w http.ResponseWriter, _ *http.Request) {
			asked++
			_, _ = w.Write(body(t, "edge", "", now, next))
		})
		defer s.stop()
		_, err := s.client(other, now).Spec(t.Context(), "")
		require.NoError(t, err)
		require.Equal(t, 1, asked)

		_, err = s.client(other, next).Spec(t.Context(), "")
		require.Equal(t, wire.CodeConnection, wire.CodeOf(err))
		require.ErrorContains(t, err, "the server has the key "+now.String())
		require.ErrorContains(t, err, other.String())
		require.Equal(t, 1, asked, "nothing was sent to it")
		require.Len(t, s.dials, 2, "another attempt would not help")

		s.tls.MaxVersion, s.tls.MinVersion = tls.VersionTLS11, tls.VersionTLS10
		_, err = s.client(now).Spec(t.Context(), "")
		require.Equal(t, wire.CodeConnection, wire.CodeOf(err))
		require.ErrorContains(t, err, "protocol version")
		require.Equal(t, 1, asked)
	})
}

// The pauses are those of the protocol, give or take a fifth.
func TestSchedule(t *testing.T) {
	cert, now := certificate(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(cert, nil)
		defer s.stop()
		s.refuse = true
		c := s.client(now)
		failed := 0
		c.Failed = func(err error, _ time.Duration) {
			failed++
			require.ErrorContains(t, err, "connection refused")
		}
		_, err := c.Spec(t.Context(), "")
		require.Equal(t, wire.CodeConnection, wire.CodeOf(err))
		require.ErrorContains(t, err, "fetching the spec of edge from https://192.0.2.1:44443: ")
		require.ErrorContains(t, err, "connection refused (after 5 attempts in ")
		require.Equal(t, 4, failed)
		require.Len(t, s.dials, 5)
		exact := 0
		for i, want := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second} {
			pause := s.dials[i+1].Sub(s.dials[i])
			require.InDelta(t, want, pause, float64(want/5))
			if pause == want {
				exact++
			}
		}
		require.Less(t, exact, 4, "there is no jitter")
	})
}

func TestAnswersThatAreErrors(t *testing.T) {
	cert, now := certificate(t)
	for _, c := range []struct {
		name     string
		status   int
		header   string // Retry-After
		body     string
		code     wire.Code
		says     string
		attempts int
		least    time.Duration // it takes
	}{
		{"no such node", 404, "", string((&wire.Error{Code: wire.CodeNotFound}).Body()), wire.CodeNotFound, "not found", 1, 0},
		{"expired", 401, "", string((&wire.Error{Code: wire.CodeExpired}).Body()), wire.CodeExpired, "expired", 1, 0},
		{"other node", 403, "", "", wire.CodeNotYours, "403 Forbidden", 1, 0},
		{"it repeats the token", 401, "", string((&wire.Error{Code: wire.CodeRefused, Message: "bad " + secret, Hint: secret}).Body()), wire.CodeRefused, "bad (token)", 1, 0},
		{"redirect", 302, "", "", wire.CodeConnection, "302 Found", 1, 0},
		{"no content", 204, "", "", wire.CodeInternal, "204 No Content", 1, 0},
		{"not modified, and nothing was had", 304, "", "", wire.CodeInternal, "304", 1, 0},
		{"always 500", 500, "", "", wire.CodeInternal, "500 Internal Server Error (after 5 attempts", 5, 120 * time.Second},
		{"too many, later", 429, "90", "", wire.CodeTooMany, "429", 5, 360 * time.Second},
		{"too many, at once", 429, "0", "", wire.CodeTooMany, "429", 5, 120 * time.Second},
		{"too many, tomorrow", 429, "86400", "", wire.CodeTooMany, "come back after 24h", 1, 0},
		{"away until a date", 503, "Sat, 01 Jan 2000 01:00:00 GMT", "", wire.CodeInternal, "come back after 1h", 1, 0},
		{"too many, nonsense", 429, "-5", "", wire.CodeTooMany, "429", 5, 120 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				s := start(cert, func(w http.ResponseWriter, _ *http.Request) {
					if c.header != "" {
						w.Header().Set("Retry-After", c.header)
					}
					w.WriteHeader(c.status)
					_, _ = io.WriteString(w, c.body)
				})
				defer s.stop()
				_, err := s.client(now).Spec(t.Context(), "")
				require.Equal(t, c.code, wire.CodeOf(err), "%v", err)
				require.ErrorContains(t, err, c.says)
				require.NotContains(t, err.Error(), secret)
				require.Len(t, s.dials, c.attempts)
				require.GreaterOrEqual(t, time.Since(begun), c.least)
				require.Less(t, time.Since(begun), 10*time.Minute)
			})
		})
	}
}

// A server that comes back is used at once.
func TestRecovers(t *testing.T) {
	cert, now := certificate(t)
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		s := start(cert, func(w http.ResponseWriter, _ *http.Request) {
			if asked++; asked == 1 {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			_, _ = w.Write(body(t, "edge", "", now))
		})
		defer s.stop()
		_, err := s.client(now).Spec(t.Context(), "")
		require.NoError(t, err)
		require.Len(t, s.dials, 2)
	})
}

// Whoever sends nothing, too slowly or too much costs a bounded time and memory.
func TestBadServers(t *testing.T) {
	cert, now := certificate(t)
	good := body(t, "edge", "", now)
	for _, c := range []struct {
		name     string
		serve    http.HandlerFunc
		silent   bool
		code     wire.Code
		says     string
		attempts int
		most     time.Duration // of all attempts without their pauses
	}{
		{name: "silent from the beginning", silent: true, code: wire.CodeConnection, says: "TLS handshake timeout", attempts: 5, most: 50 * time.Second},
		{name: "no header", serve: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, code: wire.CodeConnection, says: "timeout awaiting response headers", attempts: 5, most: 75 * time.Second},
		{name: "stops in the body", serve: func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(good[:20])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, code: wire.CodeConnection, says: "stopped sending", attempts: 5, most: 75 * time.Second},
		{name: "trickles", serve: func(w http.ResponseWriter, r *http.Request) {
			for tick := time.NewTicker(time.Second); r.Context().Err() == nil; {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-tick.C:
				case <-r.Context().Done():
				}
			}
		}, code: wire.CodeConnection, says: "took too long", attempts: 5, most: 5 * time.Minute},
		{name: "endless", serve: func(w http.ResponseWriter, r *http.Request) {
			for piece := make([]byte, 1<<16); r.Context().Err() == nil; {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		}, code: wire.CodeSchema, says: "longer than 1000000 bytes", attempts: 1, most: time.Second},
		{name: "cut", serve: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "500")
			_, _ = w.Write(good[:20])
		}, code: wire.CodeConnection, says: "unexpected EOF", attempts: 5, most: time.Second},
		{name: "no JSON", serve: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, code: wire.CodeSchema, says: "not a JSON document", attempts: 1, most: time.Second},
		{name: "spec of another node", serve: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body(t, "web", "", now)) }, code: wire.CodeSchema, says: `the spec of "web"`, attempts: 1, most: time.Second},
		{name: "no pins", serve: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body(t, "edge", "")) }, code: wire.CodeSchema, says: "no good pins", attempts: 1, most: time.Second},
		{name: "pins of others", serve: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body(t, "edge", "", wire.Pin{1})) }, code: wire.CodeSchema, says: "none of the pins that this node knows", attempts: 1, most: time.Second},
		{name: "token with a line break", serve: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body(t, "edge", "a\r\nb", now)) }, code: wire.CodeSchema, says: "token that cannot be sent", attempts: 1, most: time.Second},
		{name: "large header", serve: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, code: wire.CodeConnection, says: "headers exceeded", attempts: 5, most: time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				s := start(cert, c.serve)
				defer s.stop()
				s.silent = c.silent
				asking := s.client(now)
				asking.Limits = client.Usual()
				asking.Limits.Body = 1e6
				var paused time.Duration
				asking.Failed = func(_ error, pause time.Duration) { paused += pause }
				_, err := asking.Spec(t.Context(), "")
				require.Equal(t, c.code, wire.CodeOf(err), "%v", err)
				require.ErrorContains(t, err, c.says)
				require.Len(t, s.dials, c.attempts)
				require.LessOrEqual(t, time.Since(begun)-paused, c.most)
			})
		})
	}
}

// Whoever stops it does not wait for the pauses.
func TestCancelled(t *testing.T) {
	cert, now := certificate(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(cert, nil)
		defer s.stop()
		s.refuse = true
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { cancel(fmt.Errorf("somebody stopped it")) })
		begun := time.Now()
		_, err := s.client(now).Spec(ctx, "")
		require.ErrorContains(t, err, "somebody stopped it")
		require.Equal(t, 3*time.Second, time.Since(begun))
		require.Len(t, s.dials, 1)
	})
}
