package specserve

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source"
	gitserve "github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// connect opens a connection that speaks HTTP/1.1, to send bytes as they are.
func (s *served) connect() *tls.Conn {
	s.t.Helper()
	c, err := (&net.Dialer{}).DialContext(s.t.Context(), "tcp", s.addr)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = c.Close() })
	require.NoError(s.t, c.SetDeadline(time.Now().Add(5*time.Minute)))
	pins, err := wire.ParsePins(s.pins)
	require.NoError(s.t, err)
	conn := tls.Client(c, wire.PinnedTLS(pins))
	require.NoError(s.t, conn.HandshakeContext(s.t.Context()))
	return conn
}

// raw sends bytes, and gives the answer as it comes.
func (s *served) raw(bytes string) answer {
	s.t.Helper()
	c := s.connect()
	_, err := io.WriteString(c, bytes)
	require.NoError(s.t, err)
	method, _, _ := strings.Cut(bytes, " ")
	got, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	require.NoError(s.t, err)
	defer func() { _ = got.Body.Close() }()
	body, err := io.ReadAll(got.Body)
	require.NoError(s.t, err)
	return answer{got.StatusCode, got.Header, string(body)}
}

// Paths reach only the table of endpoints. A client that may fetch the spec of own sends these bytes as they are here.
func TestTraversal(t *testing.T) {
	s := started(t)
	send := func(target string) answer {
		t.Helper()
		return s.raw("GET " + target + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + ownToken + "\r\nConnection: close\r\n\r\n")
	}
	require.Equal(t, 200, send("/spec/own").status, "what is refused below is refused for its path")
	require.Equal(t, 200, send("https://other/spec/own").status, "the absolute form of RFC 9112")
	require.Equal(t, 200, send("/spec/own?x=../../etc/passwd").status)
	for target, want := range map[string]string{
		"/spec/../../../../etc/passwd":         "404 E100",
		"/spec/..":                             "400 E101",
		"/spec/.":                              "400 E101",
		"/spec/../spec/own":                    "404 E100",
		"/spec/./own":                          "404 E100",
		"/spec//own":                           "404 E100",
		"//spec/own":                           "404 E100",
		"///etc/passwd":                        "404 E100",
		"/./spec/own":                          "404 E100",
		"/spec/own/":                           "404 E100",
		"/spec/own/..":                         "404 E100",
		"/spec/":                               "400 E101",
		"/spec":                                "404 E100",
		"/SPEC/own":                            "404 E100",
		"/spec/%2e%2e%2f%2e%2e%2fetc%2fpasswd": "400 E101",
		"/spec/%2E%2E":                         "400 E101",
		"/spec/..%2f..%2fetc/passwd":           "404 E100",
		"/spec/%252e%252e%252f":                "400 E101",
		"/spec/%252e%252e%252fetc/passwd":      "404 E100",
		"/spec%2fown":                          "404 E100",
		"/%73pec/own":                          "404 E100",
		"/spec/%6fwn":                          "400 E101",
		"/spec/own%00":                         "400 E101",
		"/spec/own%00.json":                    "400 E101",
		"/spec/%00":                            "400 E101",
		"/spec/own%0d%0aX-Injected:%201":       "400 E101",
		"/spec/..\\..\\windows":                "400 E101",
		"/spec/own%5c..":                       "400 E101",
		"/spec/own;x":                          "400 E101",
		"/spec/~root":                          "400 E101",
		"/spec/$HOME":                          "400 E101",
		"/spec/%C0%AE%C0%AE%C0%AFetc":          "400 E101",
		"/spec/\xc0\xae\xc0\xae":               "400 E101",
		"/spec/" + strings.Repeat("a", 64):     "400 E101",
		"/spec/1own":                           "400 E101",
		"/spec/-":                              "400 E101",
		"/spec/own-":                           "400 E101",
		"/etc/passwd":                          "404 E100",
		"/":                                    "404 E100",
		"https://x":                            "404 E100",
		"/health/":                             "404 E100",
		"/health/..":                           "404 E100",
		"/healthz":                             "404 E100",
		"/specs/own":                           "404 E100",
		"/site.git/config":                     "404 E100",
		"file:///etc/passwd":                   "404 E100",
	} {
		got := send(target)
		require.Equal(t, want, fmt.Sprint(got.status, " ", got.code()), "%q: %s", target, got.body)
		require.Empty(t, got.header.Get("X-Injected"))
		require.Empty(t, got.header.Get("Location"), "no path is corrected")
	}
	// net/http refuses what is not HTTP.
	for _, target := range []string{"/spec/own\x00", "/spec/ own", "spec/own", "/spec/%zz", "*"} {
		got := send(target)
		require.Contains(t, []int{400, 404}, got.status, "%q", target)
		require.NotContains(t, got.body, "canary")
	}
}

