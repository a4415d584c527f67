package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
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
	// refuse: no server listens.
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

func (s *server) client(pins ...wire.Pin) *Client {
	return &Client{
		Parent: wire.Parent{Identity: "edge", Server: "https://192.0.2.1:44443", Pins: pins, Token: secret},
		Agent:  "homestak-gitops/test", Dial: s.dial,
	}
}

// body is an answer with these pins.
func body(t *testing.T, node, token string, pins ...wire.Pin) []byte {
	t.Helper()
	s := wire.Spec{Spec: spec.Empty(node), Pins: wire.PinTexts(pins), Token: token}
	s.Name = "base"
	b, err := json.Marshal(s)
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
		require.Equal(t, Fetched{NotModified: true, ETag: `"one"`}, got)
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

// A server that sends nothing, too slowly or too much costs a bounded time and memory.
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
				asking.Limits = usual()
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

// Cancelling does not wait for the pauses.
func TestCancelled(t *testing.T) {
	cert, now := certificate(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(cert, nil)
		defer s.stop()
		s.refuse = true
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { cancel(fmt.Errorf("stopped by a test")) })
		begun := time.Now()
		_, err := s.client(now).Spec(ctx, "")
		require.ErrorContains(t, err, "stopped by a test")
		require.Equal(t, 3*time.Second, time.Since(begun))
		require.Len(t, s.dials, 1)
	})
}

var update = flag.Bool("update", false, "write the golden files")

func firstbootChild(t *testing.T) wire.Parent {
	t.Helper()
	pins, err := wire.ParsePins([]string{strings.Repeat("0a", 32), strings.Repeat("0b", 32)})
	require.NoError(t, err)
	return wire.Parent{Identity: "edge", Server: "https://192.0.2.10:44443", Pins: pins, Token: `to"ken:'{#}%$`}
}

type seed struct {
	WriteFiles []struct {
		Path, Owner, Permissions, Content string
	} `yaml:"write_files"`
	RunCmd [][]string `yaml:"runcmd"`
}

// read reads a document as cloud-init does: as YAML.
func read(t *testing.T, text string) seed {
	t.Helper()
	require.True(t, strings.HasPrefix(text, "#cloud-config\n"))
	var doc seed
	require.NoError(t, yaml.Unmarshal([]byte(text), &doc))
	return doc
}

// The files arrive as they are, whatever is in them, and who may read them.
func TestUserData(t *testing.T) {
	p := firstbootChild(t)
	text, err := FirstBootUserData(p, "")
	require.NoError(t, err)
	require.NoError(t, lifecycle.CheckUserData(text), "it fits on a seed")
	doc := read(t, text)
	var who []string
	for _, f := range doc.WriteFiles {
		who = append(who, f.Permissions+" "+f.Owner+" "+f.Path)
	}
	require.Equal(t, []string{
		"0600 root:root /etc/homestak-gitops/node.json",
		"0700 root:root /var/lib/homestak-gitops/firstboot.py",
		"0644 root:root /etc/systemd/system/homestak-gitops-firstboot.service",
	}, who)
	got, err := wire.ReadParent([]byte(doc.WriteFiles[0].Content))
	require.NoError(t, err)
	require.Equal(t, p, got)
	require.Equal(t, [][]string{{"systemctl", "enable", "--now", "--no-block", "homestak-gitops-firstboot.service"}}, doc.RunCmd)
	for _, f := range doc.WriteFiles[1:] {
		require.NotContains(t, f.Content, p.Token)
	}
	golden(t, "testdata/alone.txt", text)

	p.Server = "http://192.0.2.10"
	_, err = FirstBootUserData(p, "")
	require.ErrorContains(t, err, "want https://HOST:PORT")
}

