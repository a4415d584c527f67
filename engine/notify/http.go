package notify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// failure is why a message was not delivered.
type failure struct {
	err   error
	final bool          // a retry would fail, too
	after time.Duration // the receiver asks to wait that long
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// call is a request that sends a message.
type call struct {
	method, url string
	header      map[string]string
	body        any // as JSON
	token       string
}

// send sends a message, by a transport in place of the network if it is not nil. The error is a *failure if the receiver answered.
func send(ctx context.Context, web http.RoundTripper, n *model.Notify, m message) error {
	if len(n.Missing) > 0 {
		return errors.New("the value of " + strings.Join(n.Missing, ", ") + " is not known here")
	}
	if n.Type == model.NotifySMTP {
		return mail(ctx, n, m)
	}
	c, err := callOf(n, m)
	if err != nil {
		return err
	}
	body, err := json.Marshal(c.body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, c.method, c.url, bytes.NewReader(body))
	if err != nil {
		return errors.New("the address is not a URL") // the error repeats it, and it may be a secret
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "homestak-gitops")
	switch user, password, pair := strings.Cut(c.token, ":"); {
	case pair:
		req.SetBasicAuth(user, password)
	case c.token != "":
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	for name, value := range c.header {
		req.Header.Set(name, value)
	}
	if n.Type == model.NotifyWebhook {
		sign(req.Header, n.Secret, body, time.Now())
	}
	if web == nil {
		config, err := trust(n)
		if err != nil {
			return err
		}
		web = &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}
	}
	client := &http.Client{
		Transport:     web,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the secret is for this server
	}
	answer, err := client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // the rest repeats the address
		}
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode/100 == 2 {
		return nil
	}
	return refusal(n, answer)
}

// trust returns the TLS settings for a receiver.
func trust(n *model.Notify) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if n.CAPEM != nil {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(n.CAPEM) {
			return nil, errors.New("the certificate in ca cannot be read")
		}
	}
	return config, nil
}

// mostAnswer is how much of an answer is read, in bytes: it may be endless.
const mostAnswer = 2 << 10

// refusal is the error of an answer with another status than success.
func refusal(n *model.Notify, answer *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(answer.Body, mostAnswer)) // an incomplete answer is enough
	if n.Type == model.NotifyGitLab && answer.StatusCode == http.StatusBadRequest && bytes.Contains(text, []byte("Cannot transition status")) {
		return nil // it has that state
	}
	f := &failure{err: fmt.Errorf("it answered %s: %s", answer.Status, redact(n.To, diag.Line(string(text))))}
	switch answer.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		f.final = true
	}
	f.after = wire.RetryAfter(answer.Header, time.Now())
	var limit struct {
		After int `json:"retry_after_ms"`
	}
	if f.after == 0 && n.Type == model.NotifyMatrix && json.Unmarshal(text, &limit) == nil {
		f.after = time.Duration(limit.After) * time.Millisecond
	}
	return f
}

// redact replaces the parts of an address in a text. Receivers repeat the address of a request, which may be a secret, and the
// mask of the site replaces only the whole of it.
func redact(address, text string) string {
	u, err := url.Parse(address)
	if err != nil {
		return text
	}
	const (
		leastWhole = 6
		leastPart  = 16 // what is shorter is a word, such as "services"
	)
	for _, whole := range []string{u.RequestURI(), u.EscapedPath(), u.Path, u.RawQuery} {
		if len(whole) >= leastWhole {
			text = strings.ReplaceAll(text, whole, model.Sensitive)
		}
	}
	for _, part := range strings.FieldsFunc(u.Path+"/"+u.RawQuery, func(r rune) bool { return strings.ContainsRune("/&=", r) }) {
		if len(part) >= leastPart {
			text = strings.ReplaceAll(text, part, model.Sensitive)
		}
	}
	return text
}

// sign adds the signature that the server of an agent verifies for generic push notifications; see docs/server.md.
func sign(h http.Header, secret string, body []byte, now time.Time) {
	if secret == "" {
		return
	}
	at := strconv.FormatInt(now.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(at + "."))
	mac.Write(body)
	h.Set("X-Homestak-Timestamp", at)
	h.Set("X-Homestak-Signature", hex.EncodeToString(mac.Sum(nil)))
}

