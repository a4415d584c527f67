package specserve

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

func opened(t *testing.T, text string) (p *Program, name string) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o700))
	p, err := OpenProgram(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p, name
}

// The sent program matches the checksum, whatever happens to the file.
func TestServe(t *testing.T) {
	p, name := opened(t, "one program")
	sum := sha256.Sum256([]byte("one program"))
	want := hex.EncodeToString(sum[:])
	require.Equal(t, map[string]string{runtime.GOOS + "-" + runtime.GOARCH: want}, p.Sums())
	next := name + ".next"
	require.NoError(t, os.WriteFile(next, []byte("another"), 0o700))
	require.NoError(t, os.Rename(next, name))

	get := func(method string, header ...string) *httptest.ResponseRecorder {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), method, "/agent/x", http.NoBody)
		if header != nil {
			r.Header.Set(header[0], header[1])
		}
		w := httptest.NewRecorder()
		require.NoError(t, p.Serve(w, r))
		return w
	}
	w := get(http.MethodGet)
	require.Equal(t, 200, w.Code)
	require.Equal(t, "one program", w.Body.String())
	require.Equal(t, `"`+want+`"`, w.Header().Get("ETag"))
	require.Equal(t, "11", w.Header().Get("Content-Length"))
	require.Empty(t, get(http.MethodHead).Body.String())
	require.Equal(t, 304, get(http.MethodGet, "If-None-Match", `"`+want+`"`).Code)
	part := get(http.MethodGet, "Range", "bytes=4-")
	require.Equal(t, 206, part.Code)
	require.Equal(t, "program", part.Body.String())
}

func TestOpenRefuses(t *testing.T) {
	_, err := OpenProgram(filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, err, "open the program to serve it")
	_, err = OpenProgram(t.TempDir())
	require.ErrorContains(t, err, "read the program to serve it")
}

// Clients that take nothing have the slots until they are cut off; the others have to come back.
func TestSlots(t *testing.T) {
	p, _ := opened(t, strings.Repeat("x", 32<<20))
	p.patient, p.quiet = time.Millisecond, time.Second
	answers := make(chan error, most+1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answers <- p.Serve(w, r) }))
	t.Cleanup(s.Close)
	get := func() io.Reader {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, http.NoBody)
		require.NoError(t, err)
		res, err := s.Client().Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = res.Body.Close() })
		return res.Body
	}
	var slow []io.Reader
	for range most {
		slow = append(slow, get())
	}
	get()
	require.ErrorIs(t, <-answers, errBusy)
	for range most {
		require.NoError(t, <-answers, "cut off")
	}
	_, err := io.ReadAll(slow[0])
	require.Error(t, err)
	body, err := io.ReadAll(get())
	require.NoError(t, err)
	require.Len(t, body, 32<<20)
}

