package forest

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// origin publishes one image, and counts how often it was got.
type origin struct {
	content string

	mu   sync.Mutex
	sent int
}

// RoundTrip implements http.RoundTripper.
func (o *origin) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Range") != "bytes=0-0" { // which asks for the size
		o.mu.Lock()
		o.sent++
		o.mu.Unlock()
	}
	out := httptest.NewRecorder()
	http.ServeContent(out, r, "", time.Time{}, strings.NewReader(o.content))
	answer := out.Result()
	answer.Request = r
	return answer, nil
}

// A tree gets an image from the internet once. A child that asks for anything else gets nothing. Without its parent it goes to the URL.
func TestImagesComeOnceForATree(t *testing.T) {
	web := &origin{content: "QFI\xfb\x00\x00\x00\x03" + strings.Repeat("\x00", 24) + strings.Repeat("qcow2 bytes ", 1000)}
	digest := sha256.Sum256([]byte(web.content))
	sum := hex.EncodeToString(digest[:])
	var mu sync.Mutex
	downloads := map[string]int{} // by hosts themselves
	synctest.Test(t, func(t *testing.T) {
		h := newHub(3, 1)
		w := newWorld(t, func(o *Options) {
			o.Secrets, o.Web = h.secrets(), web
			o.Env = map[string]string{"HOMESTAK_SERVE_IMAGES": "true"}
			o.Fault = func(machine string, r *http.Request) (int, bool) {
				if strings.HasSuffix(r.URL.Path, "/download-url") {
					mu.Lock()
					downloads[machine]++
					mu.Unlock()
				}
				return 0, false
			}
		})
		for _, name := range h.spokes {
			_, err := w.Add(name, w.Machine("father"))
			require.NoError(t, err)
		}
		w.now = newSite()
		defer w.end()
		files := h.files()
		files["site.hcl"] = strings.Replace(files["site.hcl"], strings.Repeat("aa", 32), sum, 1) + "image \"other\" {\n  url = \"https://images.example/other.qcow2\"\n  checksum = \"sha256:" + strings.Repeat("bb", 32) + "\"\n}\n"
		w.pushFiles(newSite(), files, "begin")
		w.until(2*time.Hour, "all are there", func() bool { return w.follows(h) == "" })
		require.Equal(t, 1, web.sent)
		require.Empty(t, downloads)
		m := w.Machine("branch-2")
		ask := func(p wire.Parent, path, part string) int {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.Server+path, http.NoBody)
			require.NoError(t, err)
			r.Header.Set("Range", part)
			way := client.NewTransport(func() (wire.Parent, error) { return p, nil }, "", w.Network.dial(m))
			defer way.CloseIdleConnections()
			answer, err := way.RoundTrip(r)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			return answer.StatusCode
		}
		known, err := w.Machine("father").Agent().Parent("branch-2", "plain")
		require.NoError(t, err)
		require.Equal(t, 206, ask(known, wire.ImagePath.Of(sum), "bytes=10-19"))
		require.Equal(t, 404, ask(known, wire.ImagePath.Of(strings.Repeat("bb", 32)), ""), "no guest of it needs that")
		require.Equal(t, 404, ask(known, wire.ImagePath.Of(strings.Repeat("aa", 32)), ""))
		require.Equal(t, 404, ask(known, string(wire.ImagePath)+"../"+sum, ""))
		require.Equal(t, 404, ask(known, string(wire.ImagePath)+"..%2f..%2fserver%2fkey", ""))
		require.Equal(t, 404, ask(known, wire.ImagePath.Of(strings.ToUpper(sum)), ""))
		known.Token = ""
		require.Equal(t, 401, ask(known, wire.ImagePath.Of(sum), ""))

		w.pass(6*time.Minute, time.Minute)
		require.Equal(t, 1, web.sent, "a check asks for nothing")
	})
}
