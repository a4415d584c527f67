package images_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/images"
)

// origin is a web server in memory. It counts what it sent in full or as a range, without the single bytes that ask for a size.
type origin struct {
	files    map[string]string // by path
	cut      int               // bytes after which each answer is cut; 0: none is
	ranges   bool
	status   int // of each answer but for the first of each file; 0: the usual one
	requests []string
}

func (o *origin) RoundTrip(r *http.Request) (*http.Response, error) {
	content, has := o.files[r.URL.Path]
	asked := r.Header.Get("Range")
	if !o.ranges {
		r.Header.Del("Range")
	}
	out := httptest.NewRecorder()
	switch {
	case !has:
		http.NotFound(out, r)
	case o.status != 0 && asked != "bytes=0-0":
		out.WriteHeader(o.status)
	default:
		http.ServeContent(out, r, "", time.Time{}, strings.NewReader(content))
	}
	answer := out.Result()
	answer.Request = r
	if asked != "bytes=0-0" {
		o.requests = append(o.requests, r.URL.Path+" "+asked)
		if o.cut > 0 {
			answer.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(io.LimitReader(answer.Body, int64(o.cut)), broken{}), answer.Body}
		}
	}
	return answer, nil
}

// broken is a connection that was cut.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func sumOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// text is a content that is nowhere as it is elsewhere.
func text(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%d ", i)
	}
	return b.String()[:n]
}

func TestDownload(t *testing.T) {
	all := text(10_000)
	for name, c := range map[string]struct {
		origin   origin
		urls     string
		requests []string
		problem  string
	}{
		"whole": {origin{ranges: true, files: map[string]string{"/a": all}}, "a", []string{"/a "}, ""},
		"parts": {origin{ranges: true, files: map[string]string{"/a": all[:3000], "/b": "", "/c": all[3000:]}}, "a b c", []string{"/a ", "/c "}, ""},
		"cut":   {origin{ranges: true, cut: 4000, files: map[string]string{"/a": all}}, "a", []string{"/a ", "/a bytes=4000-", "/a bytes=8000-"}, ""},
		"parts, cut": {
			origin{ranges: true, cut: 2500, files: map[string]string{"/a": all[:3000], "/b": all[3000:]}},
			"a b",
			[]string{"/a ", "/a bytes=2500-", "/b ", "/b bytes=2500-", "/b bytes=5000-"},
			"",
		},
		"without ranges": {origin{files: map[string]string{"/a": all[:9000], "/b": all[9000:]}}, "a b", []string{"/a ", "/b "}, ""},
		"other content":  {origin{ranges: true, files: map[string]string{"/a": all[1:] + "x"}}, "a", []string{"/a "}, "the checksum is wrong"},
		"wrong order":    {origin{ranges: true, files: map[string]string{"/a": all[5000:], "/b": all[:5000]}}, "a b", []string{"/a ", "/b "}, "the checksum is wrong"},
		"missing":        {origin{files: map[string]string{"/a": all}}, "a b", nil, "https://o.test/b: the server answers 404"},
		"overloaded":     {origin{ranges: true, status: 503, files: map[string]string{"/a": all}}, "a", []string{"/a ", "/a ", "/a ", "/a ", "/a "}, "at byte 0 of 10000: https://o.test/a: the server answers 503"},
		"forbidden":      {origin{ranges: true, status: 403, files: map[string]string{"/a": all}}, "a", []string{"/a "}, "at byte 0 of 10000: https://o.test/a: the server answers 403"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := images.Image{Sum: sumOf(all)}
				for u := range strings.FieldsSeq(c.urls) {
					i.URLs = append(i.URLs, "https://o.test/"+u)
				}
				var got []byte
				s, err := newNear(&c.origin).Download(t.Context(), i)
				if err == nil {
					require.EqualValues(t, len(all), s.Size)
					got, err = io.ReadAll(s)
					require.NoError(t, s.Close())
				}
				require.Equal(t, c.requests, c.origin.requests)
				if c.problem != "" {
					require.ErrorContains(t, err, c.problem)
					return
				}
				require.NoError(t, err)
				require.Equal(t, all, string(got))
			})
		})
	}
}
