package sourcetest

import (
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// HTTPServer is a real git server behind TLS: git http-backend. It ends with the test.
type HTTPServer struct {
	URL    string // of the repository
	CAFile string // the certificate that it is signed with

	server   *httptest.Server
	requests atomic.Int64

	mu    sync.Mutex // the server's goroutines read what a test sets
	user  string
	token string
	fault Fault
	seen  []string
	conn  func()
}

// Fault is put before the server: it may answer itself, or call next.
type Fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

// HTTPS serves the repository. It skips the test if git is not installed.
func (r *Repo) HTTPS() *HTTPServer {
	r.t.Helper()
	backend := backend(r.t)
	s := &HTTPServer{}
	git := &cgi.Handler{Path: backend, Stderr: io.Discard, Env: append(GitEnv(), "GIT_PROJECT_ROOT="+filepath.Dir(r.Dir),
		"GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")}
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.serve(w, req, git) }))
	s.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // clients that hang up are what tests are about
	s.server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if state == http.StateNew && s.conn != nil {
			s.conn()
		}
	}
	s.server.StartTLS()
	r.t.Cleanup(s.server.Close)
	s.URL = s.server.URL + "/" + filepath.Base(r.Dir)
	s.CAFile = filepath.Join(r.t.TempDir(), "ca.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
	r.check(os.WriteFile(s.CAFile, cert, 0o644))
	return s
}

func backend(t testing.TB) string {
	t.Helper()
	out, err := Git(t.Context(), "", "--exec-path").Output()
	if err != nil {
		t.Skip("git is not installed, so nothing serves a repository by https:", err)
	}
	file := filepath.Join(strings.TrimSpace(string(out)), "git-http-backend")
	if _, err := os.Stat(file); err != nil {
		t.Skip("git has no http-backend here, so nothing serves a repository by https:", err)
	}
	return file
}

func (s *HTTPServer) serve(w http.ResponseWriter, r *http.Request, git http.Handler) {
	s.requests.Add(1)
	s.mu.Lock()
	user, token, fault := s.user, s.token, s.fault
	s.seen = append(s.seen, r.Method+" "+r.URL.RequestURI())
	s.mu.Unlock()
	if token != "" {
		u, p, _ := r.BasicAuth()
		if u != user || p != token {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
	}
	if fault != nil {
		fault(w, r, git)
		return
	}
	git.ServeHTTP(w, r)
}

// Requests counts the requests so far.
func (s *HTTPServer) Requests() int { return int(s.requests.Load()) }

// Seen lists the requests so far: method, path and query.
func (s *HTTPServer) Seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.seen...)
}

// SetLogin makes the server ask for a user name and token; "" admits every client.
func (s *HTTPServer) SetLogin(user, token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.user, s.token = user, token
}

// SetFault puts something before the server; nil takes it away.
func (s *HTTPServer) SetFault(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// CountConnections calls f for each connection from now on.
func (s *HTTPServer) CountConnections(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = f
}

// CloseConnections cuts all connections, those in use included.
func (s *HTTPServer) CloseConnections() { s.server.CloseClientConnections() }
