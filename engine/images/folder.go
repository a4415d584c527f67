package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// ErrLoading says that an image is being downloaded.
var ErrLoading = errors.New("the image is being downloaded")

// retryAfter is how long a download that failed is not tried again.
const retryAfter = time.Minute

// ending is that of a file that is not complete.
const ending = ".part"

// Folder stores images by their checksum, up to a number of bytes. What was used longest ago goes first. Its methods may
// be called from any goroutine.
type Folder struct {
	dir  string
	most int64
	near *Near

	ctx   context.Context //nolint:containedctx // of downloads, which outlive the request that began them
	end   context.CancelFunc
	group sync.WaitGroup

	mu    sync.Mutex       // for moments: requests and steps ask, downloads change it
	loads map[string]*load // by checksum; those that failed stay for a while
}

// load is a download.
type load struct {
	done  chan struct{} // closed at its end
	size  int64         // for which room was made
	err   error         // at its end
	ended time.Time     // at its end
}

// OpenFolder opens a folder, which is created when it is needed. What is not there comes from near, which does not ask
// the folder.
func OpenFolder(dir string, most int64, near *Near) *Folder {
	f := &Folder{dir: dir, most: most, near: near, loads: map[string]*load{}}
	f.ctx, f.end = context.WithCancel(context.Background())
	return f
}

// Close ends the downloads. What they have stays for the next ones.
func (f *Folder) Close() {
	f.end()
	f.group.Wait()
}

