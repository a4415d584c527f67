package serve_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// pkt makes packets; "" is a flush packet.
func pkt(lines ...string) string {
	var b strings.Builder
	for _, l := range lines {
		if l == "" {
			b.WriteString("0000")
		} else {
			fmt.Fprintf(&b, "%04x%s", len(l)+4, l)
		}
	}
	return b.String()
}

// post sends a request to upload-pack.
func (w *world) post(t testing.TB, body string, header ...string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/git-upload-pack", strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(text)
}

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.String()
}

// Problems of a request are reported in the form of the protocol, which git shows.
func TestRefusedRequests(t *testing.T) {
	w := newWorld(t, serve.HandlerOptions{})
	nothing := "no commit is in force yet; try again"
	_, _, body := get(t, w.url+"/info/refs?service=git-upload-pack")
	require.Equal(t, pkt("# service=git-upload-pack\n", "", "ERR "+nothing+"\n"), body)
	_, body = w.post(t, pkt("want "+strings.Repeat("1", 40)+"\n", "", "done\n"))
	require.Equal(t, pkt("ERR "+nothing+"\n"), body)

	old := w.push(map[string]string{"site.hcl": "# zero\n"})
	w.push(map[string]string{"site.hcl": "# one\n"})
	w.push(map[string]string{"site.hcl": "# two\n"})
	hidden := w.repo.Side(w.head, map[string]string{"site.hcl": "# hidden\n"}, "not served")
	want := "want " + w.head
	id := strings.Repeat("a", 40)
	for body, message := range map[string]string{
		pkt("want "+hidden+"\n", "", "done\n"):               "upload-pack: not our ref " + hidden + ": only the commit in force and the last good one are served; fetch again",
		pkt(want+"\n", "want "+hidden+"\n", "", "done\n"):    "upload-pack: not our ref " + hidden + ": only the commit in force and the last good one are served; fetch again",
		pkt("want "+w.head[:39]+"\n", "", "done\n"):          fmt.Sprintf("%q is not an id of a commit", w.head[:39]),
		pkt("want refs/heads/main\n", "", "done\n"):          `"refs/heads/main" is not an id of a commit`,
		pkt("have "+id+"\n", "", "done\n"):                   `expected a commit that you want, got "have ` + id + `"`,
		pkt(want+"\n", "", "want "+id+"\n"):                  `expected a commit that you have, got "want ` + id + `"`,
		pkt(want+"\n", "", "have x\n"):                       `"x" is not an id of a commit`,
		pkt(want+"\n", "shallow x\n", "", "done\n"):          `"x" is not an id of a commit`,
		pkt(want+"\n", "deepen 0\n", "", "done\n"):           `"0" is not a depth`,
		pkt(want+"\n", "deepen -1\n", "", "done\n"):          `"-1" is not a depth`,
		pkt(want+"\n", "deepen 99999999999\n", "", "done\n"): `"99999999999" is not a depth`,
		pkt(want+"\n", "deepen-since 1\n", "", "done\n"):     "deepen-since is not supported here; use --depth, or nothing",
		pkt(want+"\n", "filter blob:none\n", "", "done\n"):   "filter is not supported here; use --depth, or nothing",
		pkt(want + "\n"):     "the request ends before its flush packet",
		"zzzz":               "the request does not consist of git protocol packets",
		"0003":               "the request does not consist of git protocol packets",
		"0032want":           "the request does not consist of git protocol packets",
		pkt("ERR from me\n"): "the request does not consist of git protocol packets",
		pkt(want+"\n", "") + strings.Repeat(pkt("have "+id+"\n"), 32<<10+1): "more than 32768 commits are named as known; clone again",
	} {
		if strings.HasPrefix(message, "more") {
			continue // below
		}
		status, answer := w.post(t, body)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, pkt("ERR "+message+"\n"), answer, "%.200q", body)
	}
	many := pkt(want+"\n", "") + strings.Repeat(pkt("have "+id+"\n"), 32<<10+1)
	_, answer := w.post(t, zipped(many), "Content-Encoding", "gzip")
	require.Equal(t, pkt("ERR more than 32768 commits are named as known; clone again\n"), answer)
	lots := pkt(want + "\n")
	for n := range 65 {
		lots += pkt(fmt.Sprintf("want %040x\n", n))
	}
	_, answer = w.post(t, lots+pkt("", "done\n"))
	require.Equal(t, pkt("ERR more than 64 commits are asked for\n"), answer)
	lots = pkt(want + "\n")
	for n := range 5000 {
		lots += pkt(fmt.Sprintf("shallow %040x\n", n))
	}
	_, answer = w.post(t, lots+pkt("", "done\n"))
	require.Equal(t, pkt("ERR more than 4096 commits have no parents on your side; clone again\n"), answer)

	status, answer := w.post(t, "0000")
	require.Equal(t, http.StatusOK, status)
	require.Empty(t, answer, "a client that has everything")
	_ = old
}

