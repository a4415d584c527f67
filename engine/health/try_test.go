package health_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
)

// towards is a prober whose guests' addresses are all a listener on this machine.
func towards(addr net.Addr) health.Prober {
	return health.Prober{Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr.String())
	}}
}

// web is a server of pages by path.
func web(t *testing.T, secure bool) (*httptest.Server, health.Prober) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "service is ready\n") })
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, "\n  database \x1b[31mis away: hunter2hunter2\nsecond line")
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strings.Repeat("x", 64<<10)+"ready")
	})
	mux.HandleFunc("/once", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere.example/ok", http.StatusFound)
	})
	mux.HandleFunc("/round", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/round", http.StatusFound) })
	s := httptest.NewUnstartedServer(mux)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s, towards(s.Listener.Addr())
}

// What an HTTP server says is judged, and told in its first line: without secrets, and
// without what drives a terminal.
func TestHTTP(t *testing.T) {
	_, p := web(t, false)
	s := subject(&machine{})
	s.Secrets = []string{"hunter2hunter2", "ok"}
	for _, v := range []struct {
		url, expect string
		ok          bool
		want        string
	}{
		{"/ok", "", true, "192.0.2.7:80: answered 200 in "},
		{"http://web.example/ok", "", true, "web.example:80: answered 200 in "},
		{":8080/ok", "200", true, "192.0.2.7:8080: answered 200 in "},
		{"/ok", "is ready", true, "192.0.2.7:80: answered 200 in "},
		{"/ok", "204", false, "192.0.2.7:80: answered 200, not 204, first line: service is ready"},
		{"/ok", "wonderful", false, `192.0.2.7:80: answered 200, but its body has no "wonderful", first line: service is ready`},
		{"/bad", "", false, "192.0.2.7:80: answered 503, first line: database ?[31mis away: (sensitive)"},
		{"/bad", "503", true, "192.0.2.7:80: answered 503 in "},
		{"/large", "ready", false, `192.0.2.7:80: answered 200, but its body has no "ready", first line: x`},
		{"/none", "", false, "192.0.2.7:80: answered 404, first line: 404 page not found"},
		{"/once", "is ready", true, "192.0.2.7:80: answered 200 in "},
		{"/away", "", false, "192.0.2.7:80: redirected elsewhere, to elsewhere.example"},
		{"/round", "", false, "192.0.2.7:80: redirected elsewhere more than 3 times"},
	} {
		got, ok := saw(t, p, s, func(c *model.Check) { c.HTTP, c.Expect = v.url, v.expect })
		require.Equal(t, v.ok, ok, v.url)
		require.Contains(t, got, v.want, v.url)
		require.LessOrEqual(t, len(got), 400)
	}
}

// A guest's own certificate is taken as it is; that of a host with a name must be good.
func TestHTTPS(t *testing.T) {
	_, p := web(t, true)
	got, ok := saw(t, p, subject(&machine{}), func(c *model.Check) { c.HTTP = "https://localhost/ok" })
	require.True(t, ok, got)
	got, ok = saw(t, p, subject(&machine{}), func(c *model.Check) { c.HTTP = "https://web.example/ok" })
	require.False(t, ok)
	require.Contains(t, got, "web.example:443: its certificate is not accepted: x509: ")
	got, ok = saw(t, p, subject(&machine{}), func(c *model.Check) { c.HTTP = "/ok" })
	require.False(t, ok)
	require.Contains(t, got, "answered 400, first line: Client sent an HTTP request to an HTTPS server.")
}

// listen serves connections on this machine until the test ends.
func listen(t *testing.T, serve func(net.Conn)) health.Prober {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = c.Close() }()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		all.Wait()
	})
	return towards(ln.Addr())
}

func TestTCP(t *testing.T) {
	p := listen(t, func(c net.Conn) { _, _ = c.Write([]byte("220 mail.example ESMTP\r\n")) })
	got, ok := saw(t, p, subject(&machine{}), func(c *model.Check) { c.TCP = "25" })
	require.True(t, ok, got)
	got, ok = saw(t, p, subject(&machine{}), func(c *model.Check) { c.TCP, c.Expect = "25", "ESMTP" })
	require.True(t, ok, got)
	require.Equal(t, "192.0.2.7:25: began with: 220 mail.example ESMTP", got)
	got, ok = saw(t, p, subject(&machine{}), func(c *model.Check) { c.TCP, c.Expect = "25", "SSH" })
	require.False(t, ok)
	require.Equal(t, `192.0.2.7:25: began without "SSH": 220 mail.example ESMTP`, got)

	refusing := listen(t, func(net.Conn) {})
	_, ok = saw(t, refusing, subject(&machine{}), func(c *model.Check) { c.TCP = "1" })
	require.True(t, ok)
	got, ok = saw(t, health.Prober{}, subject(&machine{address: func() (guest.Address, error) {
		return guest.Address{IP: netip.MustParseAddr("127.0.0.1")}, nil
	}}), func(c *model.Check) { c.TCP = "1" })
	require.False(t, ok, "nothing listens on port 1, and the real network is asked")
	require.Equal(t, "127.0.0.1:1: connection refused", got)
}