// Open opens an image. If it is not here, a download begins, unless one failed just now: ErrLoading, or why it failed.
func (f *Folder) Open(i Image) (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.loads[i.Sum]; l != nil {
		select {
		case <-l.done:
			if l.err != nil && time.Since(l.ended) < retryAfter {
				return nil, l.err
			}
			delete(f.loads, i.Sum)
		default:
			return nil, ErrLoading
		}
	}
	name := filepath.Join(f.dir, i.Sum)
	file, err := os.Open(name)
	if err == nil {
		now := time.Now()
		_ = os.Chtimes(name, now, now) // or it is removed too early
		return file, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if f.ctx.Err() != nil {
		return nil, context.Cause(f.ctx)
	}
	l := &load{done: make(chan struct{})}
	f.loads[i.Sum] = l
	f.group.Go(func() {
		err := f.load(i)
		f.mu.Lock()
		defer f.mu.Unlock()
		l.err, l.ended = err, time.Now()
		close(l.done)
	})
	return nil, ErrLoading
}

// Get opens an image when it is there.
func (f *Folder) Get(ctx context.Context, i Image) (*os.File, error) {
	for {
		file, err := f.Open(i)
		if !errors.Is(err, ErrLoading) {
			return file, err
		}
		f.mu.Lock()
		l := f.loads[i.Sum]
		f.mu.Unlock()
		if l == nil {
			continue // it ended just now
		}
		select {
		case <-l.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// load downloads an image: from above, else from where it is published.
func (f *Folder) load(i Image) error {
	s, err := f.near.above(f.ctx, i)
	if err == nil && s != nil {
		if err = f.store(i, s); err == nil {
			return nil
		}
	}
	if f.near.failed(i, err); f.ctx.Err() != nil {
		return context.Cause(f.ctx)
	}
	s, err = download(f.ctx, f.near.Web, i)
	if err == nil {
		err = f.store(i, s)
	}
	if err != nil && f.ctx.Err() == nil {
		f.near.Log.Warn("an image to serve could not be stored", "sha256", i.Sum, "error", err)
	}
	return err
}

// store writes an image to the folder, and goes on with what an earlier download left. What is wrong is removed; what is only
// cut stays.
func (f *Folder) store(i Image, s *Stream) (err error) {
	defer func() { _ = s.Close() }() // only read
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	if err := f.makeRoom(i.Sum, s.Size); err != nil {
		return err
	}
	name := filepath.Join(f.dir, i.Sum)
	part, err := os.OpenFile(name+ending, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	cut := false
	defer func() {
		if err = errors.Join(err, part.Close()); err != nil && !cut {
			err = errors.Join(err, os.Remove(name+ending))
		}
		if err == nil {
			err = os.Rename(name+ending, name)
		}
	}()
	if err := s.resume(part); err != nil {
		return err
	}
	if _, err := io.Copy(part, s); err != nil {
		cut = s.err != nil && !errors.Is(s.err, errChecksum) // and not the disk
		return err
	}
	return part.Sync()
}

// makeRoom removes images until there is room for another one.
func (f *Folder) makeRoom(sum string, size int64) error {
	if size > f.most {
		return fmt.Errorf("it has %d bytes, and images_max allows %d", size, f.most)
	}
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var infos []os.FileInfo
	room := f.most - size
	busy := func(sum string) bool { return f.loads[sum] != nil && f.loads[sum].ended.IsZero() }
	for other, l := range f.loads {
		if other != sum && busy(other) {
			room -= l.size
		}
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || busy(strings.TrimSuffix(e.Name(), ending)) {
			continue // it went just now; or it is being downloaded, this one included
		}
		room -= info.Size()
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range infos {
		if room >= 0 {
			break
		}
		// Readers have the file open, and continue.
		if err := os.Remove(filepath.Join(f.dir, info.Name())); err != nil {
			return err
		}
		room += info.Size()
	}
	if room < 0 {
		return fmt.Errorf("it has %d bytes, and other downloads take what images_max allows, %d", size, f.most)
	}
	f.loads[sum].size = size
	return nil
}

// Near gets images from what is nearer than where they are published. A nil one has nothing.
type Near struct {
	Folder    *Folder // of this machine; nil: it stores none
	URL       func(sum string) string
	Transport http.RoundTripper // to the agent above, which has images at URL; nil: there is none
	Web       http.RoundTripper // to where they are published; nil: the network
	Log       *slog.Logger
}

// File is an image that is read.
type File struct {
	io.ReadCloser
	Size int64

	image Image
	near  *Near
	err   error
}

// Err is why reading failed; nil: it did not.
func (f *File) Err() error { return f.err }

// Read implements io.Reader.
func (f *File) Read(b []byte) (int, error) {
	n, err := f.ReadCloser.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
		f.near.failed(f.image, err)
	}
	return n, err
}

// Open opens an image that is near; nil if none is. Failures are logged: the image is then to be got from its URLs.
func (n *Near) Open(ctx context.Context, i Image) *File {
	if n == nil || i.Sum == "" || n.Folder == nil && n.Transport == nil {
		return nil
	}
	if n.Folder != nil {
		file, err := n.Folder.Get(ctx, i)
		if err == nil {
			var info os.FileInfo
			if info, err = file.Stat(); err == nil {
				return &File{ReadCloser: file, Size: info.Size(), image: i, near: n}
			}
			_ = file.Close() // only read
		}
		n.failed(i, err)
		return nil
	}
	s, err := n.above(ctx, i)
	if n.failed(i, err); s == nil {
		return nil
	}
	return &File{ReadCloser: s, Size: s.Size, image: i, near: n}
}

// Download opens an image at its URLs.
func (n *Near) Download(ctx context.Context, i Image) (*Stream, error) {
	if n == nil {
		return download(ctx, nil, i)
	}
	return download(ctx, n.Web, i)
}

// above asks the agent above; nil if there is none, or it does not have the image. It waits while that agent downloads it.
func (n *Near) above(ctx context.Context, i Image) (*Stream, error) {
	if n.Transport == nil {
		return nil, nil //nolint:nilnil // as it says
	}
	for {
		s, err := download(ctx, n.Transport, Image{Sum: i.Sum, URLs: []string{n.URL(i.Sum)}})
		refused, is := errors.AsType[refusedError](err)
		switch {
		case is && refused.status == http.StatusAccepted && sleep(ctx, pollEvery):
		case is && refused.status == http.StatusNotFound:
			return nil, nil //nolint:nilnil // it serves none, or not this one
		default:
			return s, err
		}
	}
}

// pollEvery is the time between two questions whether the agent above has downloaded an image.
const pollEvery = 5 * time.Second

// failed logs that an image could not be got from near.
func (n *Near) failed(i Image, err error) {
	if err != nil {
		n.Log.Warn("an image could not be got from near; the URL of the site is used", "sha256", i.Sum, "error", err)
	}
}
