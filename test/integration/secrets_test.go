package integration_test

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// No secret is in what a server answers, logs or shows of its repository, but for those in the spec of
// a node that needs them, for that node.
func TestST17NoSecretLeaves(t *testing.T) {
	t.Parallel()
	p := beginParent(t)
	canaries := regexp.MustCompile(`canary-[a-z-]+|(ca4a71)+`).FindAllString(parentSecrets, -1)
	require.Len(t, canaries, 14)
	ofBeta := []string{"canary-api-beta", "canary-password-beta"}
	needs := map[string][]string{
		"/spec/alpha": {"canary-password-alpha", "canary-key-ops"}, "/spec/beta": ofBeta, "/spec/leaf": ofBeta,
		// For its subtree, which is leaf: what its spec needs, how it shows who it is, and public keys.
		"/config/inner": append([]string{"canary-key-ops", "canary-key-other", siteToken, "canary-token-of-node-leaf"}, ofBeta...),
	}
	holds := func(text string) (out []string) {
		for _, c := range canaries {
			if strings.Contains(text, c) {
				out = append(out, c)
			}
		}
		return out
	}
	nodes := parentNodes
	access := p.access()
	credentials := map[string]string{"nobody": "", "site": siteToken, "reader": string(access.Read), "operator": string(access.Operator), "repository": string(access.Repository)}
	of := map[string]string{} // whose a credential is
	for _, n := range nodes {
		credentials["token of "+n], of["token of "+n] = p.mint(n), n
		credentials["node token of "+n], of["node token of "+n] = "canary-token-of-node-"+n, n
	}

	// Every endpoint with every credential, each from an address of its own: refusals are limited.
	paths := []string{"/", "/health", "/specs", "/status", "/metrics", "/events", "/site.git/info/refs?service=git-upload-pack", "/agent/" + runtime.GOOS + "-" + "none"}
	for _, file := range append(strings.Split(p.git("ls-files"), "\n"), "secrets.yaml", ".git/config") {
		paths = append(paths, "/site.git/raw/HEAD/"+file)
	}
	for _, n := range nodes {
		paths = append(paths, "/spec/"+n, "/wait/"+n, "/report/"+n, "/config/"+n)
	}
	answered := map[string]int{}
	for i, name := range slices.Sorted(maps.Keys(credentials)) {
		c := p.child("127.0.1." + string(rune('1'+i/8)) + string(rune('1'+i%8)))
		for _, path := range paths {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				for _, accept := range []string{"application/json", "application/yaml"} {
					got := c.ask(method, path, credentials[name], http.NoBody, "Accept", accept, "If-None-Match", `"other"`)
					for _, values := range got.header {
						require.Empty(t, holds(strings.Join(values, " ")))
					}
					var want []string
					if node := path[strings.LastIndexByte(path, '/')+1:]; got.status == http.StatusOK && slices.Contains(nodes, node) {
						want = needs[path]
						answered[strings.TrimSuffix(path, node)]++
						if owner := of[name]; owner != "" {
							require.Equal(t, node, owner, name)
						}
					}
					about := fmt.Sprintf("%s %s by %s: %d", method, path, name, got.status)
					require.ElementsMatch(t, want, holds(got.body), about)
				}
			}
		}
	}
	// As JSON and as YAML: specs by each token, by the node tokens but those of beta and leaf, and by the
	// site's token but for alpha; waiting by the same tokens of the node; the rest by tokens of the node.
	require.Equal(t, map[string]int{"/spec/": 2 * (5 + 3 + 4), "/config/": 2 * 2, "/wait/": 2 * (5 + 3)}, answered)
	// The repository has the secrets as sops encrypted them, in all of its history.
	clone := filepath.Join(t.TempDir(), "clone")
	out, err := p.tryGit("-c", "http.extraHeader=Authorization: Bearer "+credentials["repository"], "clone", "-q", "https://"+p.addr+"/site.git", clone)
	require.NoError(t, err, out)
	all, err := p.tryGit("-C", clone, "cat-file", "--batch-all-objects", "--batch")
	require.NoError(t, err)
	require.Contains(t, all, "ENC[AES256_GCM,")
	require.Contains(t, all, "secret.passwords.alpha")
	require.Empty(t, holds(all))

	log := p.stop()
	require.Positive(t, strings.Count(log, " DEBUG request "))
	require.Empty(t, holds(log))
	for name, c := range credentials {
		if c != "" {
			require.Zero(t, strings.Count(log, c), name)
		}
	}
}

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

