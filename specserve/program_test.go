package specserve

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func opened(t *testing.T, text string) (p *Program, name string) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o700))
	p, err := OpenProgram(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p, name
}

// What is sent is what the checksum says, whatever becomes of the file.
func TestServe(t *testing.T) {
	p, name := opened(t, "one program")
	sum := sha256.Sum256([]byte("one program"))
	want := hex.EncodeToString(sum[:])
	require.Equal(t, map[string]string{runtime.GOOS + "-" + runtime.GOARCH: want}, p.Sums())
	next := name + ".next"
	require.NoError(t, os.WriteFile(next, []byte("another"), 0o700))
	require.NoError(t, os.Rename(next, name))

	get := func(method string, header ...string) *httptest.ResponseRecorder {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), method, "/agent/x", http.NoBody)
		if header != nil {
			r.Header.Set(header[0], header[1])
		}
		w := httptest.NewRecorder()
		require.NoError(t, p.Serve(w, r))
		return w
	}
	w := get(http.MethodGet)
	require.Equal(t, 200, w.Code)
	require.Equal(t, "one program", w.Body.String())
	require.Equal(t, `"`+want+`"`, w.Header().Get("ETag"))
	require.Equal(t, "11", w.Header().Get("Content-Length"))
	require.Empty(t, get(http.MethodHead).Body.String())
	require.Equal(t, 304, get(http.MethodGet, "If-None-Match", `"`+want+`"`).Code)
	part := get(http.MethodGet, "Range", "bytes=4-")
	require.Equal(t, 206, part.Code)
	require.Equal(t, "program", part.Body.String())
}

func TestOpenRefuses(t *testing.T) {
	_, err := OpenProgram(filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, err, "open the program to serve it")
	_, err = OpenProgram(t.TempDir())
	require.ErrorContains(t, err, "read the program to serve it")
}

// Clients that take nothing have the slots until they are cut off; the others have to come back.
func TestSlots(t *testing.T) {
	p, _ := opened(t, strings.Repeat("x", 32<<20))
	p.patient, p.quiet = time.Millisecond, time.Second
	answers := make(chan error, most+1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answers <- p.Serve(w, r) }))
	t.Cleanup(s.Close)
	get := func() io.Reader {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, http.NoBody)
		require.NoError(t, err)
		res, err := s.Client().Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = res.Body.Close() })
		return res.Body
	}
	var slow []io.Reader
	for range most {
		slow = append(slow, get())
	}
	get()
	require.ErrorIs(t, <-answers, errBusy)
	for range most {
		require.NoError(t, <-answers, "cut off")
	}
	_, err := io.ReadAll(slow[0])
	require.Error(t, err)
	body, err := io.ReadAll(get())
	require.NoError(t, err)
	require.Len(t, body, 32<<20)
}
