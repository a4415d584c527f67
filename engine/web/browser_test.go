package web

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/agent"
)

// TestBrowser has a real browser look at every view: make web. HOMESTAK_BROWSER names it.
func TestBrowser(t *testing.T) {
	browser := os.Getenv("HOMESTAK_BROWSER")
	if browser == "" {
		t.Skip("make web runs it")
	}
	type target struct {
		URL   string   `json:"url"`
		Name  string   `json:"name"`
		Views []string `json:"views"`
	}
	var targets []target
	serve := func(name string, f *fake) {
		h := Handler(Options{Source: f, Access: Access{Keys: testKeys}})
		changes, cut := 0, make(chan struct{}, 1)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/test/change": // what the browser must show next
				changes++
				f.status.Summary = r.URL.Query().Get("text")
				f.events.Record(agent.Status{Identity: "father", PID: 7, At: time.Now(), Repository: agent.RepositoryStatus{Error: strings.Repeat("x", changes%2)}})
			case "/test/cut":
				cut <- struct{}{}
			case "/events":
				ctx, cancel := context.WithCancel(r.Context())
				defer cancel()
				go func() {
					select {
					case <-cut:
						cancel()
					case <-ctx.Done():
					}
				}()
				h.ServeHTTP(w, r.WithContext(ctx))
			default:
				h.ServeHTTP(w, r)
			}
		}))
		t.Cleanup(s.Close)
		targets = append(targets, target{s.URL, name, views()})
	}
	serve("hostile", fleetOf(5, 12, hostileText))
	serve("large", fleetOf(500, 19, "the disk differs"))
	list, err := json.Marshal(targets)
	require.NoError(t, err)
	c := exec.CommandContext(t.Context(), "node", "page.mjs")
	c.Dir = "../../dist/web"
	c.Env = append(os.Environ(), "TARGETS="+string(list), "KEY=the operator key")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	require.NoError(t, c.Run())
}
