package serve_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/serve"
)

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

// Clients that take nothing, or send nothing, are cut off, and nobody else waits for them.
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