func TestMethods(t *testing.T) {
	s := started(t)
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get"} {
		for _, path := range []string{"/spec/own", "/specs", "/health"} {
			got := s.raw(method + " " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			require.Equal(t, 405, got.status, method)
			require.Equal(t, "GET, HEAD", got.header.Get("Allow"))
			require.Equal(t, "E101", got.code())
		}
	}
	require.Equal(t, 404, s.raw("POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").status)
	require.Equal(t, 404, s.raw("OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").status)
	require.Contains(t, s.log.String(), "method=other")
	require.NotContains(t, s.log.String(), "PROPFIND")

	// The answer to HEAD ends with its header: what follows is the next answer.
	c := s.connect()
	_, err := fmt.Fprint(c, "HEAD /health HTTP/1.1\r\nHost: x\r\n\r\nGET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	require.NoError(t, err)
	all, err := io.ReadAll(c)
	require.NoError(t, err)
	head, rest, _ := strings.Cut(string(all), "\r\n\r\n")
	require.True(t, strings.HasPrefix(head, "HTTP/1.1 200 OK"))
	require.True(t, strings.HasPrefix(rest, "HTTP/1.1 404 Not Found"), rest)
}

// A body that is too large is refused without waiting for it.
func TestLargeRequests(t *testing.T) {
	s, began := started(t), time.Now()
	long := strings.Repeat("x", 64<<10)
	for name, c := range map[string]struct {
		request string
		status  int
	}{
		"body":              {"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n", 413},
		"huge body":         {"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n", 413},
		"body to come":      {"GET /health HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n", 413},
		"chunked body":      {"GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 413},
		"broken chunks":     {"GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
		"no chunks":         {"GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n", 200},
		"two lengths":       {"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 1\r\n\r\n", 400},
		"length and chunks": {"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 413},
		"header":            {"GET /health HTTP/1.1\r\nHost: x\r\nX: " + long + "\r\n\r\n", 431},
		"credential":        {"GET /spec/own HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + long + "\r\n\r\n", 431},
		"path":              {"GET /" + long + " HTTP/1.1\r\nHost: x\r\n\r\n", 431},
		"many headers":      {"GET /health HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X: y\r\n", 10_000) + "\r\n", 431},
	} {
		got := s.raw(c.request)
		require.Equal(t, c.status, got.status, name)
		if c.status == 413 {
			require.Equal(t, "E101", got.code(), name)
		}
	}
	for _, body := range []io.Reader{strings.NewReader("x"), io.MultiReader(strings.NewReader("x"))} { // with and without a length
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.addr+"/health", body)
		require.NoError(t, err)
		got, err := s.client.Do(r)
		require.NoError(t, err)
		require.NoError(t, got.Body.Close())
		require.Equal(t, "HTTP/2.0 413", fmt.Sprint(got.Proto, " ", got.StatusCode))
	}
	require.Less(t, time.Since(began), 5*time.Minute, "it does not hang")
}

// A client that was refused too often about a node has to wait, also with the right token of the site: otherwise it could
// continue to guess. Good answers are not limited.
func TestTooMany(t *testing.T) {
	l := Usual()
	l.RefusalsPerNode.Burst, l.Refusals.Burst = 3, 8
	s := serveLimits(t, l)
	s.publish("a", site())
	for range 20 {
		require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(ownToken)...).status)
	}
	for range 3 {
		require.Equal(t, 401, s.ask("GET", "/spec/own", bearer("wrong")...).status)
	}
	for range 20 {
		got := s.ask("GET", "/spec/own", bearer(ownToken)...)
		require.Equal(t, 429, got.status)
		require.Equal(t, "E429", got.code())
		require.Equal(t, "1", got.header.Get("Retry-After"))
	}
	require.Equal(t, 200, s.ask("GET", "/spec/net").status, "another node is not concerned")
	for range 5 {
		require.Equal(t, 404, s.ask("GET", "/x").status)
	}
	require.Equal(t, 429, s.ask("GET", "/health").status)
	s.now.Add(1)
	require.Equal(t, 200, s.ask("GET", "/health").status)
	require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(ownToken)...).status)
	require.Equal(t, 1, strings.Count(s.log.String(), "level=WARN"), "one line for a client, however often it tries")
}

