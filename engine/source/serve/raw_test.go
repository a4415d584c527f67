package serve_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

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

// Whatever is asked for: the answer is the one of git, or there is none.
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
