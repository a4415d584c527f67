package specserve_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

// pipes is a listener in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (*pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.conns <- there
	return here
}

// Clients that say nothing, or too slowly, are cut off at the deadlines, to the second.
func TestDeadlines(t *testing.T) {
	certificate, err := keys.OpenCert(keys.CertOptions{Dir: filepath.Join(t.TempDir(), "server"), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	// speak begins a conversation over TLS, and gives the connection to go on with.
	speak := func(text string) func(*testing.T, net.Conn) io.Writer {
		return func(t *testing.T, c net.Conn) io.Writer {
			t.Helper()
			client := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
			require.NoError(t, client.HandshakeContext(t.Context()))
			_, err := io.WriteString(client, text)
			require.NoError(t, err)
			return client
		}
	}
	for name, c := range map[string]struct {
		begin   func(*testing.T, net.Conn) io.Writer
		trickle bool
		after   time.Duration
	}{
		"silent":           {func(_ *testing.T, c net.Conn) io.Writer { return c }, false, 10 * time.Second},
		"silent after TLS": {speak(""), false, 10 * time.Second},
		"half a header":    {speak("GET /health HTTP/1.1\r\nHost: x\r\n"), false, 10 * time.Second},
		"trickling header": {speak("GET /health HTTP/1.1\r\nHost: x\r\nX: "), true, 10 * time.Second},
		"half a body":      {speak("GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"), false, 20 * time.Second},
		"trickling body":   {speak("GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"), true, 20 * time.Second},
		"idle between two": {speak("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), false, 5 * time.Second},
		"idle, verified":   {speak("POST /reconcile HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer operator\r\n\r\n"), false, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
				s := specserve.New(specserve.Options{TLS: certificate.TLS(), Log: slog.New(slog.DiscardHandler)})
				s.Publish(specserve.View{Access: keys.Access{Operator: []byte("operator")}})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- s.Serve(ctx, ln) }()
				conn := ln.dial()
				began := time.Now()
				to := c.begin(t, conn)
				ended, stop := make(chan struct{}), make(chan struct{})
				go func() { _, _ = io.Copy(io.Discard, conn); close(ended) }()
				go func() {
					defer close(stop)
					tick := time.NewTicker(100 * time.Millisecond)
					defer tick.Stop()
					for c.trickle {
						select {
						case <-tick.C:
							if _, err := io.WriteString(to, "1"); err != nil {
								return
							}
						case <-ended:
							return
						}
					}
				}()
				<-ended
				<-stop
				require.Equal(t, c.after, time.Since(began).Truncate(time.Second))
				require.NoError(t, conn.Close())
				cancel()
				require.NoError(t, <-done)
			})
		})
	}
}

// Silent clients hardly delay the end, and a request under way has until the limit.
func TestShutdownTakesItsTime(t *testing.T) {
	certificate, err := keys.OpenCert(keys.CertOptions{Dir: filepath.Join(t.TempDir(), "server"), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		after, longest time.Duration // when the request under way is complete, and the end
	}{
		"nothing under way": {0, 900 * time.Millisecond},
		"a slow request":    {1400 * time.Millisecond, 1500 * time.Millisecond},
		"one too slow":      {time.Minute, 1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
				s := specserve.New(specserve.Options{TLS: certificate.TLS(), Log: slog.New(slog.DiscardHandler)})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- s.Serve(ctx, ln) }()
				silent := ln.dial()
				defer func() { _ = silent.Close() }()
				slow := tls.Client(ln.dial(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
				defer func() { _ = slow.Close() }()
				require.NoError(t, slow.HandshakeContext(t.Context()))
				if c.after > 0 {
					_, err := io.WriteString(slow, "GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
					require.NoError(t, err)
				}
				synctest.Wait()
				began := time.Now()
				cancel()
				if c.after > 0 {
					defer time.AfterFunc(c.after, func() { _, _ = io.WriteString(slow, "0\r\n\r\n") }).Stop()
					got, err := http.ReadResponse(bufio.NewReader(slow), nil)
					if err == nil {
						_ = got.Body.Close()
					}
					require.Equal(t, c.after < c.longest, err == nil && got.StatusCode == http.StatusOK)
				} else {
					_, _ = io.Copy(io.Discard, slow)
				}
				require.NoError(t, <-done)
				require.LessOrEqual(t, time.Since(began), c.longest)
			})
		})
	}
}
