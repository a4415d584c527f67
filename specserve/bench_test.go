package specserve_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

// A spec by a provisioning token over eight connections that are kept, beside a server of net/http
// that sends the same bytes and checks nothing.
func BenchmarkSpec(b *testing.B) {
	certificate, err := keys.OpenCert(keys.CertOptions{Dir: filepath.Join(b.TempDir(), "server"), Log: slog.New(slog.DiscardHandler)})
	require.NoError(b, err)
	set, found := policy.Compile(b.Context(), policy.Options{})
	require.Empty(b, found)
	c, found := specserve.MakeCatalog(specserve.CatalogInput{Site: site(), Commit: "a", Policies: set})
	require.Empty(b, found)
	signingKeys := keys.Keys{keys.NewKey()}
	text, err := keys.MintToken(signingKeys[0], keys.Claims{Node: "own", Spec: "base", Issued: 1})
	require.NoError(b, err)
	body, _, err := c.Node("own").Answer(specserve.Own{Pins: certificate.Pins()})
	require.NoError(b, err)

	b.Run("served", func(b *testing.B) {
		log := slog.New(slog.NewTextHandler(io.Discard, nil)) //nolint:sloglint // writing the lines is part of the work
		s := specserve.New(specserve.Options{TLS: certificate.TLS(), Log: log})
		s.Publish(specserve.View{Catalog: c, Keys: signingKeys, Pins: certificate.Pins()})
		ln := listen(b)
		ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
		done := make(chan error, 1)
		go func() { done <- s.Serve(ctx, ln) }()
		load(b, ln.Addr().String(), text, len(body))
		cancel()
		require.NoError(b, <-done)
	})
	b.Run("floor", func(b *testing.B) {
		ln := listen(b)
		s := &http.Server{TLSConfig: certificate.TLS(), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { //nolint:gosec // only this benchmark connects
			_, _ = w.Write(body)
		})}
		done := make(chan error, 1)
		go func() { done <- s.ServeTLS(ln, "", "") }()
		load(b, ln.Addr().String(), text, len(body))
		require.NoError(b, s.Close())
		require.ErrorIs(b, <-done, http.ErrServerClosed)
	})
}

func listen(b *testing.B) net.Listener {
	b.Helper()
	ln, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	require.NoError(b, err)
	return ln
}

// load asks by eight clients at once.
func load(b *testing.B, addr, token string, size int) {
	b.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 8}}
	defer client.CloseIdleConnections()
	b.SetParallelism(4) // of two processors
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "https://"+addr+"/spec/own", http.NoBody)
			if err != nil {
				b.Error(err)
				return
			}
			r.Header.Set("Authorization", "Bearer "+token)
			got, err := client.Do(r)
			if err != nil {
				b.Error(err)
				return
			}
			n, _ := io.Copy(io.Discard, got.Body)
			_ = got.Body.Close()
			if got.StatusCode != http.StatusOK || n != int64(size) {
				b.Errorf("%d, %d bytes", got.StatusCode, n)
			}
		}
	})
}
