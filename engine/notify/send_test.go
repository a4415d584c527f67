package notify

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/http"
	"net/http/httptest"
	netmail "net/mail"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// post sends a message over the network.
func post(ctx context.Context, n *model.Notify, m message) error { return send(ctx, nil, n, m) }

// one is a message about one incident.
func one(k kind) message {
	return message{ID: "ID7", Kind: k, At: noon.Add(90 * time.Minute), Incident: "INC", Since: noon, Agent: "father", Members: []incident{
		{Condition: failed, Host: "father", Address: "vm.web", Text: "<!channel> `x` & more"},
	}}
}

// Messages in words, of all kinds and sizes.
func TestWords(t *testing.T) {
	many := func(c condition, hosts, each int) (out []incident) {
		for h := range hosts {
			for n := range each {
				i := incident{Condition: c, Host: fmt.Sprintf("host-%02d", h), Text: "it broke"}
				if i.Address = fmt.Sprintf("vm.web-%d", n); each == 1 {
					i.Address = hostAddress(i.Host)
				}
				out = append(out, i)
			}
		}
		return out
	}
	var text strings.Builder
	for _, m := range []message{
		one(kindFiring), one(kindReminder), one(kindResolved),
		{Kind: kindTest, Text: "This is a test of notify ops."},
		{Kind: kindFiring, Members: many(refused, 12, 1)},
		{Kind: kindFiring, Members: many(failed, 1, 30), Since: noon},
		{Kind: kindReminder, Members: many(drifted, 3, 2), Since: noon, Flaps: true},
		{Kind: kindFiring, Members: many(failed, 1, 100), More: 900},
		{Kind: kindFiring, Members: []incident{{Condition: expiring, Host: "father", Address: "certificate", Text: "the certificate of the page ends on 2026-01-15"}}},
		{Kind: kindResolved, At: noon.Add(time.Hour), Since: noon, Flaps: true, Members: many(drifted, 1, 1)},
		{Kind: kindFiring},
	} {
		title, body := words(m)
		fmt.Fprintf(&text, "== %s %s\n%s\n%s\n", m.Kind, severity(m), title, body)
	}
	const golden = "testdata/words.txt"
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(golden, []byte(text.String()), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), text.String())
}

// Each receiver takes a message about many incidents with long texts: ntfy takes 4,096 bytes, Discord 2,000 characters.
func TestLengthOfATextIsBounded(t *testing.T) {
	m := message{Kind: kindReminder, Flaps: true, Since: noon, More: 900}
	for n := range 100 {
		host := fmt.Sprintf("host-%02d-%s", n, strings.Repeat("x", 50))
		m.Members = append(m.Members, incident{Condition: failed, Host: host, Address: "vm." + strings.Repeat("y", 60), Text: strings.Repeat("z", mostIncidentText)})
	}
	title, text := words(m)
	require.Less(t, len(slackText(title, text)), 2000)
	require.Regexp(t, `(?s)^vm\.y+ on host-00-x+: z+\n.*\nand 997 more\n`, text)
}

// received is a request that a receiver got.
type received struct {
	*http.Request
	body []byte
}

func (r received) json(t *testing.T) map[string]any {
	t.Helper()
	var out map[string]any
	require.NoError(t, json.Unmarshal(r.body, &out), string(r.body))
	return out
}

