package images_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/images"
)

// roundTrip is a function as a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func at(path, content string) images.Image {
	return images.Image{Sum: sumOf(content), URLs: []string{"https://o.test/" + path}}
}

func newNear(web http.RoundTripper) *images.Near {
	return &images.Near{Web: web, Log: slog.New(slog.DiscardHandler)}
}

// read reads an image of a folder, which may have to be downloaded.
func read(t *testing.T, f *images.Folder, i images.Image) string {
	t.Helper()
	file, err := f.Get(t.Context(), i)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	b, err := io.ReadAll(file)
	require.NoError(t, err)
	return string(b)
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a, b, c := text(4000), text(4001), text(4002)
		web := &origin{ranges: true, files: map[string]string{"/a": a, "/b": b, "/c": c}}
		f := images.OpenFolder(dir, 9000, newNear(web))
		defer f.Close()
		_, err := f.Open(at("a", a))
		require.ErrorIs(t, err, images.ErrLoading)
		_, err = f.Open(at("a", a))
		require.ErrorIs(t, err, images.ErrLoading)
		require.Equal(t, a, read(t, f, at("a", a)))
		require.Equal(t, []string{"/a "}, web.requests, "two ask, one download")

		time.Sleep(time.Second)
		require.Equal(t, b, read(t, f, at("b", b)))
		time.Sleep(time.Second)
		old, err := f.Open(at("b", b))
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Equal(t, a, read(t, f, at("a", a))) // used later than b
		require.Equal(t, c, read(t, f, at("c", c)))
		require.NoFileExists(t, filepath.Join(dir, sumOf(b)), "used longest ago")
		require.FileExists(t, filepath.Join(dir, sumOf(a)))
		rest, err := io.ReadAll(old)
		require.NoError(t, err)
		require.Equal(t, b, string(rest), "it is read on")
		require.NoError(t, old.Close())

		web.files["/d"] = text(9001)
		_, err = f.Get(t.Context(), at("d", text(9001)))
		require.ErrorContains(t, err, "images_max allows 9000")
		web.requests = nil
		_, err = f.Get(t.Context(), at("a", "other"))
		require.ErrorContains(t, err, "the checksum is wrong")
		_, err = f.Open(at("a", "other"))
		require.ErrorContains(t, err, "the checksum is wrong", "it is not tried again at once")
		require.Len(t, web.requests, 1)
		require.NoFileExists(t, filepath.Join(dir, sumOf("other")+".part"))
	})
}

// Downloads at the same time stay within the limit together.
func TestFolderBoundsDownloads(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a, b := text(5000), text(5001)
		f := images.OpenFolder(dir, 9000, newNear(&origin{ranges: true, cut: 1000, files: map[string]string{"/a": a, "/b": b}}))
		defer f.Close()
		_, err := f.Open(at("a", a))
		require.ErrorIs(t, err, images.ErrLoading)
		synctest.Wait() // it pauses after the first cut
		_, err = f.Get(t.Context(), at("b", b))
		require.ErrorContains(t, err, "other downloads take what images_max allows, 9000")
		require.Equal(t, a, read(t, f, at("a", a)))
		time.Sleep(time.Minute)
		require.Equal(t, b, read(t, f, at("b", b)), "a went for it")
	})
}

// A download goes on where the agent ended in the middle of it.
func TestFolderGoesOn(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a := text(10_000)
		web := &origin{ranges: true, cut: 4000, files: map[string]string{"/a": a}}
		f := images.OpenFolder(dir, 1<<20, newNear(web))
		_, err := f.Open(at("a", a))
		require.ErrorIs(t, err, images.ErrLoading)
		synctest.Wait() // it pauses after the first cut
		f.Close()
		require.FileExists(t, filepath.Join(dir, sumOf(a)+".part"))
		_, err = f.Open(at("a", a))
		require.Error(t, err)
		f = images.OpenFolder(dir, 1<<20, newNear(web))
		defer f.Close()
		require.Equal(t, a, read(t, f, at("a", a)))
		require.Equal(t, []string{"/a ", "/a bytes=4000-", "/a bytes=8000-"}, web.requests)
	})
}

// An image that the agent above lacks, or has with a wrong checksum, comes from its URL.
func TestNear(t *testing.T) {
	a := text(10_000)
	for name, c := range map[string]struct {
		above origin
		loads int    // how often it answers first that it downloads the image
		want  string // "": the URL is to be used
		fails bool   // while it is read
	}{
		"has it":            {origin{ranges: true, files: map[string]string{"/image/" + sumOf(a): a}}, 0, a, false},
		"downloads it":      {origin{ranges: true, files: map[string]string{"/image/" + sumOf(a): a}}, 3, a, false},
		"does not have it":  {origin{}, 0, "", false},
		"could not get it":  {origin{}, 2, "", false},
		"has another":       {origin{ranges: true, files: map[string]string{"/image/" + sumOf(a): a[1:] + "x"}}, 0, "", true},
		"is cut, and is up": {origin{ranges: true, cut: 3000, files: map[string]string{"/image/" + sumOf(a): a}}, 0, a, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				loads := c.loads
				web := &origin{ranges: true, files: map[string]string{"/a": a}}
				near := newNear(web)
				near.URL = func(sum string) string { return "https://father.test/image/" + sum }
				near.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
					if loads--; loads >= 0 {
						return &http.Response{StatusCode: http.StatusAccepted, Status: "202 Accepted", Body: http.NoBody, Request: r}, nil
					}
					return c.above.RoundTrip(r)
				})
				f := near.Open(t.Context(), at("a", a))
				if c.want != "" || c.fails {
					require.NotNil(t, f)
					got, err := io.ReadAll(f)
					require.Equal(t, c.fails, err != nil)
					require.Equal(t, c.fails, f.Err() != nil)
					require.True(t, c.fails || c.want == string(got))
					require.NoError(t, f.Close())
				} else {
					require.Nil(t, f)
				}
				near.Folder, loads = images.OpenFolder(dir, 1<<20, near), c.loads
				defer near.Folder.Close()
				f = near.Open(t.Context(), at("a", a))
				require.NotNil(t, f)
				got, err := io.ReadAll(f)
				require.NoError(t, err)
				require.Equal(t, a, string(got))
				require.NoError(t, f.Close())
				require.Equal(t, c.want == "", len(web.requests) > 0)
			})
		})
	}
	require.Nil(t, (*images.Near)(nil).Open(t.Context(), at("a", a)))
}

// Without a folder that can be written, the image comes from its URL.
func TestFolderWithoutRoom(t *testing.T) {
	a := text(1000)
	dir := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	near := newNear(&origin{ranges: true, files: map[string]string{"/a": a}})
	near.Folder = images.OpenFolder(dir, 1<<20, near)
	defer near.Folder.Close()
	require.Nil(t, near.Open(t.Context(), at("a", a)))
	s, err := near.Download(t.Context(), at("a", a))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	ended, end := context.WithCancel(t.Context())
	end()
	_, err = near.Folder.Get(ended, at("b", strings.Repeat("b", 9)))
	require.Error(t, err)
}
