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
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/homestak/homestak-gitops/engine/diag"
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

func tcp(c *model.Check) { c.TCP = "8080" }

// A check is tried until it holds, and tells meanwhile what it saw.
func TestACheckIsTriedUntilItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{serve: silent, err: func(n int) error {
			if n < 3 {
				return &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return nil
		}}
		var told []health.Progress
		p := health.Prober{Dial: d.dial, Notify: func(w health.Progress) { told = append(told, w) }}
		began := time.Now()
		r := p.Run(t.Context(), subject(&machine{}), check(tcp))
		require.NoError(t, r.Err)
		require.Equal(t, 10*time.Second, time.Since(began), "two pauses")
		require.Equal(t, []health.Result{{Name: "web", OK: true, Detail: "192.0.2.7:8080: accepted in 0 ms", Tries: 3, Seconds: 10}}, r.Results)
		require.Equal(t, "192.0.2.7", r.IP)
		require.Equal(t, []string{"192.0.2.7:8080", "192.0.2.7:8080", "192.0.2.7:8080"}, d.to)
		require.Len(t, told, 3)
		require.True(t, told[2].Passed, "who told that it is waited for tells that this is over")
		require.Equal(t, health.Progress{
			Address: model.Address{Kind: "vm", Name: "web-1"}, Check: "web", Saw: "192.0.2.7:8080: connection refused",
			Tries: 2, Waited: 5 * time.Second, Timeout: 20 * time.Second,
		}, told[1])
	})
}

// A failing check reports where it is declared, what it saw, how often and since when. The checks after it are not tried.
func TestACheckThatNeverHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{err: func(int) error { return &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH} }}
		began := time.Now()
		checks := append(check(tcp), model.Check{Name: "later", Agent: true})
		r := health.Prober{Dial: d.dial}.Run(t.Context(), subject(&machine{}), checks)
		require.EqualError(t, r.Err, "check web (web.hcl:31:5) failed: 192.0.2.7:8080: no route to host; tried 4 times since "+began.UTC().Format("15:04:05 UTC"))
		require.Equal(t, 15*time.Second, time.Since(began), "a fourth pause would have no try after it")
		require.Equal(t, health.Result{Name: "later", Detail: "not tried, because an earlier check failed"}, r.Results[1])
		require.Equal(t, 35*time.Second, health.Limit([]model.Check{{Timeout: 20 * time.Second}, {Timeout: 15 * time.Second}}))
	})
}

// The last try has what is left of the time. That it did not finish says nothing of the guest; the one before it does.
func TestN12ATryThatIsCutOffIsNotTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{err: func(n int) error {
			if n < 4 {
				return &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}
			}
			return nil
		}}
		began := time.Now()
		r := health.Prober{Dial: d.dial}.Run(t.Context(), subject(&machine{}), check(func(c *model.Check) { c.TCP, c.Timeout = "8080", 18*time.Second }))
		require.Equal(t, 18*time.Second, time.Since(began))
		require.ErrorContains(t, r.Err, "192.0.2.7:8080: no route to host; tried 4 times since ")
	})
}

// A failure that cannot pass is not waited for.
func TestHopelessIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &machine{address: func() (guest.Address, error) {
			return guest.Address{}, &health.HopelessError{Text: "VM 100 has no guest agent configured"}
		}}
		began := time.Now()
		r := health.Prober{}.Run(t.Context(), subject(g), check(tcp))
		require.ErrorContains(t, r.Err, "its address is unknown: VM 100 has no guest agent configured")
		require.Zero(t, time.Since(began))
		r = health.Prober{}.Run(t.Context(), subject(g), check(func(*model.Check) {}))
		require.ErrorContains(t, r.Err, "its command uses a secret that is unknown here")
	})
}

// Cancelling returns at once, from a pause as well as from a try, with what was seen before.
func TestCancelIsPrompt(t *testing.T) {
	errLeave := errors.New("asked to leave")
	for name, serve := range map[string]func(net.Conn){"in a pause": nil, "in a try": silent} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				d := &dialer{serve: serve, err: func(n int) error {
					if serve == nil || n == 1 {
						return errRefused
					}
					return nil
				}}
				time.AfterFunc(7*time.Second, func() { cancel(errLeave) })
				began := time.Now()
				r := health.Prober{Dial: d.dial}.Run(ctx, subject(&machine{}), check(func(c *model.Check) { c.HTTP = "/" }))
				require.Equal(t, 7*time.Second, time.Since(began))
				require.ErrorIs(t, r.Err, errLeave)
				require.ErrorContains(t, r.Err, "refused for the test")
				require.ErrorContains(t, r.Err, "tried 2 times")
				require.ErrorContains(t, r.Err, "given up: asked to leave")
			})
		})
	}
}