// receiver answers requests, and passes them to the test.
func receiver(t *testing.T, answer http.HandlerFunc) (url string, got chan received) {
	t.Helper()
	got = make(chan received, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- received{r, body}
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, got
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }

// The server of an agent accepts the signature, and recognizes a message that is resent.
func TestWebhook(t *testing.T) {
	url, got := receiver(t, ok)
	require.NoError(t, post(t.Context(), &model.Notify{Name: "ops", Type: model.NotifyWebhook, To: url + "/x?token=y", Secret: "key"}, one(kindFiring)))
	r := <-got
	require.Equal(t, "POST /x?token=y", r.Method+" "+r.RequestURI)
	require.Equal(t, "ID7", r.Header.Get("Idempotency-Key"))
	checker := keys.NewHookChecker(time.Now)
	verdict, err := checker.Check("generic", []byte("key"), r.Header, bytes.NewReader(r.body))
	require.NoError(t, err)
	require.Equal(t, keys.HookPushed, verdict)
	verdict, err = checker.Check("generic", []byte("key"), r.Header, bytes.NewReader(r.body))
	require.NoError(t, err)
	require.Equal(t, keys.HookRepeated, verdict)
	_, err = checker.Check("generic", []byte("other"), r.Header, bytes.NewReader(r.body))
	require.ErrorIs(t, err, keys.ErrHookInvalid)
	require.JSONEq(t, `{"version":1,"id":"ID7","notify":"ops","state":"firing","incident":"INC","at":"2026-01-02T13:30:00Z","since":"2026-01-02T12:00:00Z","flaps":false,
		"incidents":[{"fingerprint":"b33770d99747995f","condition":"failed","host":"father","address":"vm.web","text":"<!channel> `+"`x`"+` & more"}],"more":0,
		"title":"vm.web on father: failed","body":"vm.web on father: <!channel> `+"`x`"+` & more","type":"failure"}`, string(r.body))
	require.NoError(t, post(t.Context(), &model.Notify{Type: model.NotifyWebhook, To: url}, one(kindFiring)))
	require.Empty(t, (<-got).Header.Get("X-Homestak-Signature"), "without a key it is not signed")
}

func TestNtfy(t *testing.T) {
	url, got := receiver(t, ok)
	require.NoError(t, post(t.Context(), &model.Notify{Type: model.NotifyNtfy, To: url + "/sub/alerts/", Secret: "tk_1"}, one(kindFiring)))
	r := <-got
	require.Equal(t, "POST /sub", r.Method+" "+r.RequestURI)
	require.Equal(t, "Bearer tk_1", r.Header.Get("Authorization"))
	require.Equal(t, map[string]any{"topic": "alerts", "title": "vm.web on father: failed", "message": "vm.web on father: <!channel> `x` & more", "priority": 4.0, "tags": []any{"rotating_light"}}, r.json(t))
	require.NoError(t, post(t.Context(), &model.Notify{Type: model.NotifyNtfy, To: url + "/alerts", Secret: "ann:pass"}, one(kindResolved)))
	r = <-got
	user, password, _ := r.BasicAuth()
	require.Equal(t, "ann pass", user+" "+password)
	require.Equal(t, 3.0, r.json(t)["priority"])
}

// Nothing in a text mentions anyone, or is a link or markup.
func TestSlack(t *testing.T) {
	url, got := receiver(t, ok)
	require.NoError(t, post(t.Context(), &model.Notify{Type: model.NotifySlack, To: url + "/services/T/B/X"}, one(kindFiring)))
	require.Equal(t, map[string]any{"text": "vm.web on father: failed\n```\nvm.web on father: &lt;!channel&gt; 'x' &amp; more\n```"}, (<-got).json(t))
	require.Equal(t, "(at)everyone", slackText("@everyone", ""))
}

func TestMatrix(t *testing.T) {
	url, got := receiver(t, ok)
	n := &model.Notify{Type: model.NotifyMatrix, Server: url + "/", To: "!ab/c:example.org", Secret: "syt"}
	for range 2 { // a message that is resent has the same transaction, so the server drops it
		require.NoError(t, post(t.Context(), n, one(kindFiring)))
		r := <-got
		require.Equal(t, "PUT /_matrix/client/v3/rooms/%21ab%2Fc:example.org/send/m.room.message/ID7", r.Method+" "+r.RequestURI)
		require.Equal(t, "Bearer syt", r.Header.Get("Authorization"))
		require.Equal(t, map[string]any{"msgtype": "m.text", "body": "vm.web on father: failed\nvm.web on father: <!channel> `x` & more", "m.mentions": map[string]any{}}, r.json(t))
	}
	url, _ = receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"errcode":"M_LIMIT_EXCEEDED","retry_after_ms":45000}`)
	})
	n.Server = url
	var f *failure
	require.ErrorAs(t, post(t.Context(), n, one(kindFiring)), &f)
	require.Equal(t, 45*time.Second, f.after)
}

func TestAlertmanager(t *testing.T) {
	url, got := receiver(t, ok)
	n := &model.Notify{Type: model.NotifyAlertmanager, To: url + "/am/"}
	require.Equal(t, noon.Add(lastsFor), alerts(one(kindFiring), noon)[0].EndsAt, "by the time of sending it")
	for k, ends := range map[kind]string{kindFiring: "", kindResolved: "2026-01-02T13:30:00Z"} {
		require.NoError(t, post(t.Context(), n, one(k)))
		r := <-got
		require.Equal(t, "POST /am/api/v2/alerts", r.Method+" "+r.RequestURI)
		if k == kindFiring {
			var list []alert
			require.NoError(t, json.Unmarshal(r.body, &list))
			require.True(t, list[0].EndsAt.After(time.Now()))
			continue
		}
		require.JSONEq(t, `[{"labels":{"alertname":"HomestakFailed","condition":"failed","host":"father","address":"vm.web"},
			"annotations":{"summary":"vm.web on father","description":"<!channel> `+"`x`"+` & more"},"startsAt":"2026-01-02T12:00:00Z","endsAt":"`+ends+`"}]`, string(r.body))
	}
	require.NoError(t, post(t.Context(), n, message{Kind: kindTest, Agent: "father", At: noon, Text: "a test"}))
	require.Contains(t, string((<-got).body), "HomestakTest")
}

// The statuses of a commit, as each forge documents them.
func TestForges(t *testing.T) {
	m := message{Kind: kindStatus, Commit: head, Context: "homestak/" + strings.Repeat("x", 40), State: stateFailure, Text: strings.Repeat("é", 100)}
	short := strings.Repeat("é", 68) + "…"
	key := m.Context[:31] + "-"
	for _, c := range []struct {
		kind                model.NotifyType
		path, header, value string
		body                map[string]any
	}{
		{model.NotifyGitHub, "/api/v3/repos/o/r/statuses/" + head, "Authorization", "Bearer s3cret", map[string]any{"state": "failure", "context": m.Context, "description": short}},
		{model.NotifyGitea, "/api/v1/repos/o/r/statuses/" + head, "Authorization", "token s3cret", map[string]any{"state": "failure", "context": m.Context, "description": short}},
		{model.NotifyGitLab, "/api/v4/projects/o%2Fr/statuses/" + head, "PRIVATE-TOKEN", "s3cret", map[string]any{"state": "failed", "name": m.Context, "description": short}},
		{model.NotifyBitbucket, "/2.0/repositories/o/r/commit/" + head + "/statuses/build", "Authorization", "Bearer s3cret", map[string]any{"state": "FAILED", "name": m.Context, "description": short}},
	} {
		url, got := receiver(t, ok)
		require.NoError(t, post(t.Context(), &model.Notify{Type: c.kind, To: url + "/o/r.git", Secret: "s3cret"}, m))
		r := <-got
		require.Equal(t, c.path, r.RequestURI)
		require.Equal(t, c.value, r.Header.Get(c.header))
		body := r.json(t)
		if c.kind == model.NotifyBitbucket {
			require.Len(t, body["key"], 40)
			require.Contains(t, body["key"], key)
			require.Contains(t, body["url"], "/o/r.git/commits/"+head)
			delete(body, "key")
			delete(body, "url")
		}
		require.Equal(t, c.body, body, c.kind)
	}
	for to, want := range map[string]string{"https://github.com/o/r": "https://api.github.com/repos/o/r/statuses/" + head} {
		c, err := statusCall(&model.Notify{Type: model.NotifyGitHub, To: to}, m)
		require.NoError(t, err)
		require.Equal(t, want, c.url)
	}
	c, err := statusCall(&model.Notify{Type: model.NotifyBitbucket, To: "https://bitbucket.org/o/r"}, message{Kind: kindStatus, Commit: head, Context: "homestak"})
	require.NoError(t, err)
	require.Equal(t, "https://api.bitbucket.org/2.0/repositories/o/r/commit/"+head+"/statuses/build", c.url)
	url, _ := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"message":"Cannot transition status via :enqueue from :pending"}`, http.StatusBadRequest)
	})
	require.NoError(t, post(t.Context(), &model.Notify{Type: model.NotifyGitLab, To: url + "/o/r"}, m), "it has that state")
}

