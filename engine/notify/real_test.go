package notify

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	netmail "net/mail"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
)

// realServer is a third-party server on this machine.
type realServer struct {
	t   *testing.T
	dir string // its files
	at  string // host and port
	key string // Authorization of what ask sends
}

// begin starts a server in a folder of its own, and waits until it accepts connections. What it prints is shown if the test fails.
// In its command and files, {dir}, {port} and {built} stand for that folder, its port, and the folder of what make notifiers builds.
func begin(t *testing.T, files map[string]string, prepare [][]string, command ...string) *realServer {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	s := &realServer{t: t, dir: t.TempDir(), at: free.Addr().String()}
	fill := strings.NewReplacer("{dir}", s.dir, "{port}", s.at[strings.LastIndexByte(s.at, ':')+1:], "{built}", os.Getenv("HOMESTAK_NOTIFIERS")).Replace
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(s.dir, name), []byte(fill(text)), 0o600))
	}
	run := func(words []string) *exec.Cmd {
		for i, w := range words {
			words[i] = fill(w)
		}
		c := exec.CommandContext(t.Context(), words[0], words[1:]...)
		c.Dir = s.dir
		c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
		c.WaitDelay = 10 * time.Second
		return c
	}
	for _, words := range prepare {
		said, err := run(words).CombinedOutput()
		require.NoError(t, err, "%s", said)
	}
	log, err := os.Create(filepath.Join(s.dir, "log"))
	require.NoError(t, err)
	c := run(command)
	c.Stdout, c.Stderr = log, log
	require.NoError(t, c.Start())
	t.Cleanup(func() { // after the context of the test has ended
		_ = c.Wait()
		if said, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("%s", said)
		}
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", s.at)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 2*time.Minute, 50*time.Millisecond)
	return s
}

// ask sends a request, and reads its answer.
func (s *realServer) ask(method, path string, body, into any) {
	s.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(s.t, err)
	r, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.at+path, bytes.NewReader(text))
	require.NoError(s.t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", s.key)
	res, err := http.DefaultClient.Do(r)
	require.NoError(s.t, err)
	defer func() { _ = res.Body.Close() }()
	text, err = io.ReadAll(res.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, 2, res.StatusCode/100, "%s %s: %s %s", method, path, res.Status, text)
	if into != nil {
		require.NoError(s.t, json.Unmarshal(text, into), "%s", text)
	}
}

// TestRealReceivers sends messages to the servers that they are for, and reads there what came: make notifiers installs and builds these.
func TestRealReceivers(t *testing.T) {
	if os.Getenv("HOMESTAK_NOTIFIERS") == "" {
		t.Skip("make notifiers runs it")
	}
	for name, with := range map[string]func(t *testing.T){"Alertmanager": withAlertmanager, "aiosmtpd": withSMTP, "Gitea": withGitea, "Dendrite": withDendrite} {
		t.Run(name, with)
	}
}

func withAlertmanager(t *testing.T) {
	s := begin(t, map[string]string{"config.yml": "route: { receiver: none }\nreceivers: [ { name: none } ]\n"}, nil,
		"prometheus-alertmanager", "--config.file=config.yml", "--storage.path=data", "--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=")
	n := &model.Notify{Type: model.NotifyAlertmanager, To: "http://" + s.at}
	shown := func() (list []map[string]any) {
		s.ask(http.MethodGet, "/api/v2/alerts", nil, &list)
		return list
	}
	for range 2 { // it is announced again as long as it lasts
		require.NoError(t, post(t.Context(), n, one(kindFiring)))
		list := shown()
		require.Len(t, list, 1)
		require.Equal(t, map[string]any{"alertname": "HomestakFailed", "condition": "failed", "host": "father", "address": "vm.web"}, list[0]["labels"])
		require.Equal(t, map[string]any{"summary": "vm.web on father", "description": "<!channel> `x` & more"}, list[0]["annotations"])
	}
	require.NoError(t, post(t.Context(), n, one(kindResolved)))
	require.Empty(t, shown())
	require.NoError(t, post(t.Context(), n, message{Kind: kindTest, Agent: "father", At: time.Now(), Since: time.Now(), Text: "a test"}))
	require.Len(t, shown(), 1)
}

func withSMTP(t *testing.T) {
	https := httptest.NewUnstartedServer(nil)
	https.StartTLS() // for its certificate
	https.Close()
	pair := https.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	s := begin(t, map[string]string{"cert.pem": string(certificate), "key.pem": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))}, nil,
		"aiosmtpd", "-n", "-l", "127.0.0.1:{port}", "--tlscert", "cert.pem", "--tlskey", "key.pem", "-c", "aiosmtpd.handlers.Mailbox", "{dir}/mail")
	n := &model.Notify{Type: model.NotifySMTP, Server: "smtp://" + s.at, From: "Homestak <homestak@example.org>", To: "ann@example.org, Bob <bob@example.org>"}
	require.ErrorContains(t, post(t.Context(), n, one(kindFiring)), "certificate")
	n.CAPEM = certificate // so it requires STARTTLS
	require.NoError(t, post(t.Context(), n, one(kindFiring)))
	letters, err := filepath.Glob(filepath.Join(s.dir, "mail/new/*"))
	require.NoError(t, err)
	require.Len(t, letters, 1)
	text, err := os.ReadFile(letters[0])
	require.NoError(t, err)
	letter, err := netmail.ReadMessage(bytes.NewReader(text))
	require.NoError(t, err)
	require.Equal(t, "vm.web on father: failed", letter.Header.Get("Subject"))
	require.Equal(t, "ann@example.org, bob@example.org", letter.Header.Get("X-RcptTo"))
	require.Equal(t, "<ID7@homestak-gitops.invalid>", letter.Header.Get("Message-ID"))
}

