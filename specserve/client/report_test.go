package client_test

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

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
		"too often":   {serve: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }, pin: own, code: wire.CodeTooMany},
		"nobody":      {set: func(s *server) { s.refuse = true }, pin: own, code: wire.CodeConnection},
		"silent":      {set: func(s *server) { s.silent = true }, pin: own, code: wire.CodeConnection, within: 15 * time.Second},
		"another key": {pin: wire.Pin{1}, serve: func(http.ResponseWriter, *http.Request) { t.Error("it was sent") }, code: wire.CodeConnection},
		"never ready": {serve: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, pin: own, code: wire.CodeConnection, within: 15 * time.Second},
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