// A request that is not of git gets an answer of plain http.
func TestRefusedHTTP(t *testing.T) {
	w := newWorld(t, serve.HandlerOptions{})
	w.push(map[string]string{"site.hcl": "# one\n"})
	flood := strings.Repeat("0000", serve.MostRequest/4+1)
	endless := pkt("want "+w.head+"\n", "") + strings.Repeat(pkt("have "+w.head+"\n"), serve.MostRequest/50+1)
	for name, c := range map[string]struct {
		status int
		body   string
		header []string
	}{
		"other type":           {415, "0000", []string{"Content-Type", "text/plain"}},
		"other compression":    {415, "0000", []string{"Content-Encoding", "zstd"}},
		"not compressed":       {400, "0000", []string{"Content-Encoding", "gzip"}},
		"cut":                  {400, zipped(endless)[:60], []string{"Content-Encoding", "gzip"}},
		"too long, after end":  {200, flood, nil},
		"bomb, after end":      {200, zipped(flood + flood), []string{"Content-Encoding", "gzip"}},
		"compressed":           {200, zipped(pkt("want "+w.head+"\n", "", "done\n")), []string{"Content-Encoding", "x-gzip"}},
		"compressed with caps": {200, zipped(pkt("want "+w.head+"\n", "", "done\n")), []string{"Content-Encoding", "GZIP", "Content-Type", "Application/X-Git-Upload-Pack-Request; x=y"}},
	} {
		status, answer := w.post(t, c.body, c.header...)
		require.Equal(t, c.status, status, "%s: %.100q", name, answer)
	}
	// Packets of the largest size reach the limit of bytes before that of their number.
	large := pkt("want "+w.head+"\n") + strings.Repeat(pkt("shallow "+strings.Repeat("1", 40)+strings.Repeat("\n", 1)), 10)
	huge := large + strings.Repeat(pkt("want "+w.head+" "+strings.Repeat("x", 60000)+"\n"), 40)
	for _, c := range []struct {
		body   string
		header []string
	}{{huge, nil}, {zipped(huge), []string{"Content-Encoding", "gzip"}}} {
		status, answer := w.post(t, c.body, c.header...)
		require.Equal(t, 413, status, "%.100q", answer)
		require.Contains(t, answer, "the request has more than 2048 KiB")
	}

	for target, want := range map[string]struct {
		method string
		status int
		allow  string
	}{
		"/site.git/info/refs":                            {"GET", 403, ""},
		"/site.git/info/refs?service=git-upload-archive": {"GET", 403, ""},
		"/site.git/info/refs?service=git-upload-pack":    {"POST", 405, "GET, HEAD"},
		"/site.git/git-upload-pack":                      {"GET", 405, "POST"},
		"/site.git/raw/HEAD/site.hcl":                    {"PUT", 405, "GET, HEAD"},
		"/site.git/git-receive-pack":                     {"POST", 404, ""},
		"/site.git/HEAD":                                 {"GET", 404, ""},
		"/site.git/objects/info/packs":                   {"GET", 404, ""},
		"/site.git/":                                     {"GET", 404, ""},
		"/site.git":                                      {"GET", 404, ""},
		"/site.gitx/info/refs":                           {"GET", 404, ""},
		"/site.git/info%2frefs?service=git-upload-pack":  {"GET", 404, ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), want.method, w.base+target, nil)
		require.NoError(t, err)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, want.status, res.StatusCode, target)
		require.Equal(t, want.allow, res.Header.Get("Allow"), target)
	}
	_, _, body := get(t, w.url+"/info/refs?service=git-receive-pack")
	require.Contains(t, body, "ERR this repository is read-only")
}

