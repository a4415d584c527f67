package integration_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
)

// front stands between the program and the host, as a proxy or a broken API does,
// and says what it likes instead of what the host answered.
type front struct {
	api, fingerprint string
	// lie is asked with the path and the host's answer; it may change while requests
	// come in. nil is the truth.
	lie atomic.Pointer[func(path, answer string) string]
}

// lies lets the front change answers from now on.
func (f *front) lies(lie func(path, answer string) string) { f.lie.Store(&lie) }

// tellsTheTruth lets it pass on what the host says.
func (f *front) tellsTheTruth() { f.lie.Store(nil) }

// behindAFront puts a front before the host, and its address into the site.
func (s *story) behindAFront() *front {
	s.t.Helper()
	f := &front{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		truth := httptest.NewRecorder()
		s.host.ServeHTTP(truth, r)
		maps.Copy(w.Header(), truth.Header())
		w.Header().Del("Content-Length")
		answer := truth.Body.String()
		if lie := f.lie.Load(); lie != nil {
			answer = (*lie)(strings.TrimPrefix(r.URL.Path, "/api2/json"), answer)
		}
		w.WriteHeader(truth.Code)
		_, _ = w.Write([]byte(answer))
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of clients that hang up
	server.StartTLS()
	s.t.Cleanup(server.Close)
	sum := sha256.Sum256(server.Certificate().Raw)
	f.api, f.fingerprint = server.URL, "sha256:"+hex.EncodeToString(sum[:])
	s.edit("host.hcl", fmt.Sprintf("%q", s.api), fmt.Sprintf("%q", f.api))
	s.edit("host.hcl", s.host.Fingerprint(), f.fingerprint)
	return f
}
