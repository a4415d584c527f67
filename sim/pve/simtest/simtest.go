// Package simtest is for tests of and with the simulator: it serves a simulated host over TLS, on a local port or
// in memory.
package simtest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// Listen serves a host on a port of this machine until the test ends. It returns the
// address, "https://127.0.0.1:PORT", and a transport that pins the certificate.
func Listen(t testing.TB, h *pve.Host) (address string, transport *http.Transport) {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	transport = &http.Transport{TLSClientConfig: Pinned(h.Fingerprint()), IdleConnTimeout: 4 * time.Second}
	serve(t, h, ln, transport)
	return "https://" + ln.Addr().String(), transport
}

// Pipe serves a host until the test ends. Connections are in memory, so that the
// clock of a testing/synctest bubble goes on while both sides wait; the transport takes
// any address.
func Pipe(t testing.TB, h *pve.Host) *http.Transport {
	t.Helper()
	at, network := netip.MustParseAddrPort("127.0.0.1:8006"), new(machine.Net)
	ln, err := network.Listen(at, at)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return network.Dial(ctx, at, at) }
	transport := &http.Transport{DialContext: dial, DisableCompression: true, TLSClientConfig: Pinned(h.Fingerprint())}
	serve(t, h, ln, transport)
	return transport
}

// serve lets a host answer what a transport asks, until the test ends.
func serve(t testing.TB, h *pve.Host, ln net.Listener, transport *http.Transport) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, ln) }()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// Pinned is the configuration of a client that knows the certificate of a host by its
// fingerprint.
func Pinned(fingerprint string) *tls.Config {
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

// RootArchive packs a root file system. A content "-> x" is a symbolic link, a name that
// ends in a slash a directory.
func RootArchive(files map[string]string) []byte {
	var b bytes.Buffer
	packed := gzip.NewWriter(&b)
	w := tar.NewWriter(packed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		head := &tar.Header{Name: "./" + name, Mode: 0o755, Typeflag: tar.TypeReg, Size: int64(len(files[name]))}
		if link, ok := strings.CutPrefix(files[name], "-> "); ok {
			head.Typeflag, head.Linkname, head.Size = tar.TypeSymlink, link, 0
		}
		if strings.HasSuffix(name, "/") {
			head.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(head); err != nil {
			panic(err)
		}
		if head.Size > 0 {
			if _, err := w.Write([]byte(files[name])); err != nil {
				panic(err)
			}
		}
	}
	if w.Close() != nil || packed.Close() != nil {
		panic("memory does not take it")
	}
	return b.Bytes()
}

// ELF is the head of a program for a machine.
func ELF(machine string) string {
	return "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00" + machine + "\x00"
}
