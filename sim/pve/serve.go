package pve

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The limits of a connection ($keep_alive_timeout and the like in
// APIServer/AnyEvent.pm).
const (
	requestsPerConnection = 100
	idleTimeout           = 5 * time.Second
	readTimeout           = time.Minute
)

// Serve answers over TLS until the context ends; then it closes what is open
// and returns nil. HTTP/1.1 only. A connection is kept for 100 requests or 5
// idle seconds and closed after any failure and after each call that ran in
// pvedaemon, as pveproxy does.
func (h *Host) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	config := &tls.Config{
		Certificates: []tls.Certificate{h.cert.TLS}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		// Those of PVE 8, whose OpenSSL has no key exchange that withstands quantum computers. That
		// was most of the work for a connection, and PVE closes them often.
		CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521},
	}
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if temporary := new(net.OpError); errors.As(err, &temporary) && !errors.Is(err, net.ErrClosed) {
				select { // Out of file descriptors, perhaps.
				case <-time.After(10 * time.Millisecond):
					continue
				case <-ctx.Done():
					return nil
				}
			}
			return fmt.Errorf("accepting connections: %w", err)
		}
		open.Go(func() { h.serveConn(ctx, tls.Server(conn, config)) })
	}
}

// serveConn answers the requests of one connection.
func (h *Host) serveConn(ctx context.Context, conn *tls.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(readTimeout))
	if err := conn.HandshakeContext(ctx); err != nil {
		return
	}
	h.mu.Lock()
	h.w.Count.Connections++
	h.mu.Unlock()
	reader, writer := bufio.NewReader(conn), bufio.NewWriter(conn)
	for n := 1; n <= requestsPerConnection; n++ {
		_ = conn.SetDeadline(time.Now().Add(idleTimeout))
		if _, err := reader.Peek(1); err != nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(readTimeout))
		r, err := http.ReadRequest(reader)
		if err != nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 400 bad request\r\nConnection: close\r\n\r\n")
			return
		}
		r = r.WithContext(ctx)
		r.RemoteAddr = conn.RemoteAddr().String()
		if strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
			if _, err := io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return
			}
		}
		a := h.serve(ctx, r)
		_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20)) // The rest of a refused request.
		if a.dropped {
			return
		}
		last := n == requestsPerConnection || r.Close
		if last && !a.closes() {
			a.connection = []string{"close"}
		}
		_ = conn.SetDeadline(time.Now().Add(readTimeout))
		if a.write(writer, r) != nil || writer.Flush() != nil || a.closes() {
			return
		}
	}
}