// Errors of receivers are reported, without the address.
func TestFaultsOfReceivers(t *testing.T) {
	n := &model.Notify{Type: model.NotifyWebhook, Secret: "key"}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
		final  bool
		after  time.Duration
	}{
		"500": {answer: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "oh\x1b[31m no", http.StatusInternalServerError)
		}, want: "it answered 500 Internal Server Error: oh?[31m no"},
		"429": {answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(http.StatusTooManyRequests)
		}, want: "429", after: 2 * time.Minute},
		"bad request": {answer: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such field", http.StatusBadRequest) }, want: "no such field", final: true},
		"elsewhere": {answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusTemporaryRedirect)
		}, want: "307"},
		"endless": {answer: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			for r.Context().Err() == nil {
				if _, err := w.Write(bytes.Repeat([]byte("x"), 1<<16)); err != nil {
					return
				}
			}
		}, want: "it answered 500"},
		"hangs up": {answer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, want: "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			url, _ := receiver(t, c.answer)
			n.To = url + "/canary"
			err := post(t.Context(), n, one(kindFiring))
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "canary")
			f, _ := errors.AsType[*failure](err)
			require.Equal(t, c.final, f != nil && f.final)
			if f != nil {
				require.Equal(t, c.after, f.after)
				require.Less(t, len(err.Error()), 2*mostAnswer)
			}
		})
	}
	echo, _ := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "Cannot POST "+r.RequestURI+" of services: no "+strings.TrimPrefix(r.URL.Path, "/services/T1/"), http.StatusNotFound)
	})
	n.To = echo + "/services/T1/abcdefghijklmnop?key=x"
	err := post(t.Context(), n, one(kindFiring))
	require.EqualError(t, err, "it answered 404 Not Found: Cannot POST (sensitive) of services: no (sensitive)", "a part of the address may be a secret")
	endless, _ := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(bytes.Repeat([]byte("x"), 1<<16)); err != nil {
				return
			}
		}
	})
	n.To = endless
	require.NoError(t, post(t.Context(), n, one(kindFiring)), "200 with an endless body is success")
	n.To = "http://192.0.2.1:1/canary\x00"
	require.NotContains(t, post(t.Context(), n, one(kindFiring)).Error(), "canary")
	silent, _ := receiver(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	n.To = silent
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, post(ctx, n, one(kindFiring)), context.DeadlineExceeded)
	require.ErrorContains(t, post(t.Context(), &model.Notify{Missing: []string{"secret.passwords.ops"}}, one(kindFiring)), "secret.passwords.ops is not known here")
}