// A client that guesses does not lock out one with a provisioning token at the same address. Of two thousand guesses only a few
// are compared with a token, or put before the rules of the site.
func TestNeighboursOfAGuesser(t *testing.T) {
	l := Usual()
	l.RefusalsPerNode.Burst, l.Refusals.Burst = 3, 8
	s := serveLimits(t, l)
	leaving := site()
	leaving.Manifests["web"].Nodes = append(leaving.Manifests["web"].Nodes, &model.Node{Name: "inner", Spec: "own", Type: "pve"})
	s.publish("a", leaving)
	right, other := s.mint(s.keys[0], "own"), s.mint(s.keys[0], "net")
	expired, err := s.keys[0].MintToken(keys.Claims{Node: "own", Spec: "base", Issued: 1, Expires: 2})
	require.NoError(t, err)
	forged := s.mint(keys.NewKey(), "own")
	checked := map[int]int{}
	for i := range 2000 {
		guess := []string{"wrong", forged, expired, other, tokenOfSite[:len(tokenOfSite)-1] + string(rune('a'+i%26))}[i%5]
		checked[s.ask("GET", "/spec/own", bearer(guess)...).status]++
		if i%500 == 0 {
			require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(right)...).status)
		}
	}
	require.Less(t, checked[401]+checked[403], 20, "%v", checked)
	require.Equal(t, 2000, checked[401]+checked[403]+checked[429])
	for range 20 { // all of the address is limited now, whatever it asks about
		s.ask("GET", "/x")
	}
	require.Equal(t, 429, s.ask("GET", "/x").status)
	require.Equal(t, 429, s.ask("GET", "/spec/net").status)
	require.Equal(t, 429, s.ask("GET", "/spec/own", bearer(ownToken)...).status, "which could be a guess")
	require.Equal(t, 429, s.ask("GET", "/status", bearer(string(s.access.Read))...).status)
	require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(right)...).status)
	require.Equal(t, 200, s.ask("GET", "/specs", bearer(right)...).status)
	require.Equal(t, 202, s.send("POST", "/report/own", strings.NewReader(s.document("own", nil)), bearer(right)...).status)
	child := "Basic " + base64.StdEncoding.EncodeToString([]byte("git:"+s.mint(s.keys[0], "inner")))
	require.Equal(t, 404, s.ask("GET", "/site.git/raw/HEAD/x", "Authorization", child).status)
	// A notification that is signed counts, too; one that may be a guess does not.
	secret := s.access.Hook("gitlab")
	notify := func(headers ...string) int {
		return s.send("POST", "/hook/"+headers[0], strings.NewReader(push), headers[1:]...).status
	}
	require.Equal(t, 202, notify("gitea", "X-Gitea-Signature", signature(s.access.Hook("gitea"), push)))
	require.Equal(t, 429, notify("gitea", "X-Gitea-Signature", signature(secret, push+" ")))
	require.Equal(t, 429, notify("gitea"))
	require.Equal(t, 429, notify("gitlab", "X-Gitlab-Token", string(secret)))
}