func withGitea(t *testing.T) {
	s := begin(t, map[string]string{"app.ini": `
I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
WORK_PATH = {dir}
RUN_USER = ` + os.Getenv("USER") + `
[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = {port}
STATIC_ROOT_PATH = {built}/gitea-files
DISABLE_SSH = true
OFFLINE_MODE = true
[database]
DB_TYPE = sqlite3
[security]
INSTALL_LOCK = true
SECRET_KEY = secret
`}, [][]string{
		{"{built}/gitea", "-c", "app.ini", "migrate"},
		{"{built}/gitea", "-c", "app.ini", "admin", "user", "create", "--admin", "--username", "ann", "--password", "the password", "--email", "ann@example.org", "--must-change-password=false"},
		{"sh", "-c", "{built}/gitea -c app.ini admin user generate-access-token --username ann --scopes write:repository --raw >token"},
	}, "{built}/gitea", "-c", "app.ini", "web")
	token, err := os.ReadFile(filepath.Join(s.dir, "token"))
	require.NoError(t, err)
	lines := strings.Fields(string(token))
	r := &http.Request{Header: http.Header{}}
	r.SetBasicAuth("ann", "the password")
	s.key = r.Header.Get("Authorization")
	s.ask(http.MethodPost, "/api/v1/user/repos", map[string]any{"name": "site", "auto_init": true, "default_branch": "main"}, nil)
	var commits []struct{ SHA string }
	s.ask(http.MethodGet, "/api/v1/repos/ann/site/commits", nil, &commits)
	require.Len(t, commits, 1)

	// The token may do no more than the page on notifications says.
	n := &model.Notify{Type: model.NotifyGitea, To: "http://" + s.at + "/ann/site", Secret: lines[len(lines)-1]}
	status := message{Kind: kindStatus, Commit: commits[0].SHA}
	for _, step := range []struct{ context, state, combined string }{
		{"homestak/father", statePending, "pending"}, {"homestak", statePending, "pending"}, {"homestak/father", stateSuccess, "pending"}, {"homestak", stateSuccess, "success"}, {"homestak/father", stateFailure, "failure"},
	} {
		status.Context, status.State, status.Text = step.context, step.state, step.context+" is "+step.state+" "+strings.Repeat("é", 100)
		require.NoError(t, post(t.Context(), n, status))
		var shown struct {
			State    string
			Statuses []struct{ Context, Status, Description string }
		}
		s.ask(http.MethodGet, "/api/v1/repos/ann/site/commits/"+commits[0].SHA+"/status", nil, &shown)
		require.Equal(t, step.combined, shown.State, "%v", step)
		found := false
		for _, x := range shown.Statuses {
			if x.Context == step.context {
				found = true
				require.Equal(t, step.state, x.Status)
				require.Regexp(t, "^"+step.context+" is "+step.state+" é+…$", x.Description)
			}
		}
		require.True(t, found, "%v", step)
	}
	status.Commit = strings.Repeat("0", 40)
	require.ErrorContains(t, post(t.Context(), n, status), "it answered 500", "a commit that it does not have looks like a fault that passes: so those of the newest commit go first")
	n.Secret = "wrong"
	require.ErrorContains(t, post(t.Context(), n, status), "it answered 401")
}

func withDendrite(t *testing.T) {
	s := begin(t, nil, [][]string{
		{"{built}/generate-keys", "-private-key", "matrix_key.pem"},
		{"sh", "-c", "{built}/generate-config -ci -server localhost -dir {dir} >dendrite.yaml"},
	}, "{built}/dendrite", "-config", "dendrite.yaml", "-http-bind-address", "127.0.0.1:{port}", "-really-enable-open-registration")
	var account struct {
		Token string `json:"access_token"`
	}
	s.ask(http.MethodPost, "/_matrix/client/v3/register", map[string]any{"username": "ann", "password": "the password", "auth": map[string]string{"type": "m.login.dummy"}}, &account)
	s.key = "Bearer " + account.Token
	var room struct {
		ID string `json:"room_id"`
	}
	s.ask(http.MethodPost, "/_matrix/client/v3/createRoom", map[string]string{"name": "alerts"}, &room)

	n := &model.Notify{Type: model.NotifyMatrix, Server: "http://" + s.at, To: room.ID, Secret: account.Token}
	m := one(kindFiring)
	for range 2 { // as after a crash: the server drops the second one
		require.NoError(t, post(t.Context(), n, m))
	}
	m.ID, m.Kind = "ID8", kindResolved
	require.NoError(t, post(t.Context(), n, m))
	var bodies []string
	for since := ""; len(bodies) < 2; {
		var got struct {
			Next  string `json:"next_batch"`
			Rooms struct {
				Join map[string]struct {
					Timeline struct {
						Events []struct {
							Type    string
							Content struct{ Body string }
						}
					}
				}
			}
		}
		s.ask(http.MethodGet, "/_matrix/client/v3/sync?timeout=10000&since="+since, nil, &got) // waits for news
		since = got.Next
		for _, e := range got.Rooms.Join[room.ID].Timeline.Events {
			if e.Type == "m.room.message" {
				bodies = append(bodies, e.Content.Body)
			}
		}
	}
	title, text := words(m)
	require.Equal(t, []string{"vm.web on father: failed\nvm.web on father: <!channel> `x` & more", strings.TrimSpace(title + "\n" + text)}, bodies)
	n.Secret = "wrong"
	require.ErrorContains(t, post(t.Context(), n, m), "it answered 401")
}