// A certificate must be trusted: by the system, or by the one of the site.
func TestCertificateOfAReceiver(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(ok))
	defer s.Close()
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	n := &model.Notify{Type: model.NotifyWebhook, To: s.URL}
	var unknown *tls.CertificateVerificationError
	require.ErrorAs(t, post(t.Context(), n, one(kindFiring)), &unknown)
	n.CAPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	require.NoError(t, post(t.Context(), n, one(kindFiring)))
}

// mailbox is a mail server.
type mailbox struct {
	net.Listener
	cert     tls.Certificate
	implicit bool   // TLS from the start
	starts   bool   // it offers STARTTLS
	reject   string // a verb, or "." for a letter
	answer   string // to that; 550 no unless set
	talk     string // sent without an end
	letters  chan string
}

func (b *mailbox) serve() {
	for {
		conn, err := b.Accept()
		if err != nil {
			return
		}
		go b.session(conn)
	}
}

func (b *mailbox) session(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	config := &tls.Config{Certificates: []tls.Certificate{b.cert}, MinVersion: tls.VersionTLS12}
	secure := b.implicit
	if b.implicit {
		conn = tls.Server(conn, config)
	}
	r := bufio.NewReader(conn)
	say := func(text string) { _, _ = io.WriteString(conn, text+"\r\n") }
	say("220 mail.example.org ESMTP")
	var log strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		for b.talk != "" {
			if _, err := io.WriteString(conn, b.talk); err != nil {
				return
			}
		}
		fmt.Fprintf(&log, "%t %s", secure, line)
		switch verb := strings.ToUpper(strings.Fields(line)[0]); {
		case b.reject != "" && strings.HasPrefix(line, b.reject):
			say(cmp.Or(b.answer, "550 no"))
		case verb == "EHLO" && b.starts && !secure:
			say("250-mail.example.org\r\n250 STARTTLS")
		case verb == "EHLO":
			say("250-mail.example.org\r\n250 AUTH PLAIN")
		case verb == "STARTTLS":
			say("220 go")
			conn = tls.Server(conn, config)
			r, secure = bufio.NewReader(conn), true
		case verb == "AUTH":
			say("235 welcome")
		case verb == "DATA":
			say("354 go")
			for {
				line, err := r.ReadString('\n')
				if err != nil {
					return
				}
				if line == ".\r\n" {
					break
				}
				log.WriteString(line)
			}
			if b.reject == "." {
				say(b.answer)
				continue
			}
			say("250 taken")
			b.letters <- log.String()
		case verb == "QUIT":
			say("221 bye")
			return
		default:
			say("250 ok")
		}
	}
}