// A poll of an unchanged head need not carry the list of refs.
func TestUnchangedHead(t *testing.T) {
	w := newWorld(t, serve.HandlerOptions{})
	w.push(map[string]string{"site.hcl": "# one\n"})
	poll := func(tag string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/info/refs?service=git-upload-pack", nil)
		require.NoError(t, err)
		req.Header.Set("If-None-Match", tag)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		if res.StatusCode == http.StatusNotModified {
			require.Empty(t, text)
		}
		return res.StatusCode, res.Header.Get("ETag")
	}
	status, tag := poll("")
	require.Equal(t, http.StatusOK, status)
	status, same := poll(tag)
	require.Equal(t, http.StatusNotModified, status)
	require.Equal(t, tag, same)
	w.good = w.head
	w.publish()
	status, other := poll(tag)
	require.Equal(t, http.StatusOK, status)
	require.NotEqual(t, tag, other)
}

// Any request gets an answer in the form of the protocol, and never one of another commit.
func FuzzUploadPack(f *testing.F) {
	w := newWorld(f, serve.HandlerOptions{})
	w.good = w.push(map[string]string{"site.hcl": "# one\n"})
	w.push(map[string]string{"site.hcl": "# two\n"})
	want := "want " + w.head
	for _, body := range []string{
		"0000", "", pkt(want+"\n", "", "done\n"), pkt(want+" multi_ack_detailed no-done side-band-64k\n", "", "have "+w.good+"\n", "have "+strings.Repeat("1", 40)+"\n", ""),
		pkt(want+" side-band\n", "want "+w.good+"\n", "shallow "+w.good+"\n", "deepen 2\n", "", "have "+w.good+"\n", "done\n"), pkt(want+" multi_ack\n", "deepen 1\n", ""),
		pkt("want "+strings.Repeat("0", 40)+"\n", "", "done\n"), "zzzz", "0004", "0001", "fff0" + want,
	} {
		f.Add([]byte(body))
	}
	first, err := http.NewRequest(http.MethodPost, "/site.git/git-upload-pack", nil)
	require.NoError(f, err)
	first.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	f.Fuzz(func(t *testing.T, body []byte) {
		r := first.Clone(t.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
		out := &answer{header: http.Header{}}
		w.handler.ServeHTTP(out, r)
		require.Zero(t, out.status, "%q", out.String())
		text := out.String()
		for len(text) > 0 && !strings.HasPrefix(text, "PACK") {
			var n int
			_, err := fmt.Sscanf(text[:min(4, len(text))], "%04x", &n)
			require.NoError(t, err, "%q", out.String())
			require.LessOrEqual(t, n, len(text))
			text = text[max(n, 4):]
		}
	})
}

// answer is a ResponseWriter without a network.
type answer struct {
	bytes.Buffer
	header http.Header
	status int // 0 if it is not set
}

func (a *answer) Header() http.Header    { return a.header }
func (a *answer) WriteHeader(status int) { a.status = status }

// A wrapping handler formats refusals itself: nothing is written before.
func TestRefusalsAreErrors(t *testing.T) {
	w := newWorld(t, serve.HandlerOptions{})
	w.push(map[string]string{"site.hcl": "# one\n"})
	for path, want := range map[string]int{"raw/HEAD/nothing": 404, "raw/HEAD/../x": 400, "git-upload-pack": 405, "x": 404, "info/refs": 403} {
		r, err := http.NewRequest(http.MethodGet, "/site.git/"+path, nil)
		require.NoError(t, err)
		out := &answer{header: http.Header{}}
		var refused *serve.RefusalError
		require.ErrorAs(t, w.handler.Serve(out, r), &refused)
		require.Equal(t, want, refused.Status)
		require.NotEmpty(t, refused.Hint)
		require.Zero(t, out.Len())
		require.Zero(t, out.status)
	}
}

// canary is in files outside of what is served.
const canary = "canary-4b1d"

// wire sends a request as these bytes, and reads the status and the body of the answer.
func wire(t testing.TB, address, request string) (status int, body string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	_, err = io.WriteString(c, request)
	require.NoError(t, err)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(text)
}

// rawWorld has a file that is served, and canaries everywhere else.
func rawWorld(t testing.TB) *world {
	w := newWorld(t, serve.HandlerOptions{Bounds: serve.Options{MostFile: 1 << 20}})
	w.good = w.push(map[string]string{"site.hcl": "# good\n"})
	outside := filepath.Join(t.TempDir(), canary)
	require.NoError(t, os.WriteFile(outside, []byte(canary), 0o600))
	w.push(map[string]string{
		"site.hcl": "# now\n", "hosts/pve 1.hcl": "# host\n", "run.sh": sourcetest.Exec + "true\n", "a%2eb.hcl": "# an odd name\n", "ü.hcl": "# ü\n",
		"link.hcl": sourcetest.Link + "site.hcl", "out": sourcetest.Link + outside, "up": sourcetest.Link + "../../..", "folder": sourcetest.Link + "hosts",
		"module": sourcetest.Submodule + strings.Repeat("1", 40), "large.bin": strings.Repeat("x", 1<<20+1),
	})
	w.repo.SetBranch("other", w.repo.Side(w.head, map[string]string{"site.hcl": canary}, "not served"))
	return w
}

func TestRaw(t *testing.T) {
	w := rawWorld(t)
	for path, want := range map[string]string{
		"HEAD/site.hcl": "# now\n", "main/site.hcl": "# now\n", w.head + "/site.hcl": "# now\n",
		"last-good/site.hcl": "# good\n", w.good + "/site.hcl": "# good\n",
		"HEAD/hosts/pve%201.hcl": "# host\n", "HEAD/run.sh": "true\n", "HEAD/a%252eb.hcl": "# an odd name\n", "HEAD/%C3%BC.hcl": "# ü\n",
	} {
		status, header, body := get(t, w.url+"/raw/"+path)
		require.Equal(t, http.StatusOK, status, path)
		require.Equal(t, want, body, path)
		require.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
		require.Equal(t, fmt.Sprint(len(want)), header.Get("Content-Length"))
	}
	_, header, _ := get(t, w.url+"/raw/HEAD/site.hcl")
	require.Equal(t, "text/plain; charset=utf-8", header.Get("Content-Type"))
	again, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/raw/HEAD/site.hcl", nil)
	require.NoError(t, err)
	for tag, status := range map[string]int{header.Get("ETag"): 304, `W/` + header.Get("ETag"): 304, `"other", ` + header.Get("ETag"): 304, "*": 304, `"other"`: 200} {
		again.Header.Set("If-None-Match", tag)
		res, err := http.DefaultClient.Do(again)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, status, res.StatusCode, tag)
	}
	res, err := http.Head(w.url + "/raw/HEAD/site.hcl")
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, int64(6), res.ContentLength)

	for path, want := range map[string]int{
		"HEAD/nothing.hcl": 404, "HEAD/hosts": 404, "HEAD/site.hcl/x": 404, "HEAD/large.bin": 413, "other/site.hcl": 404, "refs/heads/main/site.hcl": 404,
		"HEAD/link.hcl": 404, "HEAD/out": 404, "HEAD/up/etc/passwd": 404, "HEAD/folder/pve%201.hcl": 404, "HEAD/module": 404, "HEAD/module/x": 404,
		"HEAD": 400, "HEAD/": 400, "": 400, w.head[:12] + "/site.hcl": 404, strings.Repeat("0", 40) + "/site.hcl": 404, w.repo.Head()[:39] + "g/site.hcl": 404,
		"HEAD/" + strings.Repeat("a/", 2500): 400,
	} {
		status, _, body := get(t, w.url+"/raw/"+path)
		require.Equal(t, want, status, "%s: %s", path, body)
		require.NotContains(t, body, canary)
	}
}

