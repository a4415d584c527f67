package specserve

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Whatever a path is, it either is that of an endpoint with the name of a node in it, or refused.
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

// Whatever is sent as credentials, it opens nothing, and nobody reads it in the log or the answer.
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
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "https://x"+wire.ReportPath("own"), bytes.NewReader(body))
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