func mailServer(t *testing.T, b *mailbox) (n *model.Notify) {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS() // for its certificate
	defer s.Close()
	b.cert, b.letters = s.TLS.Certificates[0], make(chan string, 10)
	var err error
	b.Listener, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var group sync.WaitGroup
	group.Go(b.serve)
	t.Cleanup(func() { _ = b.Close(); group.Wait() })
	scheme := "smtp://"
	if b.implicit {
		scheme = "smtps://"
	}
	return &model.Notify{
		Type: model.NotifySMTP, Server: scheme + b.Addr().String(), From: "Homestak <homestak@example.org>", To: "ann@example.org, Bob <bob@example.org>", Secret: "pass",
		CAPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
	}
}

func TestMail(t *testing.T) {
	for name, b := range map[string]*mailbox{"STARTTLS": {starts: true}, "TLS": {implicit: true}} {
		t.Run(name, func(t *testing.T) {
			n := mailServer(t, b)
			m := one(kindFiring)
			m.Members[0].Text = "größer\n.\nRCPT TO:<eve@example.org>"
			require.NoError(t, post(t.Context(), n, m))
			session, letter, _ := strings.Cut(<-b.letters, "true DATA\r\n")
			plain := base64.StdEncoding.EncodeToString([]byte("\x00homestak@example.org\x00pass"))
			require.Contains(t, session, "true AUTH PLAIN "+plain+"\r\ntrue MAIL FROM:<homestak@example.org>\r\ntrue RCPT TO:<ann@example.org>\r\ntrue RCPT TO:<bob@example.org>\r\n")
			require.NotContains(t, session, "false AUTH")
			got, err := netmail.ReadMessage(strings.NewReader(letter))
			require.NoError(t, err)
			subject, err := new(mime.WordDecoder).DecodeHeader(got.Header.Get("Subject"))
			require.NoError(t, err)
			require.Equal(t, "vm.web on father: failed", subject)
			require.Equal(t, "<ID7@homestak-gitops.invalid>", got.Header.Get("Message-Id"), "kept when it is resent")
			require.Equal(t, "<INC@homestak-gitops.invalid>", got.Header.Get("References"))
			require.Equal(t, "auto-generated", got.Header.Get("Auto-Submitted"))
			body, err := io.ReadAll(quotedprintable.NewReader(got.Body))
			require.NoError(t, err)
			require.Contains(t, string(body), "größer")
		})
	}
}