// Senders of notifications that are slow, or show nothing, take no place from those that are signed.
func TestSlowNotifications(t *testing.T) {
	s := started(t)
	const length = 1 << 20
	begin := func(header string) (status string) {
		t.Helper()
		c := s.connect()
		_, err := fmt.Fprintf(c, "POST /hook/gitea HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n%s\r\n", length, header)
		require.NoError(t, err)
		line, err := bufio.NewReader(c).ReadString('\n')
		require.NoError(t, err)
		_, _ = io.WriteString(c, "{") // and no more: the connection stays open until the test ends
		return strings.TrimSpace(line)
	}
	for range 50 {
		require.Equal(t, "HTTP/1.1 401 Unauthorized", begin(""), "nothing of its body is read")
		require.Equal(t, "HTTP/1.1 401 Unauthorized", begin("X-Gitea-Signature: 00\r\n"), "this cannot be a signature")
		require.Equal(t, "HTTP/1.1 100 Continue", begin("X-Gitea-Signature: "+strings.Repeat("00", 32)+"\r\n"))
	}
	secret := s.access.Hook("gitea")
	require.Equal(t, 202, s.send("POST", "/hook/gitea", strings.NewReader(push), "X-Gitea-Signature", signature(secret, push)).status)
	<-s.asked
	long := push + strings.Repeat(" ", 25<<20-len(push))
	require.Equal(t, 202, s.send("POST", "/hook/gitea", strings.NewReader(long), "X-Gitea-Signature", signature(secret, long)).status)
	got := s.send("POST", "/hook/gitea", io.MultiReader(strings.NewReader(long), strings.NewReader(" ")), "X-Gitea-Signature", signature(secret, long+" "))
	require.Equal(t, 413, got.status)
}

// Clients that say nothing, or far too slowly, are cut off at the deadline, and meanwhile everybody
// else is served.
func TestSilentAndTricklingClients(t *testing.T) {
	l := unlimited()
	l.Header, l.Read = 700*time.Millisecond, time.Second
	s := serveLimits(t, l)
	s.publish("a", site())
	begins := map[string]string{
		"TLS":     "\x16\x03\x01\x02\x00", // of a handshake
		"header":  "GET /health HTTP/1.1\r\nHost: x\r\nX: ",
		"chunks":  "GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
		"request": "GET /hea",
	}
	cut := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	for range 10 {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.addr)
		require.NoError(t, err)
		clients.Go(func() { cut <- "silent"; _, _ = io.ReadAll(conn); cut <- "silent, cut" })
		for name, begin := range begins {
			var c net.Conn
			if name == "TLS" {
				c, err = (&net.Dialer{}).DialContext(ctx, "tcp", s.addr)
				require.NoError(t, err)
			} else {
				c = s.connect()
			}
			clients.Go(func() {
				_, err := io.WriteString(c, begin)
				ticker := time.NewTicker(50 * time.Millisecond)
				defer ticker.Stop()
				for err == nil && ctx.Err() == nil {
					<-ticker.C
					_, err = io.WriteString(c, "1")
				}
				_ = c.Close()
				cut <- name + ", cut"
			})
		}
	}
	for range 50 {
		began := time.Now()
		require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(ownToken)...).status)
		require.Less(t, time.Since(began), time.Minute, "the others do not hinder it")
	}
	count := map[string]int{}
	for range 60 {
		select {
		case what := <-cut:
			count[what]++
		case <-time.After(5 * time.Minute):
			t.Fatalf("still connected: %v", count)
		}
	}
	require.Equal(t, map[string]int{"silent": 10, "silent, cut": 10, "TLS, cut": 10, "header, cut": 10, "chunks, cut": 10, "request, cut": 10}, count)
}

// One address has so many connections and no more: a further one replaces its oldest idle one. Another
// address is not concerned.
func TestConnectionsOfOneClient(t *testing.T) {
	l := unlimited()
	l.ConnectionsPerClient = 5
	s := serveLimits(t, l)
	s.publish("a", site())
	var open []net.Conn
	for range 6 {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.9")}}).DialContext(t.Context(), "tcp", s.addr)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Minute)))
		open = append(open, c)
	}
	_, err := open[0].Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, tls.Client(open[5], &tls.Config{InsecureSkipVerify: true}).HandshakeContext(t.Context()))
	require.Equal(t, 200, s.ask("GET", "/health").status)
	require.Contains(t, s.log.String(), "client=127.0.0.9/32")
}

