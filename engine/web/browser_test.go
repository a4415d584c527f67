package web

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/agent"
)

// TestBrowser shows every view in a real browser: make web. HOMESTAK_BROWSER names it.
func TestBrowser(t *testing.T) {
	browser := os.Getenv("HOMESTAK_BROWSER")
	if browser == "" {
		t.Skip("make web runs it")
	}
	type target struct {
		URL   string   `json:"url"`
		Name  string   `json:"name"`
		Token string   `json:"token,omitempty"` // the path that signs in; "" for the key
		Views []string `json:"views,omitempty"` // nil: those that it leads to
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
		targets = append(targets, target{URL: s.URL, Name: name, Views: views()})
	}
	serve("hostile", fleetOf(5, 12, hostileText))
	serve("large", fleetOf(500, 19, "the disk differs"))
	address, err := url.Parse(demo(t))
	require.NoError(t, err)
	targets = append(targets, target{URL: "http://" + address.Host, Name: "demo", Token: address.RequestURI()})
	list, err := json.Marshal(targets)
	require.NoError(t, err)
	c := exec.CommandContext(t.Context(), "node", "page.mjs")
	c.Dir = "../../dist/web"
	c.Env = append(os.Environ(), "TARGETS="+string(list), "KEY=the operator key")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	require.NoError(t, c.Run())
}

// demo runs "web --demo" until the test ends, and returns the address that it prints, when its story is over.
func demo(t *testing.T) (address string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Getenv("HOMESTAK_PROGRAM"), "web", "--demo")
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.Env = append(os.Environ(), "DISPLAY=", "WAYLAND_DISPLAY=")
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Wait() }) // after the context of the test has ended
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "http://127.0.0.1:"):
			address = line
		case strings.HasPrefix(line, "Ctrl-C ends it"):
			go func() { // or it would wait for a reader
				_, _ = io.Copy(io.Discard, out)
			}()
			return address
		}
	}
	require.Fail(t, "the demo ended before its story did")
	return ""
}