func TestFaultsOfMailServers(t *testing.T) {
	for name, c := range map[string]struct {
		box    mailbox
		change func(*model.Notify)
		want   string
	}{
		"wrong certificate": {mailbox{starts: true}, func(n *model.Notify) { n.CAPEM = nil }, "certificate"},
		"rejected":          {mailbox{starts: true, reject: "RCPT"}, nil, "550 \"no\""},
		"a bad letter":      {mailbox{starts: true, reject: ".", answer: "554 spam"}, nil, "554"},
		"a full disk":       {mailbox{starts: true, reject: ".", answer: "452 no room"}, nil, "452"},
		"wrong password":    {mailbox{implicit: true, reject: "AUTH"}, nil, "log in: 550 \"no\""},
		"endless":           {mailbox{talk: "250-x\r\n"}, nil, "the mail server sends too much data"},
	} {
		t.Run(name, func(t *testing.T) {
			n := mailServer(t, &c.box)
			if c.change != nil {
				c.change(n)
			}
			err := post(t.Context(), n, one(kindFiring))
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "pass")
			f, final := errors.AsType[*failure](err)
			require.Equal(t, c.box.reject == "." && c.want == "554", final && f.final, "only what is wrong with this letter is final")
		})
	}
	n := mailServer(t, &mailbox{})
	n.Server = strings.Replace(n.Server, "127.0.0.1", "localhost", 1)
	require.NoError(t, post(t.Context(), n, one(kindFiring)), "to this machine itself it may be without TLS")
	require.False(t, model.OnThisMachine("mail.example.org") || model.OnThisMachine("192.0.2.1"))
}

// running runs notifiers in simulated time, against a receiver.
func running(t *testing.T, rule model.Notify, receive func(ctx context.Context, m message) error, during func(t *testing.T, n *Notifiers, set func(func(*Snapshot)))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var mutex sync.Mutex
		rule.Name, rule.After, rule.Flap = "ops", max(rule.After, 1), max(rule.Flap, time.Minute)
		s := seenOf(0, map[string]*model.Notify{"ops": &rule}, nil)
		observe := func() Snapshot {
			mutex.Lock()
			defer mutex.Unlock()
			return s
		}
		n, err := Open(Options{File: filepath.Join(t.TempDir(), "notify.json"), Log: slog.New(slog.DiscardHandler), Observe: observe})
		require.NoError(t, err)
		n.send = func(ctx context.Context, _ *model.Notify, m message) error {
			observe() // after what the test changed
			return receive(ctx, m)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { n.Run(ctx) })
		during(t, n, func(change func(*Snapshot)) {
			mutex.Lock()
			change(&s)
			mutex.Unlock()
			n.Wake()
		})
		cancel()
		group.Wait()
	})
}

func breaks(names ...string) func(*Snapshot) {
	return func(s *Snapshot) {
		failing := map[string]bool{}
		for _, name := range names {
			failing[name] = true
		}
		rules, ended := s.Notifiers, s.Status.Last.Ended
		*s = seenOf(0, rules, failing)
		s.Status.Last.Ended = ended.Add(time.Second)
	}
}

// A receiver that was down gets all messages in order. Retries slow down, and status shows the error.
func TestAReceiverThatIsDown(t *testing.T) {
	var tries []string
	down := true
	running(t, model.Notify{Type: model.NotifyWebhook}, func(_ context.Context, m message) error {
		tries = append(tries, string(m.Kind))
		if down {
			return &failure{err: errors.New("it answered 503"), after: time.Minute}
		}
		return nil
	}, func(t *testing.T, n *Notifiers, set func(func(*Snapshot))) {
		set(breaks("a"))
		time.Sleep(time.Minute)
		set(breaks())
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Len(t, tries, 9, "after 60, 60, 60, 80, 160 … seconds: not before the receiver wants it")
		st := n.Status()[0]
		require.Equal(t, "it answered 503", st.Error)
		require.Equal(t, []int{0, 2}, []int{st.Open, st.Queued})
		require.NotNil(t, st.Failing)
		set(func(*Snapshot) { down, tries = false, nil })
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, []string{"firing", "resolved"}, tries)
		st = n.Status()[0]
		require.Empty(t, st.Error)
		require.Zero(t, st.Queued)
		require.NotNil(t, st.Sent)
	})
}