// pair makes a key: the private half in PEM form, and the line that lets it in.
func pair(t *testing.T) (private, public string, signer ssh.Signer) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(key, "")
	require.NoError(t, err)
	signer, err = ssh.NewSignerFromKey(key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(block)), string(ssh.MarshalAuthorizedKey(signer.PublicKey())), signer
}

// A login is tried with a key that the guest accepts; without one the server only has
// to prove that it is one.
func TestSSH(t *testing.T) {
	private, public, _ := pair(t)
	_, other, host := pair(t)
	accepts := true
	p := listen(t, func(c net.Conn) {
		config := &ssh.ServerConfig{ServerVersion: "SSH-2.0-OpenSSH_9.9", PublicKeyCallback: func(m ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if !accepts || m.User() != "homestak" || string(ssh.MarshalAuthorizedKey(key)) != public {
				return nil, errors.New("not here")
			}
			return &ssh.Permissions{}, nil
		}}
		config.AddHostKey(host)
		if conn, _, _, err := ssh.NewServerConn(c, config); err == nil {
			_ = conn.Wait()
		}
	})
	try := func(c *model.Check) { c.SSH = true }
	shown := ssh.FingerprintSHA256(host.PublicKey())
	s := subject(&machine{})

	got, ok := saw(t, p, s, try)
	require.True(t, ok, got)
	require.Equal(t, "192.0.2.7:22: SSH-2.0-OpenSSH_9.9, host key "+shown, got)

	s.Key, s.Keys = private, []string{"no key at all", other}
	require.False(t, s.CanLogIn())
	got, ok = saw(t, p, s, try)
	require.True(t, ok, got)
	require.NotContains(t, got, "logged in")

	s.Keys = append(s.Keys, public)
	require.True(t, s.CanLogIn())
	got, ok = saw(t, p, s, try)
	require.True(t, ok, got)
	require.Contains(t, got, ", logged in as homestak in ")

	accepts = false
	got, ok = saw(t, p, s, try)
	require.False(t, ok)
	require.Contains(t, got, "192.0.2.7:22: SSH-2.0-OpenSSH_9.9, host key "+shown+", but it rejects user homestak with the key SHA256:")

	p = listen(t, func(c net.Conn) { _, _ = c.Write([]byte("220 mail.example ESMTP\r\n")) })
	got, ok = saw(t, p, s, try)
	require.False(t, ok)
	require.Contains(t, got, "192.0.2.7:22: 220 mail.example ESMTP, but the SSH handshake failed: ")
}

func TestAgentAndCommand(t *testing.T) {
	var asked [][]string
	out, fails := guest.Output{}, error(nil)
	g := &machine{
		ping: func(context.Context) error { return fails },
		exec: func(_ context.Context, c guest.Command) (guest.Output, error) {
			asked = append(asked, c.Args)
			return out, fails
		},
	}
	agent := func(c *model.Check) { c.Agent = true }
	command := func(expect string) func(*model.Check) {
		return func(c *model.Check) { c.Command, c.Expect = "systemctl is-active web", expect }
	}
	s := subject(g)
	s.Secrets = []string{"hunter2hunter2"}
	_, ok := saw(t, health.Prober{}, s, agent)
	require.True(t, ok)
	for _, v := range []struct {
		out    guest.Output
		expect string
		ok     bool
		want   string
	}{
		{guest.Output{Out: "active\n"}, "", true, "exit 0, stdout: active"},
		{guest.Output{Out: "active\n"}, "active", true, "exit 0, stdout: active"},
		{guest.Output{Out: "activating\n"}, "active", false, `exit 0, but its output has no "active", stdout: activating`},
		{guest.Output{Code: 3, Out: "no", Err: "pass hunter2hunter2\nis \x07wrong"}, "", false, "exit 3, stderr: pass (sensitive) is ?wrong"},
		{guest.Output{Signal: 9}, "", false, "killed by signal 9"},
		{guest.Output{}, "", true, "exit 0"},
	} {
		out = v.out
		got, ok := saw(t, health.Prober{}, s, command(v.expect))
		require.Equal(t, v.ok, ok)
		require.Equal(t, v.want, got)
	}
	require.Equal(t, []string{"/bin/sh", "-c", "systemctl is-active web"}, asked[0])

	out = guest.Output{Code: 1, Err: strings.Repeat("é", 5000) + "hunter2hunter2"}
	got, _ := saw(t, health.Prober{}, s, command(""))
	require.Less(t, len(got), 1100)
	require.True(t, strings.HasSuffix(got, "é…"), "cut between two characters")

	out = guest.Output{Code: 1, Err: "anything"}
	got, ok = saw(t, health.Prober{}, s, func(c *model.Check) { c.Command, c.Sensitive = "curl -u x:$PASS", true })
	require.False(t, ok)
	require.Equal(t, "the result is not shown, because the check uses a secret", got)

	fails = errors.New("the guest agent of VM 100 does not answer")
	for _, edit := range []func(*model.Check){agent, command("")} {
		got, ok = saw(t, health.Prober{}, s, edit)
		require.False(t, ok)
		require.Equal(t, "the guest agent of VM 100 does not answer", got)
	}
}
