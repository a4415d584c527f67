package integration_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Clients that are broken or hostile are refused cheaply: by status and code, without what they are
// after, in bounded memory and with few lines of log. All the time others are served.
func TestST17BadClients(t *testing.T) {
	t.Parallel()
	p := beginParent(t)
	good, bad := p.child("127.0.0.2"), p.child("127.0.0.66")
	require.Equal(t, "200", good.get("/spec/alpha", alphaToken).code())
	others := good.keepAsking("/spec/alpha", alphaToken)

	// A hundred say nothing, a hundred send a header byte by byte.
	ctx := t.Context()
	done := make(chan struct{})
	var slow sync.WaitGroup
	defer slow.Wait()
	defer close(done)
	for range 100 {
		conn, err := bad.dial(ctx, "tcp", p.addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		loris := bad.connect()
		slow.Go(func() {
			_, err := io.WriteString(loris, "GET /spec/alpha HTTP/1.1\r\nHost: x\r\nX: ")
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()
			for err == nil {
				select {
				case <-done:
					return
				case <-tick.C:
					_, err = io.WriteString(loris, "1")
				}
			}
		})
	}

	// Paths lead nowhere, also for who has a credential; what is named rightly is served.
	inner := p.mint("inner")
	traveller := p.child("127.0.0.67")
	send := func(target string) reply {
		return traveller.raw("GET " + target + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + inner + "\r\nConnection: close\r\n\r\n")
	}
	for link, to := range map[string]string{"link": "/etc/passwd", "up": "../../../../..", "alias": "site.hcl"} {
		require.NoError(t, os.Symlink(to, filepath.Join(p.dir, link)))
	}
	linked := p.commit("links")
	require.Equal(t, "202", good.ask(http.MethodPost, "/reconcile", string(p.access().Operator), http.NoBody).code())
	require.Eventually(t, func() bool { return strings.Contains(good.get("/health", "").body, linked) }, 5*time.Minute, 100*time.Millisecond)
	require.Equal(t, "200", send("/site.git/raw/"+linked+"/site.hcl").code())
	for what, targets := range map[string][]string{
		"plain":          {"/spec/../../etc/passwd", "/../data/server/signing.json", "/site.git/raw/HEAD/../../etc/passwd", "/site.git/objects/../../../data/server/server.pem", "/agent/../data/server/server.pem"},
		"encoded":        {"/spec/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/site.git/raw/HEAD/%2e%2e/%2e%2e/etc/passwd", "/site.git/raw/HEAD/..%2f..%2fetc%2fpasswd", "/%2e%2e/data/server/server.pem"},
		"double-encoded": {"/spec/%252e%252e%252fetc", "/site.git/raw/HEAD/%252e%252e/etc/passwd", "/site.git/raw/HEAD/%252e%252e%252fetc%252fpasswd"},
		"absolute":       {"//etc/passwd", "/site.git/raw/HEAD//etc/passwd", "/site.git/raw/HEAD/%2fetc%2fpasswd", "file:///etc/passwd", "/site.git/raw//etc/passwd"},
		"symbolic link":  {"/site.git/raw/HEAD/link", "/site.git/raw/HEAD/up/etc/passwd", "/site.git/raw/HEAD/up/../etc/passwd", "/site.git/raw/HEAD/alias"},
		"ref":            {"/site.git/raw/../HEAD/site.hcl", "/site.git/raw/refs/heads/../../../data/server/server.pem", "/site.git/raw/refs%2f..%2fHEAD/site.hcl", "/site.git/raw/main..HEAD/site.hcl", "/site.git/raw/HEAD~0/site.hcl"},
		"NUL":            {"/spec/inner%00", "/spec/inner\x00", "/site.git/raw/HEAD/site.hcl%00", "/site.git/raw/HEAD/site.hcl\x00.txt", "/site.git/raw/HEAD%00/site.hcl"},
	} {
		for _, target := range targets {
			got := send(target)
			require.Contains(t, []int{400, 404}, got.status, "%s: %q", what, target)
			require.NotContains(t, got.body, "root:")
			require.NotContains(t, got.body, "PRIVATE KEY")
			require.NotContains(t, got.body, "site \"home\"")
		}
	}
	require.Equal(t, "200", send("/site.git/raw/HEAD/site.hcl").code(), "what is refused above is refused for its path")

	// Bodies that are too large are refused before they are there, or when they get too long.
	huge := p.child("127.0.0.68")
	got := huge.raw("POST /report/alpha HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + alphaToken + "\r\nContent-Length: 1000000000000\r\n\r\n")
	require.Equal(t, "413 E101", got.code())
	chunks := io.LimitReader(zeros{}, 64<<20)
	got, err := huge.tryAsk(http.MethodPost, "/report/alpha", alphaToken, chunks)
	if err == nil { // else it was cut off while it still sent
		require.Equal(t, "413 E101", got.code())
	}
	got = huge.raw("GET /health HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n")
	require.Equal(t, 431, got.status)

	// Wrong and stale tokens.
	guest := p.child("127.0.0.69")
	for credential, want := range map[string]string{"": "401 E300", "wrong": "401 E301", inner: "403 E302", inner[:len(inner)-2]: "401 E300", inner + "A": "401 E301", p.expired("alpha"): "401 E303", siteToken: "403 E302"} {
		require.Equal(t, want, guest.get("/spec/alpha", credential).code())
	}

	// Ten thousand guesses from one address: a few are checked, all others are not even that, and the
	// right token of the site among them opens nothing until the guessing stops. A neighbour behind the same address
	// whose token was minted for it is served.
	var refused, later atomic.Int64
	var guessing sync.WaitGroup
	for i := range 4 {
		guessing.Go(func() {
			for n := range 2500 {
				got, err := bad.tryAsk(http.MethodGet, "/spec/alpha", fmt.Sprintf("guess-%d-%d", i, n), http.NoBody)
				switch {
				case err != nil:
					t.Errorf("guess %d: %v", n, err)
				case got.code() == "401 E301":
					refused.Add(1)
				case got.code() == "429 E429" && got.header.Get("Retry-After") != "":
					later.Add(1)
				default:
					t.Errorf("guess %d: %s", n, got.code())
				}
			}
		})
	}
	for range 20 {
		require.Equal(t, "200", bad.get("/spec/alpha", p.mint("alpha")).code())
	}
	guessing.Wait()
	require.EqualValues(t, 10_000, refused.Load()+later.Load())
	require.Less(t, refused.Load(), int64(500), "checked guesses")
	require.Equal(t, "200", good.get("/spec/alpha", alphaToken).code(), "whose token was guessed is not locked out")

	others.rest(t)
	peak := p.peak()
	require.Less(t, peak, int64(160<<20), "memory")
	log := p.stop() // with all who still say nothing
	require.NotContains(t, log, "canary")
	require.NotContains(t, log, "guess-")
	require.LessOrEqual(t, strings.Count(log, "refusing a client"), 10)
	t.Logf("%d guesses were checked, %d were not; the good client was answered %d times; peak %d MiB", refused.Load(), later.Load(), others.answered, peak>>20)
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
