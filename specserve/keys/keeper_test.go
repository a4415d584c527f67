package keys

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// world is a machine with a clock and names.
type world struct {
	dir   string
	now   time.Time
	names Names
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{
		dir: filepath.Join(t.TempDir(), "server"), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		names: Names{DNS: []string{"father"}, IPs: []net.IP{net.IPv4(192, 0, 2, 10)}},
	}
}

func (w *world) options() CertOptions {
	return CertOptions{
		Dir: w.dir, Log: slog.New(slog.DiscardHandler),
		Names: func() Names { return w.names }, Now: func() time.Time { return w.now },
	}
}

func (w *world) open(t *testing.T) *CertKeeper {
	t.Helper()
	k, err := OpenCert(w.options())
	require.NoError(t, err)
	return k
}

// shown is the certificate that a client gets.
func shown(t *testing.T, k *CertKeeper) *x509.Certificate {
	t.Helper()
	here, there := net.Pipe()
	done := make(chan error, 1)
	go func() {
		server := tls.Server(there, k.TLS())
		done <- server.HandshakeContext(t.Context())
		_, _ = io.Copy(io.Discard, there)
	}()
	client := tls.Client(here, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	require.NoError(t, client.HandshakeContext(t.Context()))
	require.NoError(t, <-done)
	state := client.ConnectionState()
	require.Equal(t, "h2", state.NegotiatedProtocol)
	require.NoError(t, here.Close())
	return state.PeerCertificates[0]
}

func TestCertificateIsMadeOnceAndKept(t *testing.T) {
	w := newWorld(t)
	k := w.open(t)
	info, err := os.Stat(filepath.Join(w.dir, serverFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	pins := k.Pins()
	require.Len(t, pins, 2)
	require.NotEqual(t, pins[0], pins[1])
	c := shown(t, k)
	require.Equal(t, pins[0], wire.PinOf(c).String())
	require.Regexp(t, "^sha256:[0-9a-f]{64}$", pins[1])
	require.Equal(t, x509.ECDSA, c.PublicKeyAlgorithm)
	require.NoError(t, c.VerifyHostname("father"))
	require.NoError(t, c.VerifyHostname("192.0.2.10"))
	// A client that does check authorities can be given the certificate itself.
	roots := x509.NewCertPool()
	roots.AddCert(c)
	_, err = c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: w.now, DNSName: "father"})
	require.NoError(t, err)

	again := w.open(t)
	require.Equal(t, pins, again.Pins(), "a restart keeps both keys")
	changed, err := again.Check()
	require.NoError(t, err)
	require.False(t, changed)
}

// The key that was announced as the next one is the one that comes.
func TestRenewalWhileRunning(t *testing.T) {
	w := newWorld(t)
	k := w.open(t)
	first := k.Pins()
	for i := range 3 {
		was := k.Pins()
		w.now = k.Expires().Add(-30 * 24 * time.Hour)
		changed, err := k.Check()
		require.NoError(t, err)
		require.False(t, changed, "%d: not before 30 days are left", i)
		w.now = w.now.Add(2 * time.Hour)
		changed, err = k.Check()
		require.NoError(t, err)
		require.True(t, changed)
		now := k.Pins()
		require.Equal(t, was[1], now[0])
		require.NotContains(t, append(was, first...), now[1])
		require.Equal(t, now[0], wire.PinOf(shown(t, k)).String())
		require.True(t, shown(t, k).NotAfter.After(w.now.Add(364*24*time.Hour)))
	}
	require.Equal(t, k.Pins(), w.open(t).Pins())
}

// New names need a new certificate and no new key, so pins stay.
func TestNewNamesKeepTheKey(t *testing.T) {
	w := newWorld(t)
	k := w.open(t)
	pins, end := k.Pins(), k.Expires()
	w.names.IPs = append(w.names.IPs, net.ParseIP("2001:db8::10"))
	w.now = w.now.Add(2 * time.Hour)
	changed, err := k.Check()
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, pins, k.Pins())
	require.Equal(t, end, k.Expires(), "names do not postpone the next key")
	require.NoError(t, shown(t, k).VerifyHostname("2001:db8::10"))
	w.names = Names{}
	w.now = w.now.Add(2 * time.Hour)
	changed, err = k.Check()
	require.NoError(t, err)
	require.False(t, changed, "a name too many does no harm")
}

// A machine whose clock was wrong at first.
func TestClockWasAhead(t *testing.T) {
	w := newWorld(t)
	right := w.now
	w.now = w.now.AddDate(10, 0, 0)
	pins := w.open(t).Pins()
	w.now = right
	k := w.open(t)
	require.Equal(t, pins, k.Pins())
	require.True(t, shown(t, k).NotBefore.Before(right))
	require.True(t, k.Expires().Before(right.AddDate(1, 0, 1)))
}

// A clock that jumps by a year, either way and back, leaves a certificate that is valid, and a key that a client knows
// which was away all the time.
func TestS7ClockOfTheServer(t *testing.T) {
	for _, years := range []int{1, -1} {
		w := newWorld(t)
		right := w.now
		k := w.open(t)
		known := k.Pins()
		for _, now := range []time.Time{right.AddDate(years, 0, 0), right} {
			w.now = now
			_, err := k.Check()
			require.NoError(t, err)
			require.Contains(t, known, wire.PinOf(shown(t, k)).String())
			require.True(t, shown(t, k).NotBefore.Before(now), "%d", years)
			require.True(t, k.Expires().After(now))
			require.True(t, k.Expires().Before(now.AddDate(1, 0, 1)))
		}
		require.Equal(t, k.Pins(), w.open(t).Pins())
	}
}