// callOf is the request that sends a message.
func callOf(n *model.Notify, m message) (call, error) {
	if n.OfCommits() {
		return statusCall(n, m)
	}
	title, text := words(m)
	to := strings.TrimRight(n.To, "/")
	switch n.Type {
	case model.NotifyWebhook:
		return call{method: http.MethodPost, url: n.To, body: documentOf(n, m, title, text), header: map[string]string{"Idempotency-Key": m.ID}}, nil
	case model.NotifyNtfy:
		server, topic := to, ""
		if i := strings.LastIndexByte(to, '/'); i >= 0 {
			server, topic = to[:i], to[i+1:]
		}
		tag, priority := map[string]string{"success": "white_check_mark", "info": "information_source", "warning": "warning", "failure": "rotating_light"}[severity(m)], 3
		if severity(m) == "failure" {
			priority = 4
		}
		return call{method: http.MethodPost, url: server, token: n.Secret, body: map[string]any{"topic": topic, "title": title, "message": text, "priority": priority, "tags": []string{tag}}}, nil
	case model.NotifySlack:
		return call{method: http.MethodPost, url: n.To, body: map[string]string{"text": slackText(title, text)}}, nil
	case model.NotifyMatrix:
		at := strings.TrimRight(n.Server, "/") + "/_matrix/client/v3/rooms/" + url.PathEscape(n.To) + "/send/m.room.message/" + url.PathEscape(m.ID)
		return call{method: http.MethodPut, url: at, token: n.Secret, body: map[string]any{
			"msgtype": "m.text", "body": strings.TrimSpace(title + "\n" + text), "m.mentions": struct{}{}, // "@room" in a text mentions the room otherwise
		}}, nil
	case model.NotifyAlertmanager:
		return call{method: http.MethodPost, url: to + "/api/v2/alerts", token: n.Secret, body: alerts(m, time.Now())}, nil
	default:
		return call{}, fmt.Errorf("type %s is not known", n.Type)
	}
}

// documentOf is the body of a webhook.
func documentOf(n *model.Notify, m message, title, text string) document {
	d := document{Version: 1, ID: m.ID, Notify: n.Name, State: m.Kind, Incident: m.Incident, At: m.At, Since: m.Since, Flaps: m.Flaps, Incidents: []documented{}, More: m.More, Title: title, Body: text, Type: severity(m)}
	for _, i := range m.Members {
		sum := sha256.Sum256([]byte(i.key()))
		d.Incidents = append(d.Incidents, documented{hex.EncodeToString(sum[:8]), i.Condition, i.Host, i.Address, i.Text})
	}
	return d
}

// slackText writes a text so that nothing in it is a link, a mention or markup.
func slackText(title, text string) string {
	plain := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'", "@", "(at)", "*", "∗").Replace
	if text == "" {
		return plain(title)
	}
	return plain(title) + "\n```\n" + plain(text) + "\n```"
}

// lastsFor is the time after which Alertmanager resolves an alert that is not announced again.
const lastsFor = 4 * freshFor

// alert is an alert of POST /api/v2/alerts of Alertmanager. Its labels identify it.
type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt,omitzero"`
	EndsAt      time.Time         `json:"endsAt"`
}

// alerts are the alerts of a message that is sent now.
func alerts(m message, now time.Time) []alert {
	ends := now.Add(lastsFor)
	if m.Kind == kindResolved {
		ends = m.At
	}
	list := m.Members
	if m.Kind == kindTest {
		list = []incident{{Condition: "test", Host: m.Agent, Address: hostAddress(m.Agent), Text: m.Text}}
		ends = now.Add(time.Minute)
	}
	out := []alert{}
	for _, i := range list {
		out = append(out, alert{
			Labels:      map[string]string{"alertname": "Homestak" + strings.ToUpper(string(i.Condition[:1])) + string(i.Condition[1:]), "condition": string(i.Condition), "host": i.Host, "address": i.Address},
			Annotations: map[string]string{"summary": place(i), "description": i.Text},
			StartsAt:    cmp.Or(i.since, m.Since).UTC(), EndsAt: ends.UTC(),
		})
	}
	return out
}