// Requests under way are answered at the end of the server, and neither silent clients nor idle ones delay it.
// TestShutdownTakesItsTime has the usual limits: here they are wide enough for a busy machine.
func TestShutdown(t *testing.T) {
	l := unlimited()
	l.Shutdown = 12 * time.Second // a quarter of it for silent clients
	s := serveLimits(t, l)
	s.publish("a", site())
	require.Equal(t, 200, s.ask("GET", "/health").status) // an idle connection, by HTTP/2
	for range 20 {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.addr)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
	}
	under := s.connect() // its request has begun: the body is still to come
	_, err := fmt.Fprint(under, "GET /spec/own HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+ownToken+"\r\nTransfer-Encoding: chunked\r\n\r\n")
	require.NoError(t, err)
	load := make(chan map[int]int, 1)
	ready := make(chan struct{})
	go func() {
		count := map[int]int{}
		for i := 0; ; i++ {
			c, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", s.addr)
			if err != nil {
				load <- count
				return
			}
			if _, err = fmt.Fprint(c, "GET /spec/own HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+ownToken+"\r\nConnection: close\r\n\r\n"); err == nil {
				got, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err == nil {
					body, err := io.ReadAll(got.Body)
					if err != nil || !strings.HasSuffix(string(body), "}") {
						count[0]++ // an answer that ends too early
					}
					_ = got.Body.Close()
					count[got.StatusCode]++
				}
			}
			_ = c.Close()
			if i == 20 {
				close(ready)
			}
		}
	}()
	<-ready
	began := time.Now()
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	require.Eventually(t, func() bool { // it takes no more connections
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.addr)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	}, time.Minute, time.Millisecond)
	_, err = fmt.Fprint(under, "0\r\n\r\n")
	require.NoError(t, err)
	got, err := http.ReadResponse(bufio.NewReader(under), nil)
	require.NoError(t, err)
	defer func() { _ = got.Body.Close() }()
	body, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	require.Equal(t, 200, got.StatusCode)
	require.Contains(t, string(body), "canary-secret-of-own")
	require.NoError(t, <-stopped)
	require.Less(t, time.Since(began), time.Minute, "it does not hang")
	count := <-load
	require.Zero(t, count[0])
	require.Len(t, count, 1, "every answer is whole: %v", count)
}

// A client that says nothing costs one goroutine.
func TestSilentClientsAreCheap(t *testing.T) {
	s := started(t)
	require.Equal(t, 200, s.ask("GET", "/health").status)
	s.client.CloseIdleConnections()
	before := runtime.NumGoroutine()
	for range 100 {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.addr)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() >= before+90 }, 5*time.Minute, time.Millisecond)
	require.LessOrEqual(t, runtime.NumGoroutine(), before+105)
	require.Equal(t, 200, s.ask("GET", "/health").status)
}

// Every byte of every kind of credential matters, under each method, from a network of the posture and
// from elsewhere, and at each endpoint that takes it.
func TestEveryByteMatters(t *testing.T) {
	s := serveLimits(t, unlimited())
	for _, network := range []string{"127.0.0.1/32", "192.0.2.0/24"} {
		changed := site()
		changed.Postures["net"].Auth.Networks = []string{network}
		changed.Manifests["web"].Nodes = append(changed.Manifests["web"].Nodes, &model.Node{Name: "inner", Spec: "own", Type: "pve"})
		s.publish(network, changed)
		for _, c := range []struct{ method, path, credential, right string }{
			{"GET", "/spec/net", netToken, "200 "},
			{"GET", "/spec/net", tokenOfSite, "200 "},
			{"GET", "/spec/net", s.mint(s.keys[0], "net"), "200 "},
			{"GET", "/spec/site", tokenOfSite, "200 "},
			{"GET", "/spec/site", s.mint(s.keys[1], "site"), "200 "},
			{"GET", "/spec/own", ownToken, "200 "},
			{"GET", "/spec/own", s.mint(s.keys[1], "own"), "200 "},
			{"GET", "/specs", tokenOfSite, "200 "},
			{"GET", "/agent/plan9-arm", s.mint(s.keys[0], "own"), "404 E200"},
			{"GET", "/agent/plan9-arm", tokenOfSite, "404 E200"},
			{"GET", "/site.git/raw/HEAD/x", s.mint(s.keys[0], "inner"), "404 E200"},
			{"GET", "/site.git/raw/HEAD/x", string(s.access.Repository), "404 E200"},
			{"GET", "/wait/own", s.mint(s.keys[0], "own"), "200 "},
			{"POST", "/report/own", s.mint(s.keys[0], "own"), "422 E400"},
			{"GET", "/status", string(s.access.Read), "200 "},
			{"GET", "/metrics", string(s.access.Read), "200 "},
			{"POST", "/reconcile", string(s.access.Operator), "202 "},
		} {
			ask := func(credential string) string {
				got := s.ask(c.method, c.path, append(bearer(credential), "If-None-Match", `"other"`)...)
				return fmt.Sprint(got.status, " ", got.code())
			}
			require.Equal(t, c.right, ask(c.credential), "%s %s", c.method, c.path)
			for i := range len(c.credential) {
				b := c.credential[i] ^ 1
				changed := c.credential[:i] + string(b) + c.credential[i+1:]
				require.Equal(t, badToken(changed), ask(changed), "%s %s, byte %d", c.method, c.path, i)
			}
			for _, changed := range []string{c.credential[:len(c.credential)-1], c.credential + "0"} {
				require.Equal(t, badToken(changed), ask(changed), "%s %s", c.method, c.path)
			}
		}
	}
}

