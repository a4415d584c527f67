package pvesim_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

// wired is a host behind its TLS server, spoken to by a client of net/http. The
// network is a pipe in memory, so that the clock of a bubble goes on while both
// sides wait.
type wired struct {
	*pvesim.Host
	transport *http.Transport
}

// RoundTrip hides that of the host: what goes in goes over the connection.
func (w wired) RoundTrip(r *http.Request) (*http.Response, error) { return w.transport.RoundTrip(r) }

// wire serves a host until the test ends.
func wire(t *testing.T, h *pvesim.Host) wired {
	t.Helper()
	ln := &pipes{dialled: make(chan net.Conn), closed: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, ln) }()
	transport := &http.Transport{DialContext: ln.dial, DisableCompression: true, TLSClientConfig: pinned(h.Fingerprint())}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		require.NoError(t, <-served)
	})
	return wired{h, transport}
}

// pinned is the configuration of a client that knows the certificate of a host by
// its fingerprint.
func pinned(fingerprint string) *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // Pinned below.
		VerifyConnection: func(state tls.ConnectionState) error {
			sum := sha256.Sum256(state.PeerCertificates[0].Raw)
			if "sha256:"+hex.EncodeToString(sum[:]) != fingerprint {
				return errors.New("another certificate")
			}
			return nil
		},
	}
}

// pipes is a listener in memory.
type pipes struct {
	dialled chan net.Conn
	closed  chan struct{}
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.dialled <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.dialled:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (*pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8006} }

// serve runs a host behind TLS on a port of this machine and returns its address
// and a transport that pins the certificate.
func serve(t *testing.T, h *pvesim.Host) (address string, transport *http.Transport) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, ln) }()
	transport = &http.Transport{TLSClientConfig: pinned(h.Fingerprint()), IdleConnTimeout: 4 * time.Second}
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-served)
		transport.CloseIdleConnections()
	})
	return "https://" + ln.Addr().String(), transport
}

// tlsClient speaks TLS to a host over a connection.
func tlsClient(conn net.Conn, h *pvesim.Host) *tls.Conn {
	return tls.Client(conn, pinned(h.Fingerprint()))
}