// A message with a final error is dropped, and counted.
func TestAMessageWithAFinalError(t *testing.T) {
	times := 0
	running(t, model.Notify{Type: model.NotifyWebhook}, func(context.Context, message) error {
		times++
		return &failure{err: errors.New("it answered 400" + strings.Repeat(" no", 1000)), final: true}
	}, func(t *testing.T, n *Notifiers, set func(func(*Snapshot))) {
		set(breaks("a"))
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 1, times)
		require.Equal(t, 1, n.Status()[0].Dropped)
		require.Less(t, len(n.Status()[0].Error), 2*mostIncidentText)
	})
}

// A slow receiver delays nothing: Wake returns at once, and what happens meanwhile is sent later.
func TestASlowReceiver(t *testing.T) {
	var got []string
	running(t, model.Notify{Type: model.NotifyWebhook}, func(ctx context.Context, m message) error {
		select {
		case <-time.After(25 * time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for _, i := range m.Members {
			got = append(got, i.Address)
		}
		return nil
	}, func(t *testing.T, _ *Notifiers, set func(func(*Snapshot))) {
		began := time.Now()
		for i := range 1000 {
			set(breaks(fmt.Sprintf("n%d", i%2)))
		}
		require.Equal(t, began, time.Now())
		set(breaks("a"))
		time.Sleep(31 * time.Second) // it is being sent
		set(breaks("a", "b"))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"vm.a", "vm.b"}, got)
	})
}

// Alertmanager forgets an alert that is not announced again: open ones are, each minute, until they end.
func TestOpenIncidentsAreAnnouncedToAlertmanager(t *testing.T) {
	var ends []time.Duration
	var kinds []kind
	running(t, model.Notify{Type: model.NotifyAlertmanager}, func(_ context.Context, m message) error {
		kinds = append(kinds, m.Kind)
		ends = append(ends, time.Until(alerts(m, time.Now())[0].EndsAt))
		require.Len(t, m.Members, 1)
		return nil
	}, func(t *testing.T, _ *Notifiers, set func(func(*Snapshot))) {
		set(breaks("a"))
		time.Sleep(10*time.Minute + 30*time.Second)
		synctest.Wait()
		require.InDelta(t, 10, len(kinds), 2)
		for _, e := range ends {
			require.Greater(t, e, 2*time.Minute, "longer than until the next one")
		}
		set(breaks())
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, kindResolved, kinds[len(kinds)-1])
		seen := len(kinds)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Len(t, kinds, seen)
	})
}

// The statuses of a commit: pending, then success or failure, each once.
func TestStatusesOfACommit(t *testing.T) {
	var set []string
	rule := model.Notify{Type: model.NotifyGitea, To: "https://git.example.org/o/r", Secret: "x"}
	running(t, rule, func(_ context.Context, m message) error {
		set = append(set, fmt.Sprintf("%.3s %s %s: %s", m.Commit, m.Context, m.State, m.Text))
		return nil
	}, func(t *testing.T, _ *Notifiers, change func(func(*Snapshot))) {
		step := func(do func(*Snapshot)) []string {
			set = nil
			change(do)
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			return set
		}
		ref := func(id string) *agent.CommitStatus { return &agent.CommitStatus{ID: id} }
		got := step(func(s *Snapshot) {
			s.Status.InForce = ref(head)
			s.Status.Last = &agent.PassStatus{Commit: other, Outcome: engine.Done}
			s.Tree.Nodes = []wire.ReportNode{{Name: "inner", Type: "pve", Parent: "father", Phase: wire.PhaseRun, Commit: other, Ready: true}}
		})
		require.Equal(t, []string{"012 homestak/father pending: converging", "012 homestak/inner pending: has not applied it yet", "012 homestak pending: applied on 0 of 2 hosts"}, got)
		got = step(func(s *Snapshot) {
			s.Status.Converged, s.Status.Last = ref(head), &agent.PassStatus{Commit: head, Outcome: engine.Done}
		})
		require.Equal(t, []string{"012 homestak/father success: applied"}, got)
		require.Empty(t, step(func(*Snapshot) {}))
		got = step(func(s *Snapshot) {
			s.Tree.Nodes = []wire.ReportNode{{Name: "inner", Type: "pve", Parent: "father", Phase: wire.PhaseRun, Commit: head, Error: "no storage\nmore"}}
		})
		require.Equal(t, []string{"012 homestak/inner failure: no storage", "012 homestak failure: inner: no storage"}, got)
		got = step(func(s *Snapshot) {
			s.Tree.Nodes = []wire.ReportNode{{Name: "inner", Type: "pve", Parent: "father", Phase: wire.PhaseRun, Commit: head, Ready: true}}
		})
		require.Equal(t, []string{"012 homestak/inner success: applied", "012 homestak success: applied on 2 of 2 hosts"}, got)
		got = step(func(s *Snapshot) {
			s.Tree.Nodes = []wire.ReportNode{{Name: "inner", Type: "pve", Parent: "father", Phase: wire.PhaseRun, Commit: head, Error: "later"}}
			s.Status.Last = &agent.PassStatus{Commit: head, Outcome: engine.Failed}
		})
		require.Empty(t, got, "later failures do not change it")
		got = step(func(s *Snapshot) {
			s.Status.Refused = &agent.Refusal{Commit: other}
		})
		require.Equal(t, []string{"fed homestak/father failure: refused: its findings are in status", "fed homestak failure: refused: its findings are in status"}, got)
		got = step(func(s *Snapshot) {
			s.Status.Refused, s.Status.InForce = nil, ref(other)
			s.Tree.Nodes = nil
			for i := range 30 {
				s.Tree.Nodes = append(s.Tree.Nodes, wire.ReportNode{Name: fmt.Sprintf("h%d", i), Type: "pve", Parent: "father", Phase: wire.PhaseRun})
			}
		})
		require.Equal(t, []string{"fed homestak pending: applied on 0 of 31 hosts"}, got, "many hosts have one status together")
	})
}