// The program and the repository need a valid credential, also where the posture of a node lets its network fetch specs: clients
// that need them have a token.
func TestDownloadsUnderEveryMethod(t *testing.T) {
	s := withRepository(t)
	expired, err := s.keys[0].MintToken(keys.Claims{Node: "inner", Spec: "base", Issued: 1, Expires: 2})
	require.NoError(t, err)
	const refs, program = "/site.git/info/refs?service=git-upload-pack", "/agent/plan9-arm"
	require.Equal(t, 200, s.ask(http.MethodGet, "/spec/net").status, "from this network specs need nothing")
	for _, c := range []struct{ name, credential, repository, program string }{
		{"none", "", "401 E300", "401 E300"},
		{"expired", expired, "401 E303", "401 E303"},
		{"a dropped key", s.mint(keys.NewKey(), "inner"), "401 E301", "401 E301"},
		{"the older key", s.mint(s.keys[1], "inner"), "200 ", "404 E200"},
		{"a node under network", s.mint(s.keys[0], "net"), "403 E302", "404 E200"},
		{"its token of the site", netToken, "403 E302", "404 E200"},
		{"a node under site_token", s.mint(s.keys[0], "site"), "403 E302", "404 E200"},
		{"a node under node_token", s.mint(s.keys[0], "own"), "403 E302", "404 E200"},
	} {
		for path, want := range map[string]string{refs: c.repository, program: c.program} {
			var headers []string
			if c.credential != "" {
				headers = bearer(c.credential)
			}
			got := s.ask(http.MethodGet, path, headers...)
			require.Equal(t, want, fmt.Sprint(got.status, " ", got.code()), "%s: %s", c.name, path)
		}
	}
}

// The whole life of a node's tokens, over the wire: it joins, renews, is revoked, and joins again.
func TestS8TokensOverTheWire(t *testing.T) {
	s := serveLimits(t, unlimited())
	clock := func() time.Time { return time.Unix(s.now.Load(), 0) }
	ring, err := keys.Folder(s.dir).Ensure(clock())
	require.NoError(t, err)
	book, err := keys.Folder(s.dir).OpenBook()
	require.NoError(t, err)
	c, found := MakeCatalog(CatalogInput{Site: site(), Commit: "a", Policies: s.set})
	require.Empty(t, found)
	s.Publish(View{Catalog: c, Keys: ring.Tokens(), Book: book, Access: s.access, Pins: s.pins})
	mint := func() string {
		m, err := keys.Folder(s.dir).Mint("own", "own", keys.TokenLifetime, clock())
		require.NoError(t, err)
		return m.Token
	}
	fetch := func(text string) (next string) {
		t.Helper()
		got := s.ask("GET", "/spec/own", bearer(text)...)
		require.Equal(t, 200, got.status, got.body)
		var sent struct{ Token string }
		require.NoError(t, json.Unmarshal([]byte(got.body), &sent))
		return sent.Token
	}
	waits := func(text string) string {
		t.Helper()
		got := s.ask("GET", "/wait/own", append(bearer(text), "If-None-Match", `"other"`)...)
		require.Equal(t, 200, got.status, got.body)
		var sent done
		require.NoError(t, json.Unmarshal([]byte(got.body), &sent))
		return sent.Status
	}
	join := mint()
	require.Equal(t, "token", waits(join), "it is to get its own first")
	own := fetch(join)
	require.NotEmpty(t, own)
	require.Empty(t, fetch(own))
	require.Equal(t, "spec", waits(own))
	s.now.Add(61)
	got := s.ask("GET", "/spec/own", bearer(join)...)
	require.Equal(t, "E301", got.code())
	require.Contains(t, s.log.String(), "valid for one use")

	s.now.Add(8 * 24 * 3600) // it was off for a week
	require.Equal(t, "token", waits(own))
	next := fetch(own)
	require.NotEmpty(t, next)
	require.Empty(t, fetch(next))
	require.Equal(t, "E303", s.ask("GET", "/spec/own", bearer(own)...).code(), "of the two only the newer one was renewed")

	_, err = keys.Folder(s.dir).Revoke("own", clock())
	require.NoError(t, err)
	for _, path := range []string{"/spec/own", "/wait/own", "/agent/linux-amd64", "/site.git/info/refs?service=git-upload-pack"} {
		require.Equal(t, "E301", s.ask("GET", path, bearer(next)...).code(), path)
	}
	require.Equal(t, 200, s.ask("GET", "/spec/own", bearer(ownToken)...).status, "a token of the site is its own matter")
	require.NotEmpty(t, fetch(mint()))
}