func TestCounts(t *testing.T) {
	c := newCounts()
	c.add("/spec/{identity}", 200, "", time.Millisecond)
	c.add("/spec/{identity}", 200, "", 1500*time.Millisecond)
	c.add("/spec/{identity}", 401, "E301", 2*time.Minute)
	c.add("/health", 200, "", 0)
	text, err := NewRegistry(c.requests, c.refusals, c.took).Text()
	require.NoError(t, err)
	require.Equal(t, `# HELP homestak_serve_refusals_total Requests that were answered with an error, by its code.
# TYPE homestak_serve_refusals_total counter
homestak_serve_refusals_total{code="E301"} 1
# HELP homestak_serve_request_seconds How long requests took.
# TYPE homestak_serve_request_seconds histogram
homestak_serve_request_seconds_bucket{endpoint="/health",le="0.001"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="0.005"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="0.025"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="0.1"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="0.5"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="2.5"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="10"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="60"} 1
homestak_serve_request_seconds_bucket{endpoint="/health",le="+Inf"} 1
homestak_serve_request_seconds_sum{endpoint="/health"} 0
homestak_serve_request_seconds_count{endpoint="/health"} 1
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="0.001"} 1
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="0.005"} 1
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="0.025"} 1
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="0.1"} 1
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="0.5"} 1
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="2.5"} 2
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="10"} 2
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="60"} 2
homestak_serve_request_seconds_bucket{endpoint="/spec/{identity}",le="+Inf"} 3
homestak_serve_request_seconds_sum{endpoint="/spec/{identity}"} 121.501
homestak_serve_request_seconds_count{endpoint="/spec/{identity}"} 3
# HELP homestak_serve_requests_total Requests that were answered.
# TYPE homestak_serve_requests_total counter
homestak_serve_requests_total{endpoint="/health",status="200"} 1
homestak_serve_requests_total{endpoint="/spec/{identity}",status="200"} 2
homestak_serve_requests_total{endpoint="/spec/{identity}",status="401"} 1
`, string(text))
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func textLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// tinyCatalog has one node, own, and the token that it is asked for.
func tinyCatalog(t testing.TB) (c *Catalog, token string) {
	t.Helper()
	token = strings.Repeat("ab", 16)
	set, found := policy.Compile(t.Context(), policy.Options{})
	require.Empty(t, found)
	c, found = MakeCatalog(CatalogInput{Policies: set, Site: &model.Site{
		Postures:  map[string]*model.Posture{"prod": {Name: "prod", Auth: &model.Auth{Method: "node_token"}}},
		Specs:     map[string]*model.Spec{"base": {Name: "base", Access: &model.Access{Posture: "prod"}}},
		Manifests: map[string]*model.Manifest{"web": {Name: "web", Host: "father", Nodes: []*model.Node{{Name: "own", Mode: model.ModePull, Spec: "base"}}}},
		Secrets:   &model.Secrets{Values: map[string]map[string]string{"auth": {"node_tokens.own": token}}},
	}})
	require.Empty(t, found)
	return c, token
}

// A failure of the program is answered and logged, and the server continues.
func TestPanic(t *testing.T) {
	log := &strings.Builder{}
	s := New(Options{Log: textLog(log)})
	s.table = append(s.table, endpoint{method: http.MethodGet, path: "/broken", early: true, access: anyone, do: func(*request) error { panic("canary") }})
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/broken", http.NoBody))
	require.Equal(t, 500, w.Code)
	require.JSONEq(t, `{"error":{"code":"E500","message":"internal error","hint":"the log of the program says more"}}`, w.Body.String())
	require.Contains(t, log.String(), "a request ended in a panic")
}

// An answer that cannot be completed ends the connection: the client must not take it for all.
func TestCut(t *testing.T) {
	log := &strings.Builder{}
	s := New(Options{Log: textLog(log)})
	s.table = append(s.table, endpoint{method: http.MethodGet, path: "/cut", early: true, access: anyone, do: func(x *request) error {
		_, _ = recorder{x.w, x}.Write(make([]byte, 64<<10))
		return fmt.Errorf("%w: the disk is gone", serve.ErrCut)
	}})
	at := httptest.NewServer(s)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at.URL+"/cut", http.NoBody)
	require.NoError(t, err)
	got, err := at.Client().Do(r)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, got.Body)
	require.Error(t, err)
	require.NoError(t, got.Body.Close())
	at.Close()
	require.Contains(t, log.String(), "status=200 bytes=65536")
	require.Contains(t, log.String(), "the disk is gone")
}

// Any path is either that of an endpoint with the name of a node in it, or refused.
func FuzzPath(f *testing.F) {
	for _, path := range []string{"/health", "/spec/web-1", "/spec/", "/spec/../x", "/spec/%2e%2e", "/spec/a%00", "//spec/a", "/specs", "/spec/a/b", "/status", "/wait/own", "/config/own", "/report/own", "/reconcile/own", "/reconcile", "/hook/github", "/agent/../x", "/site.git/raw/../x", "/site.git/config", "*", ""} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		rows, name := match(endpoints(), path)
		for _, e := range rows {
			if want := strings.Replace(e.path, identity, name, 1); want != path && (e.under == "" || !strings.HasPrefix(path, e.under)) {
				t.Fatalf("%q is taken for %q", path, want)
			}
		}
		if isName(name) && (strings.ContainsAny(name, "./\\%\x00~;: ") || url.PathEscape(name) != name || len(name) > 63) {
			t.Fatalf("%q is taken for a name", name)
		}
		if u, err := url.ParseRequestURI(path); err == nil {
			w := httptest.NewRecorder()
			s := New(Options{Log: discard()})
			s.ServeHTTP(w, &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}, Body: http.NoBody, RemoteAddr: "192.0.2.1:1"})
			if want := expected(u.EscapedPath()); w.Code != want {
				t.Fatalf("%q: %d, and not %d", path, w.Code, want)
			}
		}
	})
}