// The user_data of the site is a part of its own, of any type.
func TestUserDataOfTheSite(t *testing.T) {
	for name, site := range map[string]string{
		"script": "#!/bin/sh\necho ü\n", "config": "#cloud-config\npackages: [nginx]\n", "jinja": "## template: jinja\n#cloud-config\n{}\n",
		"message": "Content-Type: multipart/mixed; boundary=\"x\"\nMIME-Version: 1.0\n\n--x\nContent-Type: text/x-shellscript\n\n#!/bin/sh\n\n--x--\n",
	} {
		t.Run(name, func(t *testing.T) {
			text, err := FirstBootUserData(firstbootChild(t), site)
			require.NoError(t, err)
			again, err := FirstBootUserData(firstbootChild(t), site)
			require.NoError(t, err)
			require.Equal(t, text, again)
			require.NoError(t, lifecycle.CheckUserData(text))
			m, err := mail.ReadMessage(strings.NewReader(text))
			require.NoError(t, err)
			kind, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
			require.NoError(t, err)
			require.Equal(t, "multipart/mixed", kind)
			parts := multipart.NewReader(m.Body, params["boundary"])
			first, err := parts.NextPart()
			require.NoError(t, err)
			body, err := io.ReadAll(first)
			require.NoError(t, err)
			if name == "message" {
				require.Equal(t, `multipart/mixed; boundary="x"`, first.Header.Get("Content-Type"))
				require.True(t, strings.HasPrefix(string(body), "--x\n"))
			} else {
				require.Equal(t, site, decode(t, first.Header, body))
			}
			second, err := parts.NextPart()
			require.NoError(t, err)
			require.Equal(t, "list(append)+dict(recurse_list,no_replace)+str()", second.Header.Get("Merge-Type"))
			body, err = io.ReadAll(second)
			require.NoError(t, err)
			require.Len(t, read(t, decode(t, second.Header, body)).WriteFiles, 3)
			_, err = parts.NextPart()
			require.ErrorIs(t, err, io.EOF)
			if name == "script" {
				golden(t, "testdata/with-script.txt", text)
			}
		})
	}
	_, err := FirstBootUserData(firstbootChild(t), "MIME-Version: 1.0")
	require.ErrorContains(t, err, "begins as a MIME message, and is none")
}

// decode gives what is in a part.
func decode(t *testing.T, head textproto.MIMEHeader, body []byte) string {
	t.Helper()
	require.Equal(t, "base64", head.Get("Content-Transfer-Encoding"))
	b, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(string(body), "\n", ""))
	require.NoError(t, err)
	return string(b)
}

func golden(t *testing.T, name, text string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}

// A report is sent once. Whatever the parent does, the child goes on soon.
func TestReport(t *testing.T) {
	cert, own := certificate(t)
	for name, c := range map[string]struct {
		serve  http.HandlerFunc
		pin    wire.Pin
		set    func(*server)
		code   wire.Code // "": none
		within time.Duration
	}{
		"taken":        {serve: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }, pin: own},
		"another good": {serve: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }, pin: own, code: wire.CodeInternal},
		"redirected": {serve: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://192.0.2.2/", http.StatusTemporaryRedirect)
		}, pin: own, code: wire.CodeConnection},
		"refused": {serve: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":{"code":"E303","message":"expired: ` + secret + `","hint":""}}`))
		}, pin: own, code: wire.CodeExpired},
		"too often":          {serve: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }, pin: own, code: wire.CodeTooMany},
		"refused connection": {set: func(s *server) { s.refuse = true }, pin: own, code: wire.CodeConnection},
		"silent":             {set: func(s *server) { s.silent = true }, pin: own, code: wire.CodeConnection, within: 15 * time.Second},
		"another key":        {pin: wire.Pin{1}, serve: func(http.ResponseWriter, *http.Request) { t.Error("it was sent") }, code: wire.CodeConnection},
		"never ready":        {serve: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, pin: own, code: wire.CodeConnection, within: 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent string
				s := start(cert, func(w http.ResponseWriter, r *http.Request) {
					b, _ := io.ReadAll(r.Body)
					sent = r.Method + " " + r.URL.Path + " " + r.Header.Get("Authorization") + " " + r.Header.Get("Content-Type") + " " + string(b)
					c.serve(w, r)
				})
				defer s.stop()
				if c.set != nil {
					c.set(s)
				}
				began := time.Now()
				err := s.client(c.pin).Report(t.Context(), []byte(`{"x":1}`))
				require.LessOrEqual(t, time.Since(began), c.within)
				require.Len(t, s.dials, 1)
				if c.code == "" {
					require.NoError(t, err)
					require.Equal(t, "POST /report/edge Bearer "+secret+` application/json {"x":1}`, sent)
					return
				}
				require.Equal(t, c.code, wire.CodeOf(err))
				require.NotContains(t, err.Error(), secret)
			})
		})
	}
}