// A new signing key, certificate, token and secret are served by the process that runs, and no client is
// cut off: the old ones are valid during the overlap, and only then.
func TestST18Rotation(t *testing.T) {
	t.Parallel()
	p := beginParent(t)
	becomes := func(want string, ask func() string) {
		t.Helper()
		got := ""
		require.Eventually(t, func() bool { got = ask(); return got == want }, 5*time.Minute, 200*time.Millisecond, "%s instead of %s", got, want)
	}
	specOf := func(node, credential string) func() string {
		return func() string { return p.child("127.0.0.3").get("/spec/"+node, credential).code() }
	}

	// A child as it is: it knows the server by its pins, and itself by its token.
	node := wire.Parent{Identity: "alpha", Server: "https://" + p.addr, Token: p.mint("alpha")}
	pins, err := wire.ParsePins(p.pins)
	require.NoError(t, err)
	node.Pins = pins
	fetch := func(tag string) client.Fetched {
		t.Helper()
		c := &client.Client{Parent: node, Agent: "test"}
		got, err := c.Spec(t.Context(), tag)
		require.NoError(t, err)
		if got.Pins != nil {
			node.Pins = got.Pins
		}
		if got.Token != "" {
			node.Token = got.Token
		}
		return got
	}
	first := fetch("")
	require.Len(t, node.Pins, 2, "the key of the server and the next one")
	p.pins = []string{node.Pins[0].String(), node.Pins[1].String()}
	others := p.child("127.0.0.2").keepAsking("/health", "")
	require.True(t, fetch(first.ETag).NotModified)

	// Signing key: the old token is good, and is replaced with the answer.
	old := node.Token
	p.rotate()
	require.Eventually(t, func() bool { fetch(""); return node.Token != old }, 5*time.Minute, 200*time.Millisecond)
	require.Equal(t, "200", specOf("alpha", old)(), "in the overlap")
	require.Equal(t, "200", specOf("alpha", node.Token)())
	p.rotate("--drop-old")
	becomes("401 E301", specOf("alpha", old))
	require.Equal(t, "200", specOf("alpha", node.Token)())
	fetch("")

	// Certificate: it will expire tomorrow, so the server takes the key that it announced.
	was := p.certificate()
	p.expireTomorrow()
	require.Eventually(t, func() bool { return !bytes.Equal(p.certificate().RawSubjectPublicKeyInfo, was.RawSubjectPublicKeyInfo) }, 5*time.Minute, 200*time.Millisecond)
	before := node.Pins
	require.Equal(t, before[1], wire.PinOf(p.certificate()), "the key that children know as the next one")
	require.Eventually(t, func() bool { return !fetch(first.ETag).NotModified }, 5*time.Minute, 200*time.Millisecond, "the child has to learn the key after that")
	require.Equal(t, before[1], node.Pins[0])
	require.NotContains(t, before, node.Pins[1])
	require.True(t, p.certificate().NotAfter.After(time.Now().Add(300*24*time.Hour)))
	p.pins = []string{before[0].String()}
	_, err = p.child("127.0.0.5").tryAsk(http.MethodGet, "/health", "", http.NoBody)
	_, mismatch := errors.AsType[*wire.PinMismatchError](err)
	require.True(t, mismatch, "who knows the old key only is cut off: %v", err)
	p.pins = []string{node.Pins[0].String(), node.Pins[1].String()}

	// Token of the site, and a secret in a spec: one commit changes both.
	require.Equal(t, "200", specOf("alpha", alphaToken)())
	require.Equal(t, "200", specOf("beta", siteToken)())
	tag := fetch("").ETag
	p.encrypt(strings.NewReplacer("password-alpha", "password-second", alphaToken, alphaToken+"-2", siteToken, siteToken+"-2").Replace(parentSecrets))
	p.commit("other secrets")
	becomes("401 E301", specOf("alpha", alphaToken))
	require.Equal(t, "401 E301", specOf("beta", siteToken)())
	require.Equal(t, "200", specOf("beta", siteToken+"-2")())
	got := fetch(tag)
	require.False(t, got.NotModified)
	require.Contains(t, string(got.Spec), "canary-password-second")
	require.NotContains(t, string(got.Spec), "canary-password-alpha")

	// Keys of people.
	name := filepath.Join(p.data(), daemon.Folder, "read.key")
	key := string(p.access().Read)
	status := func(key string) func() string {
		return func() string { return p.child("127.0.0.4").get("/status", key).code() }
	}
	require.Equal(t, "200", status(key)())
	require.NoError(t, os.WriteFile(name, []byte(strings.Repeat("ab", 32)+"\n"), 0o600))
	becomes("200", status(strings.Repeat("ab", 32)))
	require.Equal(t, "401 E301", status(key)())

	others.rest(t)
	require.Nil(t, p.cmd.ProcessState, "it is still the same process")
	require.NotContains(t, p.stop(), "canary")
}

// certificate is the one that the server shows.
func (p *serving) certificate() *x509.Certificate {
	p.t.Helper()
	c, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(p.t.Context(), "tcp", p.addr) //nolint:gosec // it is read, not trusted
	require.NoError(p.t, err)
	defer func() { _ = c.Close() }()
	conn, ok := c.(*tls.Conn)
	require.True(p.t, ok)
	return conn.ConnectionState().PeerCertificates[0]
}

// expireTomorrow replaces the certificate of the server by one of the same key that is about to expire.
func (p *serving) expireTomorrow() {
	p.t.Helper()
	name := filepath.Join(p.data(), daemon.Folder, "server.pem")
	text, err := os.ReadFile(name)
	require.NoError(p.t, err)
	block, rest := pem.Decode(text)
	leaf, err := x509.ParseCertificate(block.Bytes)
	require.NoError(p.t, err)
	private, _ := pem.Decode(rest)
	key, err := x509.ParsePKCS8PrivateKey(private.Bytes)
	require.NoError(p.t, err)
	leaf.SerialNumber, leaf.NotAfter = big.NewInt(1), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, leaf.PublicKey, key)
	require.NoError(p.t, err)
	require.NoError(p.t, os.WriteFile(name+".new", append(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: der}), rest...), 0o600))
	require.NoError(p.t, os.Rename(name+".new", name))
}