// A commit that the forge lost, since its branch was rewritten, does not delay the statuses of the next one.
func TestACommitThatTheForgeLost(t *testing.T) {
	var set []string
	rule := model.Notify{Type: model.NotifyGitea, To: "https://git.example.org/o/r", Secret: "x"}
	running(t, rule, func(_ context.Context, m message) error {
		if m.Commit == other {
			return &failure{err: errors.New("it answered 500")}
		}
		set = append(set, fmt.Sprintf("%.3s %s %s", m.Commit, m.Context, m.State))
		return nil
	}, func(t *testing.T, n *Notifiers, change func(func(*Snapshot))) {
		for _, id := range []string{other, head} {
			change(func(s *Snapshot) {
				s.Status.InForce = &agent.CommitStatus{ID: id}
				s.Status.Last = &agent.PassStatus{Commit: id, Outcome: engine.Failed}
			})
			time.Sleep(time.Minute)
			change(func(s *Snapshot) {
				s.Status.Converged, s.Status.Last = s.Status.InForce, &agent.PassStatus{Commit: id, Outcome: engine.Done}
			})
			time.Sleep(time.Hour)
		}
		synctest.Wait()
		require.Contains(t, set, "012 homestak/father success")
		require.Contains(t, set, "012 homestak success")
		require.Equal(t, 2, n.Status()[0].Queued, "each context of the other one once")
	})
}

// A test reports an error at once.
func TestTest(t *testing.T) {
	var got []message
	fail := false
	running(t, model.Notify{Type: model.NotifyWebhook}, func(_ context.Context, m message) error {
		if fail {
			return errors.New("no route to canary")
		}
		got = append(got, m)
		return nil
	}, func(t *testing.T, n *Notifiers, set func(func(*Snapshot))) {
		require.NoError(t, n.Test(t.Context(), "ops"))
		require.Equal(t, kindTest, got[0].Kind)
		require.Equal(t, "This is a test of notify ops.", got[0].Text)
		err := n.Test(t.Context(), "opss")
		require.ErrorIs(t, err, errUnknown)
		require.ErrorContains(t, err, `did you mean "ops"`)
		fail = true
		set(func(s *Snapshot) {
			s.Mask = func(text string) string { return strings.ReplaceAll(text, "canary", "(sensitive)") }
		})
		require.EqualError(t, n.Test(t.Context(), "ops"), "send a test by notify ops: no route to (sensitive)")
	})
}