// The script runs here with another root; test/machines runs it on a real machine.
func TestScript(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	const secret = "canary-token"
	good := "#!/bin/sh\necho \"ran $*\"\n"
	for _, c := range []struct {
		name     string
		program  string // that is served
		sum      string // that the spec names
		status   int
		otherPin bool
		says     string
		asked    []string
		there    bool // the program is in its folder afterwards
		gone     bool // unit and script are
	}{
		{name: "good", program: good, says: "ran config apply --fetch", asked: []string{"/spec/edge", "/agent/linux-" + runtime.GOARCH}, there: true, gone: true},
		{name: "it fails", program: "#!/bin/sh\nexit 5\n", says: "the spec is not applied yet", asked: []string{"/spec/edge", "/agent/linux-" + runtime.GOARCH}, there: true},
		{name: "another key", program: good, otherPin: true, says: "none of the pinned ones: nothing was sent to it"},
		{name: "another checksum", program: good, sum: strings.Repeat("0a", 32), says: "another checksum", asked: []string{"/spec/edge", "/agent/linux-" + runtime.GOARCH}},
		{name: "no program for this system", program: good, sum: "none", says: "has no program for linux-", asked: []string{"/spec/edge"}},
		{name: "refused", status: http.StatusUnauthorized, says: "/spec/edge: the server answered 401", asked: []string{"/spec/edge"}},
		{name: "redirected", status: http.StatusFound, says: "answered 302", asked: []string{"/spec/edge"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked []string
			s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.URL.Path)
				sum := sha256.Sum256([]byte(c.program))
				agent := fmt.Sprintf(`{"linux-%s":%q}`, runtime.GOARCH, hex.EncodeToString(sum[:]))
				if c.sum == "none" {
					agent = "{}"
				} else if c.sum != "" {
					agent = fmt.Sprintf(`{"linux-%s":%q}`, runtime.GOARCH, c.sum)
				}
				switch {
				case r.Header.Get("Authorization") != "Bearer "+secret:
					w.WriteHeader(http.StatusTeapot)
				case c.status != 0:
					w.Header().Set("Location", "/elsewhere")
					w.WriteHeader(c.status)
				case r.URL.Path == "/spec/edge":
					fmt.Fprintf(w, `{"agent":%s}`, agent)
				default:
					_, _ = w.Write([]byte(c.program))
				}
			}))
			defer s.Close()
			p := wire.Parent{Identity: "edge", Server: s.URL, Pins: []wire.Pin{wire.PinOf(s.Certificate())}, Token: secret}
			if c.otherPin {
				p.Pins = []wire.Pin{{1}}
			}
			text, err := FirstBootUserData(p, "")
			require.NoError(t, err)
			root := t.TempDir()
			for _, f := range read(t, text).WriteFiles {
				name := filepath.Join(root, f.Path)
				require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
				content := strings.NewReplacer(`"/etc/`, `"`+root+`/etc/`, `"/usr/local/`, `"`+root+`/usr/local/`).Replace(f.Content)
				require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
			}
			bin := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\n"), 0o700))

			cmd := exec.Command(python, filepath.Join(root, "var/lib/homestak-gitops/firstboot.py"))
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
			said, err := cmd.CombinedOutput()
			require.Equal(t, c.gone, err == nil, "%s", said)
			require.Contains(t, string(said), c.says)
			require.NotContains(t, string(said), secret)
			require.NotContains(t, string(said), "Traceback")
			require.Equal(t, c.asked, asked)
			left, err := filepath.Glob(filepath.Join(root, "usr/local/bin/.*"))
			require.NoError(t, err)
			require.Empty(t, left, "half a program")
			exists := func(name string) bool {
				_, err := os.Stat(filepath.Join(root, name))
				return err == nil
			}
			require.Equal(t, c.there, exists("usr/local/bin/homestak-gitops"))
			require.Equal(t, !c.gone, exists("etc/systemd/system/homestak-gitops-firstboot.service"))
			require.Equal(t, !c.gone, exists("var/lib/homestak-gitops/firstboot.py"))
			require.True(t, exists("etc/homestak-gitops/node.json"))
		})
	}
}
