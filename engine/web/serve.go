package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/homestak/homestak-gitops/engine/control"
)

// The limits of connections.
const (
	headerTime = 10 * time.Second
	readTime   = 30 * time.Second
	writeTime  = time.Minute
	idleTime   = 2 * time.Minute
	endTime    = time.Second // for answers under way
	mostConns  = 256         // at once; the next ones wait
)

// Serve serves a handler until ctx ends, over TLS unless certificate is nil. It closes the listener.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), log *slog.Logger) error {
	s := &http.Server{
		Handler: h, BaseContext: func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if certificate != nil {
		s.TLSConfig = &tls.Config{GetCertificate: certificate, MinVersion: tls.VersionTLS12}
	}
	ln = control.Bounded(ln, mostConns)
	served := make(chan error, 1)
	go func() {
		if certificate != nil {
			served <- s.ServeTLS(ln, "", "")
		} else {
			served <- s.Serve(ln)
		}
	}()
	select {
	case err := <-served:
		return fmt.Errorf("serve the page on %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if s.Shutdown(end) != nil {
		_ = s.Close() // a browser does not read its answer
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page on %s: %w", ln.Addr(), err)
	}
	return nil
}