// Several processes may start at the same time, and renew at the same time.
func TestTwoProcessesAgree(t *testing.T) {
	w := newWorld(t)
	keepers := make([]*CertKeeper, 8)
	var all sync.WaitGroup
	for i := range keepers {
		all.Go(func() {
			k, err := OpenCert(w.options())
			if err != nil {
				t.Error(err)
			}
			keepers[i] = k
		})
	}
	all.Wait()
	first := keepers[0].Pins()
	for _, k := range keepers {
		require.Equal(t, first, k.Pins())
	}
	w.now = w.now.AddDate(1, 0, 0)
	for _, k := range keepers {
		all.Go(func() {
			if _, err := k.Check(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, k := range keepers {
		_, err := k.Check()
		require.NoError(t, err)
		require.Equal(t, keepers[0].Pins(), k.Pins())
		require.Equal(t, first[1], k.Pins()[0], "renewed once")
	}
}

// killedEnv makes the test program the process that is killed.
const killedEnv = "HOMESTAK_TEST_CERT_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(killedEnv); dir != "" {
		now := time.Now()
		o := CertOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), Names: func() Names { return Names{} }, Now: func() time.Time { return now }}
		for range 100_000 {
			k, err := OpenCert(o)
			if err != nil {
				panic(err)
			}
			now = k.Expires()
		}
	}
	os.Exit(m.Run())
}

// A process that makes and renews certificates all the time is killed, again and again: the file is
// whole each time, and nothing stays beside it.
func TestKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "server")
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(15+7*i)*time.Millisecond)
		cmd := exec.CommandContext(ctx, os.Args[0]) // killed when ctx ends
		cmd.Env = append(os.Environ(), killedEnv+"="+dir)
		_ = cmd.Run()
		cancel()
		k, err := OpenCert(CertOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return time.Now().AddDate(i, 0, 0) }})
		require.NoError(t, err)
		require.Equal(t, k.Pins()[0], wire.PinOf(shown(t, k)).String())
	}
	require.NoError(t, durable.Exclusively(dir, func() error { return nil }))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// An unusable file is never replaced automatically: nodes have pinned what was in it.
func TestCertUnusableFile(t *testing.T) {
	for name, spoil := range map[string]func(file string) error{
		"has no block":        func(file string) error { return os.WriteFile(file, nil, 0o600) },
		"cannot be read":      func(file string) error { return os.WriteFile(file, spoiled(t, file), 0o600) },
		"chmod 600":           func(file string) error { return os.Chmod(file, 0o604) },
		"NEXT PRIVATE KEY":    func(file string) error { return os.WriteFile(file, cut(t, file, "-----BEGIN NEXT"), 0o600) },
		"no such file or dir": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := w.open(t)
			pins := k.Pins()
			file := filepath.Join(w.dir, serverFile)
			require.NoError(t, spoil(file))
			if name == "chmod 600" { // the mode alone changes no content
				require.NoError(t, os.Chtimes(file, time.Now(), time.Now().Add(time.Second)))
			}
			_, err := k.Check()
			require.ErrorContains(t, err, name)
			require.Equal(t, pins[0], wire.PinOf(shown(t, k)).String(), "what is in force stays in force")
			if name != "no such file or dir" {
				_, err = OpenCert(w.options())
				require.ErrorContains(t, err, "restore it from a backup")
				require.NotContains(t, err.Error(), "PRIVATE KEY-----")
			}
		})
	}
}

func cut(t *testing.T, file, at string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	before, _, ok := strings.Cut(string(text), at)
	require.True(t, ok)
	return []byte(before)
}

func spoiled(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return []byte(strings.Replace(string(text), "MIG", "AAA", 1))
}

// pair makes a certificate as other tools do.
func pair(t *testing.T, dir string) (certFile, keyFile, pinned string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}), 0o600))
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return certFile, keyFile, wire.PinOf(leaf).String()
}

// The operator's own files are read again when they change, and only as a pair.
func TestCertificateFilesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile, first := pair(t, dir)
	w := newWorld(t)
	o := w.options()
	o.CertFile, o.KeyFile = certFile, keyFile
	k, err := OpenCert(o)
	require.NoError(t, err)
	require.Equal(t, []string{first}, k.Pins(), "of the next key nothing is known")
	require.NoDirExists(t, w.dir)

	other := t.TempDir()
	otherCert, otherKey, second := pair(t, other)
	require.NoError(t, os.Rename(otherCert, certFile))
	_, err = k.Check()
	require.ErrorContains(t, err, "are not a certificate and its key")
	require.Equal(t, first, wire.PinOf(shown(t, k)).String())
	require.NoError(t, os.Rename(otherKey, keyFile))
	changed, err := k.Check()
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, []string{second}, k.Pins())
	require.Equal(t, second, wire.PinOf(shown(t, k)).String())

	require.NoError(t, os.Remove(keyFile))
	_, err = k.Check()
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, second, wire.PinOf(shown(t, k)).String())
}

func TestOpenRefuses(t *testing.T) {
	w := newWorld(t)
	o := w.options()
	o.CertFile = "x"
	_, err := OpenCert(o)
	require.ErrorContains(t, err, "--cert FILE --key FILE")
	var keyFile string
	o.CertFile, keyFile, _ = pair(t, t.TempDir())
	o.KeyFile = keyFile
	require.NoError(t, os.Chmod(keyFile, 0o644))
	_, err = OpenCert(o)
	require.ErrorContains(t, err, "every user of this machine can use the key")
	o.KeyFile = "/none"
	_, err = OpenCert(o)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestHostNames(t *testing.T) {
	n := HostNames()
	require.Contains(t, n.DNS, "localhost")
	require.GreaterOrEqual(t, len(n.IPs), 2)
}