const keyOfRepository = "6d0f8e2b4c-canary-key-of-the-repository"

// withRepository is a server that has all there is: a host of its own, inner, and the repository.
func withRepository(t *testing.T) *served {
	t.Helper()
	s := serveLimits(t, unlimited())
	with := site()
	with.Manifests["web"].Nodes = append(with.Manifests["web"].Nodes, &model.Node{Name: "inner", Spec: "own", Type: "pve"})
	remote := sourcetest.New(t)
	id := remote.Commit(map[string]string{"site.hcl": "site {}\n", "sub/a.txt": "a\n"}, "one")
	repo, err := source.OpenRepository(source.Options{URL: remote.URL(), Dir: t.TempDir()})
	require.NoError(t, err)
	_, err = repo.Head(t.Context())
	require.NoError(t, err)
	snapshot, err := repo.Snapshot(gitserve.Content{Branch: "main", InForce: id, LastGood: id})
	require.NoError(t, err)
	made, found := MakeCatalog(CatalogInput{Site: with, Commit: id, Policies: s.set})
	require.Empty(t, found)
	s.Publish(View{Catalog: made, Keys: s.keys, Pins: s.pins, Repository: snapshot, Access: keys.Access{Repository: []byte(keyOfRepository)}})
	return s
}

// sent is the answer to a request with a value of Authorization.
func (s *served) sent(method, path, authorization string) answer {
	s.t.Helper()
	header := ""
	if authorization != "" {
		header = "Authorization: " + authorization + "\r\n"
	}
	return s.raw(method + " " + path + " HTTP/1.1\r\nHost: x\r\n" + header + "Content-Length: 0\r\nConnection: close\r\n\r\n")
}