// expected is the status of GET for a path at a server without commit and keys.
func expected(path string) int {
	rows, name := match(endpoints(), path)
	i := slices.IndexFunc(rows, func(e endpoint) bool { return e.method == http.MethodGet })
	switch {
	case len(rows) == 0:
		return http.StatusNotFound
	case i < 0:
		return http.StatusMethodNotAllowed
	case strings.HasSuffix(rows[i].path, identity) && !isName(name):
		return http.StatusBadRequest
	case path == "/health":
		return http.StatusOK
	case rows[i].early:
		return http.StatusUnauthorized
	default:
		return http.StatusServiceUnavailable
	}
}

// No text that is sent as credentials opens anything, or appears in the log or the answer.
func FuzzAuthorization(f *testing.F) {
	c, text := tinyCatalog(f)
	for _, seed := range []string{"", "Bearer", "Bearer ", "Bearer x", "bearer a.b", "Basic eDp5", "Bearer " + text[:20], "Bearer \x00", "Bearer a.b.c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		log := &strings.Builder{}
		s := New(Options{Log: textLog(log)})
		s.Publish(View{Catalog: c})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/spec/own", http.NoBody)
		r.Header["Authorization"] = []string{value}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		shown := wire.Token(r.Header)
		if w.Code != http.StatusUnauthorized && shown != text {
			t.Fatalf("%q: %d", value, w.Code)
		}
		if len(shown) > 12 && (strings.Contains(log.String(), shown) || strings.Contains(w.Body.String(), shown)) {
			t.Fatalf("%q was repeated", value)
		}
		if _, kind, _ := strings.Cut(log.String(), "credential="); kind != "" && !strings.HasPrefix(kind, policy.Provisioning) && shown != text {
			t.Fatalf("%q is taken for %s", value, kind)
		}
	})
}

// Whatever a node posts as its report, it is taken or refused as the table of errors has it, and nothing
// of it is in the log.
func FuzzReport(f *testing.F) {
	c, text := tinyCatalog(f)
	const good = `{"version":1,"identity":"own","agent":"1.2.3","commit":"","last_good":"","at":"2026-11-23T08:00:00Z","phase":"run","ready":true,"empty":false,"findings":[],"nodes":[]}`
	for _, seed := range []string{
		good, "", "{}", "null", good + good, strings.Replace(good, "own", "other", 1), strings.Replace(good, `"nodes":[]`, `"nodes":[{"name":"a","type":"vm","parent":"own","phase":"run"}]`, 1),
		strings.Replace(good, "2026", "9999", 1), strings.Replace(good, `"version":1`, `"version":1e99`, 1), `{"identity":"own","identity":"other"}`, "\xff", strings.Repeat("[", 20_000),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		log := &strings.Builder{}
		s := New(Options{Log: textLog(log)})
		s.Publish(View{Catalog: c})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "https://x"+wire.ReportPath.Of("own"), bytes.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+text)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		switch w.Code {
		case http.StatusAccepted, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		default:
			t.Fatalf("%q: %d", body, w.Code)
		}
		kept, there := s.reports.Get("own")
		if there != (w.Code == http.StatusAccepted) || there && kept.Identity != "own" {
			t.Fatalf("%q: %d, and there is %v", body, w.Code, there)
		}
		if len(body) > 30 && strings.Contains(log.String(), string(body)) {
			t.Fatalf("%q is in the log", body)
		}
	})
}