// The address may be late, and one by DHCP may change; a declared one is asked for once.
func TestTheAddressIsReadForEachAttempt(t *testing.T) {
	for _, declared := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			g := &machine{address: func() (guest.Address, error) {
				asked++
				if asked == 1 {
					return guest.Address{}, errors.New("the guest agent of VM 100 does not answer")
				}
				return guest.Address{IP: netip.AddrFrom4([4]byte{192, 0, 2, byte(asked)}), Declared: declared}, nil
			}}
			d := &dialer{serve: silent, err: func(n int) error {
				if n == 1 {
					return errRefused
				}
				return nil
			}}
			r := health.Prober{Dial: d.dial}.Run(t.Context(), subject(g), check(tcp))
			require.NoError(t, r.Err)
			want := []string{"192.0.2.2:8080", "192.0.2.3:8080"}
			if declared {
				want[1] = want[0]
			}
			require.Equal(t, want, d.to)
		})
	}
}

// A try has its own deadlines: to connect, without a byte, and in all.
func TestDeadlinesOfATry(t *testing.T) {
	http := func(c *model.Check) { c.HTTP, c.Timeout = "/", time.Hour }
	drip := func(c net.Conn) {
		request(c)
		for {
			if _, err := c.Write([]byte("H")); err != nil {
				return
			}
			_ = c.SetReadDeadline(time.Now().Add(9 * time.Second))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
		}
	}
	for name, v := range map[string]struct {
		d    dialer
		edit func(*model.Check)
		took time.Duration
		want string
	}{
		"connect":         {dialer{}, http, 5 * time.Second, "192.0.2.7:80: no connection within 5 s"},
		"idle":            {dialer{serve: silent}, http, 10 * time.Second, "192.0.2.7:80: connected in 0 ms, then no byte for 10 s"},
		"idle, tcp":       {dialer{serve: silent}, func(c *model.Check) { c.TCP, c.Expect = "25", "220"; c.Timeout = time.Hour }, 10 * time.Second, "192.0.2.7:25: connected in 0 ms, then no byte for 10 s"},
		"idle, ssh":       {dialer{serve: silent}, func(c *model.Check) { c.SSH, c.Timeout = true, time.Hour }, 10 * time.Second, "192.0.2.7:22: connected in 0 ms, then no byte for 10 s"},
		"total":           {dialer{serve: drip}, http, 30 * time.Second, "192.0.2.7:80: connected in 0 ms, 4 bytes received, not finished after 30 s"},
		"what is left":    {dialer{serve: silent}, func(c *model.Check) { c.HTTP, c.Timeout = "/", 3*time.Second }, 3 * time.Second, "192.0.2.7:80: connected in 0 ms, not finished after 3 s"},
		"closed":          {dialer{serve: request}, http, 0, "192.0.2.7:80: connected in 0 ms, then the other side closed it"},
		"closed, ssh":     {dialer{serve: func(net.Conn) {}}, func(c *model.Check) { c.SSH = true }, 0, "192.0.2.7:22: connected in 0 ms, then the other side closed it"},
		"no such name":    {dialer{err: func(int) error { return &net.DNSError{Name: "db.example", Err: "no such host"} }}, func(c *model.Check) { c.TCP = "db.example:1" }, 0, "db.example:1: the name db.example is not known: no such host"},
		"some other word": {dialer{serve: func(c net.Conn) { request(c); _, _ = c.Write([]byte("220 mail\r\n")) }}, http, 0, `192.0.2.7:80: connected in 0 ms, 10 bytes received, then: net/http: HTTP/1.x transport connection broken: malformed HTTP status code "mail"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				got, ok := saw(t, health.Prober{Dial: v.d.dial}, subject(&machine{}), v.edit)
				require.False(t, ok)
				require.Equal(t, v.want, got)
				require.Equal(t, v.took, time.Since(began))
			})
		})
	}
}

// With a simulator there is no network: what is up is taken to answer.
func TestSimulatedGuests(t *testing.T) {
	up := false
	p := health.Prober{Simulated: func(ip netip.Addr) error {
		require.Equal(t, "192.0.2.7", ip.String())
		if !up {
			return errors.New("is not up")
		}
		return nil
	}}
	for range 2 {
		for _, edit := range []func(*model.Check){
			func(c *model.Check) { c.HTTP, c.Expect = ":8080/", "ready" }, func(c *model.Check) { c.TCP = "22" }, func(c *model.Check) { c.SSH = true },
		} {
			got, ok := saw(t, p, subject(&machine{}), edit)
			require.Equal(t, up, ok, got)
		}
		got, ok := saw(t, p, subject(&machine{}), func(c *model.Check) { c.TCP = "db.example:5432" })
		require.True(t, ok, got)
		up = true
	}
}

// What a server begins with is cut to what a person reads; a secret that stands at the
// cut is taken out as a whole, and so is one of which only the beginning was read.
func TestNoPartOfASecretStandsAtACut(t *testing.T) {
	const secret = "hunter2-correct-horse-battery-staple"
	tcp := func(c *model.Check) { c.TCP, c.Expect = "25", "ready" }
	for name, c := range map[string]struct {
		begins  string
		secrets []string
		check   func(*model.Check)
	}{
		"ssh, at the cut of a line": {strings.Repeat("x", 190) + secret + "\r\n", []string{secret}, func(c *model.Check) { c.SSH = true }},
		"ssh, at the end of a read": {strings.Repeat("x", 250) + secret + "\r\n", []string{secret, strings.Repeat("x", 100)}, func(c *model.Check) { c.SSH = true }},
		"tcp, at the cut of a line": {strings.Repeat("x", 190) + secret, []string{secret}, tcp},
		"tcp, at the end of what is read": {
			strings.Repeat("x", 4096-10) + secret[:10] + strings.Repeat("x", 500),
			[]string{secret[:10] + strings.Repeat("x", 600), strings.Repeat("x", 4000)},
			tcp,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := listen(t, func(conn net.Conn) {
				for rest := c.begins; rest != ""; {
					n, err := conn.Write([]byte(rest[:min(256, len(rest))]))
					if err != nil {
						return
					}
					rest = rest[n:]
				}
			})
			s := subject(&machine{})
			s.Secrets = c.secrets
			got, ok := saw(t, p, s, c.check)
			require.False(t, ok, got)
			require.NotContains(t, got, "hunt")
			require.Contains(t, got, "xxx")
		})
	}
}

// machine is a fake way into a guest: each question has its answer as a function.
type machine struct {
	address func() (guest.Address, error)
	ping    func(ctx context.Context) error
	exec    func(ctx context.Context, c guest.Command) (guest.Output, error)
}

func (g *machine) Address(context.Context) (guest.Address, error) {
	if g.address == nil {
		return guest.Address{IP: netip.MustParseAddr("192.0.2.7"), Declared: true}, nil
	}
	return g.address()
}

func (g *machine) Ping(ctx context.Context) error { return g.ping(ctx) }

func (g *machine) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	return g.exec(ctx, c)
}

// dialer answers connections: with an error, or with what serve does on the other end.
type dialer struct {
	err   func(n int) error // of the n-th, from 1
	serve func(net.Conn)
	to    []string
}

func (d *dialer) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	d.to = append(d.to, addr)
	if d.err != nil {
		if err := d.err(len(d.to)); err != nil {
			return nil, err
		}
	}
	if d.serve == nil { // no answer
		<-ctx.Done()
		return nil, ctx.Err()
	}
	here, there := net.Pipe()
	go func() {
		defer func() { _ = there.Close() }()
		d.serve(there)
	}()
	return here, nil
}

// request reads a request up to its empty line.
func request(c net.Conn) {
	buf, seen := make([]byte, 1), ""
	for len(seen) < 4 || seen[len(seen)-4:] != "\r\n\r\n" {
		if _, err := c.Read(buf); err != nil {
			return
		}
		seen += string(buf)
	}
}

// silent keeps a connection open and says nothing.
func silent(c net.Conn) { _, _ = c.Read(make([]byte, 1<<16)); _, _ = c.Read(make([]byte, 1)) }

func subject(g guest.Machine) health.Subject {
	return health.Subject{Address: model.Address{Kind: "vm", Name: "web-1"}, Machine: g, User: "homestak"}
}

func check(edit func(*model.Check)) []model.Check {
	at := diag.Range{File: "web.hcl", Start: diag.Pos{Line: 31, Column: 5}}
	c := model.Check{Name: "web", Timeout: 20 * time.Second, Interval: 5 * time.Second, At: at}
	edit(&c)
	return []model.Check{c}
}

// saw runs one try and gives what was seen.
func saw(t *testing.T, p health.Prober, s health.Subject, edit func(*model.Check)) (string, bool) {
	t.Helper()
	r := p.Once(t.Context(), s, check(edit))
	require.Len(t, r.Results, 1)
	require.Equal(t, 1, r.Results[0].Tries)
	require.Equal(t, r.Results[0].OK, r.Err == nil)
	return r.Results[0].Detail, r.Results[0].OK
}

var errRefused = errors.New("refused for the test")