// The repository is for its key and for children, the program for all clients with a
// valid credential.
func TestAccessToDownloads(t *testing.T) {
	s := withRepository(t)
	basic := func(password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte("git:"+password))
	}
	const refs, raw = "/site.git/info/refs?service=git-upload-pack", "/site.git/raw/HEAD/sub/a.txt"
	other := "/agent/plan9-arm"
	for _, x := range []struct{ name, authorization, repository, agent string }{
		{"nothing", "", "401 E300", "401 E300"},
		{"malformed", "Bearer", "401 E300", "401 E300"},
		{"no password", basic(""), "401 E300", "401 E300"},
		{"a guess", "Bearer x", "401 E301", "401 E301"},
		{"a guessed password", basic("x"), "401 E301", "401 E300"},
		{"the key", "Bearer " + keyOfRepository, "200 ", "401 E301"},
		{"the key as a password", basic(keyOfRepository), "200 ", "401 E300"},
		{"almost the key", "Bearer " + keyOfRepository[1:], "401 E301", "401 E301"},
		{"the token of a child", "Bearer " + s.mint(s.keys[0], "inner"), "200 ", "404 E200"},
		{"it as a password", basic(s.mint(s.keys[1], "inner")), "200 ", "401 E300"},
		{"the token of a VM", "Bearer " + s.mint(s.keys[0], "own"), "403 E302", "404 E200"},
		{"the token of a node that is not deployed", "Bearer " + s.mint(s.keys[0], "gone"), "403 E302", "404 E200"},
		{"the token of a suspended node", "Bearer " + s.mint(s.keys[0], "cold"), "403 E302", "404 E200"},
		{"the site's token for a VM", "Bearer " + ownToken, "403 E302", "404 E200"},
		{"the site's token", "Bearer " + tokenOfSite, "403 E302", "404 E200"},
	} {
		for path, want := range map[string]string{refs: x.repository, raw: x.repository, other: x.agent} {
			got := s.sent(http.MethodGet, path, x.authorization)
			require.Equal(t, want, fmt.Sprint(got.status, " ", got.code()), "%s: %s: %s", x.name, path, got.body)
			if challenges := got.header.Values("WWW-Authenticate"); got.status == 401 && path != other {
				require.Len(t, challenges, 2)
				require.True(t, strings.HasPrefix(challenges[1], "Basic "), "or git does not ask for a password")
			}
		}
	}
	require.Equal(t, "a\n", s.sent(http.MethodGet, raw, basic(keyOfRepository)).body)
	require.Equal(t, 404, s.sent(http.MethodGet, "/site.git/raw/HEAD/secrets.yaml", "Bearer "+keyOfRepository).status)
	require.Equal(t, 415, s.sent(http.MethodPost, "/site.git/git-upload-pack", "Bearer "+keyOfRepository).status)
	require.Equal(t, 405, s.sent(http.MethodPost, raw, "Bearer "+keyOfRepository).status)
	require.Equal(t, 404, s.sent(http.MethodPost, "/site.git/git-receive-pack", "Bearer "+keyOfRepository).status)
	require.Equal(t, 413, s.raw("POST /site.git/git-upload-pack HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n").status)
	require.Contains(t, s.log.String(), "credential="+"repository_key")
}

// A server without a repository says why, to those who may have it.
func TestNoRepository(t *testing.T) {
	s := started(t)
	s.publishWith(func(v *View) {
		v.NoRepository, v.Access.Repository = "the site folder is not a checkout of git", []byte(keyOfRepository)
	})
	got := s.sent(http.MethodGet, "/site.git/info/refs?service=git-upload-pack", "Bearer "+keyOfRepository)
	require.Equal(t, "404 E200", fmt.Sprint(got.status, " ", got.code()))
	require.Contains(t, got.body, "the repository is not served: the site folder is not a checkout of git")
	require.Equal(t, 401, s.sent(http.MethodGet, "/site.git/info/refs", "").status, "who may not have it does not learn that")
}

// publishWith publishes the usual site with something changed.
func (s *served) publishWith(change func(*View)) {
	s.t.Helper()
	c, found := MakeCatalog(CatalogInput{Site: site(), Commit: "3f2c1a9", Policies: s.set})
	require.Empty(s.t, found)
	v := View{Catalog: c, Keys: s.keys, Pins: s.pins}
	change(&v)
	s.Publish(v)
}

// The spec says which program to expect, and the server sends that one.
func TestProgram(t *testing.T) {
	name := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(name, []byte("the program"), 0o700))
	p, err := OpenProgram(name)
	require.NoError(t, err)
	s := serveProgram(t, unlimited(), p)
	s.publish("3f2c1a9", site())
	path := "/agent/" + ProgramSystem()
	bearer := "Bearer " + s.mint(s.keys[0], "own")
	got := s.sent(http.MethodGet, path, bearer)
	require.Equal(t, 200, got.status, got.body)
	require.Equal(t, "the program", got.body)
	var spec struct{ Agent map[string]string }
	require.NoError(t, json.Unmarshal([]byte(s.sent(http.MethodGet, wire.SpecPath.Of("own"), bearer).body), &spec))
	require.Equal(t, `"`+spec.Agent[ProgramSystem()]+`"`, got.header.Get("ETag"))
	require.Empty(t, s.sent(http.MethodHead, path, bearer).body)
	for other, want := range map[string]int{"/agent/plan9-arm": 404, path + "/": 404, "/agent/../" + ProgramSystem(): 404, "/agent/": 404, "/agent": 404} {
		require.Equal(t, want, s.sent(http.MethodGet, other, bearer).status, other)
	}
}