// traversals are paths that could lead out of a repository, as they are on the wire.
func traversals() []string {
	var out []string
	for _, up := range []string{
		"..", "%2e%2e", ".%2e", "%2E.", "%252e%252e", "%25252e%25252e", "..%2f..", "..%2f..%2f..%2fetc", "%2e%2e%2f%2e%2e", "..%5c..", `..\..`, "..;", "%c0%ae%c0%ae",
		"%e0%80%ae%e0%80%ae", "..%00", "%00", "%2f", "%2fetc", "", ".", "%2e", "..%0d%0a", "%uff0e%uff0e", "....//", "objects", ".git", "%2egit", "..%252f..",
	} {
		out = append(out, "HEAD/"+up+"/etc/passwd", up+"/HEAD/site.hcl", "HEAD/"+up, "HEAD/hosts/"+up+"/"+up+"/"+up+"/etc/passwd", "main."+up+"/site.hcl")
	}
	return append(out, "/etc/passwd", "HEAD//etc/passwd", "HEAD/file:///etc/passwd", "HEAD/C:/windows", "HEAD/site.hcl%00.txt", "refs%2fheads%2fother/site.hcl",
		"refs/heads/../heads/other/site.hcl", "other/site.hcl", "HEAD~0/site.hcl", "HEAD^0/site.hcl", "HEAD:site.hcl/x", "@/site.hcl", "HEAD@{0}/site.hcl", "--output=x/site.hcl")
}

