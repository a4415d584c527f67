package serve_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/serve"
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

// What is wrong with a request is said in the form of the protocol, which git shows.
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

// What is not git is answered as http has it.
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

// Whoever wraps the handler answers refusals in its own form: nothing is written before.
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