// Nothing outside of the tree can be named, with the bytes as they are on the wire: before
// this handler alone, and behind a mux, which has its own idea of paths.
func TestTraversal(t *testing.T) {
	w := rawWorld(t)
	mux := http.NewServeMux()
	mux.Handle(serve.RepositoryPrefix, w.handler)
	behind := httptest.NewServer(mux)
	t.Cleanup(behind.Close)
	for name, address := range map[string]string{"alone": strings.TrimPrefix(w.base, "http://"), "behind a mux": behind.Listener.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			ask := func(target string) (int, string) {
				return wire(t, address, "GET "+target+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			}
			status, body := ask("/site.git/raw/HEAD/site.hcl")
			require.Equal(t, http.StatusOK, status)
			require.Equal(t, "# now\n", body, "what is asked for rightly is served")
			for _, path := range traversals() {
				for _, target := range []string{"/site.git/raw/" + path, "http://x/site.git/raw/" + path, "/site.git/" + path, "/site.git/info/refs/../../" + path} {
					status, body := ask(target)
					require.GreaterOrEqual(t, status, 300, "%q: %s", target, body)
					require.Less(t, status, 500, "%q: %s", target, body)
					require.NotContains(t, body, canary, target)
					require.NotContains(t, body, "root:", target)
				}
			}
		})
	}
}

// The answer to any request is that of git, or there is none.
func FuzzRaw(f *testing.F) {
	for _, path := range traversals() {
		f.Add(path)
	}
	f.Add("HEAD/site.hcl")
	w := rawWorld(f)
	allowed := map[string]bool{"# now\n": true, "# good\n": true, "# host\n": true, "true\n": true, "# an odd name\n": true, "# ü\n": true}
	f.Fuzz(func(t *testing.T, path string) {
		r := httptest.NewRequest(http.MethodGet, "/site.git/raw/x", nil)
		r.URL.Path, r.URL.RawPath = "/site.git/raw/"+path, ""
		for range 2 { // decoded by a server, and as it came
			out := httptest.NewRecorder()
			w.handler.ServeHTTP(out, r)
			body := out.Body.String()
			require.NotContains(t, body, canary)
			if out.Code == http.StatusOK {
				require.True(t, allowed[body], "%q: %q", path, body)
			} else {
				require.Contains(t, []int{400, 404, 413}, out.Code)
			}
			r.URL.RawPath = "/site.git/raw/" + path
		}
	})
}

// noise is text that does not get smaller when it is compressed.
func noise(n int) string {
	b := make([]byte, n)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return string(b)
}

// ended reports each request that the handler is done with.
func ended(t *testing.T, w *world) (address string, end chan string) {
	t.Helper()
	end = make(chan string, 100)
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		defer func() { end <- r.Method }()
		w.handler.ServeHTTP(rw, r)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), end
}

func dial(t *testing.T, address, request string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, err = io.WriteString(c, request)
	require.NoError(t, err)
	return c
}

func postHead(length string) string {
	return "POST /site.git/git-upload-pack HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-git-upload-pack-request\r\nContent-Length: " + length + "\r\n\r\n"
}

// Clients that neither take nor send anything are cut off, and delay no other client.
func TestSlowClients(t *testing.T) {
	w := newWorld(t, serve.HandlerOptions{Quiet: 300 * time.Millisecond})
	w.push(map[string]string{"site.hcl": "# one\n", "noise": noise(8 << 20)})
	address, end := ended(t, w)
	request := pkt("want "+w.head+" side-band-64k\n", "", "done\n")
	const slow = 6
	require.Len(t, request, 77)
	for range slow {
		dial(t, address, postHead("77")+request) // and reads nothing
		dial(t, address, postHead("77")+request[:10])
	}
	_, answer := w.post(t, request)
	require.Greater(t, len(answer), 8<<20, "others get all of it meanwhile")
	for range 2 * slow {
		select {
		case <-end:
		case <-time.After(5 * time.Minute):
			t.Fatal("a request is still there")
		}
	}
}

// A request ends with its time, however slowly its client reads.
func TestTotalTime(t *testing.T) {
	w := newWorld(t, serve.HandlerOptions{Total: 300 * time.Millisecond})
	w.push(map[string]string{"site.hcl": "# one\n", "noise": noise(8 << 20)})
	address, end := ended(t, w)
	c := dial(t, address, postHead("77")+pkt("want "+w.head+" side-band-64k\n", "", "done\n"))
	read, done := 0, false
	buf := make([]byte, 4<<10)
	for tick := time.NewTicker(time.Millisecond); !done; {
		select {
		case <-end:
			done = true
		case <-tick.C:
			n, _ := c.Read(buf)
			read += n
		}
	}
	require.Less(t, read, 8<<20)
}

// An answer that cannot be completed is noticed by a client without side bands.
func TestCut(t *testing.T) {
	w := newWorld(t, serve.HandlerOptions{Bounds: serve.Options{MostPack: 1 << 20}})
	w.push(map[string]string{"noise": noise(2 << 20)})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/git-upload-pack", strings.NewReader(pkt("want "+w.head+"\n", "", "done\n")))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	res, err := http.DefaultClient.Do(req)
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	require.Error(t, err)
	needGit(t)
	out, err := tryGit("clone", "-q", w.url, t.TempDir())
	require.Error(t, err)
	require.Contains(t, out, "the request is for more than 1 MiB; use --depth 1")
}

// Many clients ask for the same at once: the pack is made once, and each gets all of it, over
// http/2 as well, where all share a connection.
func TestShared(t *testing.T) {
	w := newWorld(t, serve.HandlerOptions{})
	w.push(map[string]string{"site.hcl": "# one\n", "noise": noise(256 << 10)})
	s := httptest.NewUnstartedServer(w.handler)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	request := pkt("want "+w.head+"\n", "", "done\n")
	_, want := w.post(t, request)
	var wait sync.WaitGroup
	for range 50 {
		wait.Go(func() {
			res, err := s.Client().Post(s.URL+"/site.git/git-upload-pack", "application/x-git-upload-pack-request", strings.NewReader(request))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if res.ProtoMajor != 2 {
				t.Error(res.Proto)
			}
			text, err := io.ReadAll(res.Body)
			if err != nil || !bytes.Equal(text, []byte(want)) {
				t.Errorf("%v: %d bytes", err, len(text))
			}
		})
	}
	wait.Wait()
}
