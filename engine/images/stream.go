// Package images gets disk images by their checksum: from their URLs, from the agent above, or from a folder of this
// machine that serves the agents below.
//
//	stream.go  one download, which goes on after a cut, and is verified
//	folder.go  images that are near: in a folder, or at the agent above
package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Image is a content, and where it is published.
type Image struct {
	Sum  string   // SHA-256 in hex, lower case
	URLs []string // their contents, one after the other, are the image
}

// errChecksum says that a content does not have its checksum.
var errChecksum = errors.New("the checksum is wrong")

// Bounds of a download: how long a server may send nothing, and how often it is asked again without getting further.
const (
	quiet    = 30 * time.Second
	attempts = 5
)

// Stream reads an image from its URLs. After a cut it goes on where it was. Its Read fails in place of io.EOF if the
// content does not have its checksum. It is for one goroutine.
type Stream struct {
	Size int64 // of the image in bytes

	ctx    context.Context //nolint:containedctx // of the download, as that of a request
	client *http.Client
	image  Image
	sizes  []int64 // of the parts
	at     int64   // how much was read
	sum    hash.Hash
	body   io.ReadCloser // at at; nil: to be opened
	failed int           // attempts since it got further
	err    error         // why Read failed
}

// download opens an image at its URLs. It asks for the sizes only. Transport nil is that of the network, with the proxy
// of the environment.
func download(ctx context.Context, transport http.RoundTripper, i Image) (*Stream, error) {
	s := &Stream{ctx: ctx, client: &http.Client{Transport: transport}, image: i, sum: sha256.New()}
	for _, from := range i.URLs {
		size, err := s.sizeOf(from) //nolint:contextcheck // the one of s
		for pause := time.Second; err != nil && !final(err); pause *= 2 {
			if s.failed++; s.failed >= attempts || !sleep(ctx, pause) {
				break
			}
			size, err = s.sizeOf(from) //nolint:contextcheck // likewise
		}
		if err != nil {
			return nil, err
		}
		s.failed = 0
		s.sizes, s.Size = append(s.sizes, size), s.Size+size
	}
	return s, nil
}

// refusedError is an answer that another attempt would not change.
type refusedError struct {
	text   string
	status int // of HTTP
}

func (e refusedError) Error() string { return e.text }

func final(err error) bool {
	_, is := errors.AsType[refusedError](err)
	return is
}

// get asks for a URL from a byte on, to another one; last < 0: to the end.
func (s *Stream) get(ctx context.Context, from string, first, last int64) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept-Encoding", "identity") // a range of what is compressed is none of the image
	if first > 0 || last >= 0 {
		end := ""
		if last >= 0 {
			end = strconv.FormatInt(last, 10)
		}
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%s", first, end))
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	switch code := answer.StatusCode; {
	case code == http.StatusOK, code == http.StatusPartialContent:
		return answer, nil
	case code >= http.StatusInternalServerError, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		err = fmt.Errorf("%s: the server answers %s", r.URL.Redacted(), answer.Status)
	default:
		err = refusedError{fmt.Sprintf("%s: the server answers %s", r.URL.Redacted(), answer.Status), code}
	}
	return nil, errors.Join(err, answer.Body.Close())
}

// sizeOf asks for the size of one part. It asks for a byte: many servers sign a URL for GET only.
func (s *Stream) sizeOf(from string) (int64, error) {
	ctx, cancel := context.WithTimeout(s.ctx, quiet)
	defer cancel()
	answer, err := s.get(ctx, from, 0, 0)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	size := answer.ContentLength
	if answer.StatusCode == http.StatusPartialContent {
		_, total, _ := strings.Cut(answer.Header.Get("Content-Range"), "/")
		if size, err = strconv.ParseInt(total, 10, 64); err != nil {
			size = -1
		}
	}
	if size < 0 {
		return 0, refusedError{answer.Request.URL.Redacted() + ": the server does not say how large it is", answer.StatusCode}
	}
	return size, nil
}

// part is the part that the next byte is in, and its place and what is left there.
func (s *Stream) part() (from string, offset, left int64) {
	offset = s.at
	for i, size := range s.sizes {
		if offset < size {
			return s.image.URLs[i], offset, size - offset
		}
		offset -= size
	}
	return "", 0, 0
}

// Read implements io.Reader.
func (s *Stream) Read(b []byte) (int, error) {
	for {
		if s.at == s.Size {
			if got := hex.EncodeToString(s.sum.Sum(nil)); got != s.image.Sum {
				s.err = fmt.Errorf("%w: got sha256:%s, want sha256:%s", errChecksum, got, s.image.Sum)
				return 0, s.err
			}
			return 0, io.EOF
		}
		from, offset, left := s.part()
		var n int
		err := s.open(from, offset)
		if err == nil {
			n, err = s.body.Read(b[:min(int64(len(b)), left)])
			s.at += int64(n)
			_, _ = s.sum.Write(b[:n]) // never fails
			if err != nil || int64(n) == left {
				_ = s.Close() // only read
			}
		}
		if n > 0 || len(b) == 0 {
			s.failed = 0
			return n, nil // the next call finds an error again
		}
		if s.failed++; err != nil && (final(err) || s.failed >= attempts) || !sleep(s.ctx, time.Second<<s.failed) {
			s.err = fmt.Errorf("at byte %d of %d: %w", s.at, s.Size, errors.Join(err, context.Cause(s.ctx)))
			return 0, s.err
		}
	}
}

// resume begins after what an earlier download left.
func (s *Stream) resume(left io.Reader) error {
	n, err := io.Copy(s.sum, left)
	if s.at = n; err == nil && n > s.Size {
		err = fmt.Errorf("%d bytes were downloaded before, and it has %d", n, s.Size)
	}
	return err
}

// open continues the download of a part at an offset.
func (s *Stream) open(from string, offset int64) error {
	if s.body != nil {
		return nil
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	w := &watched{cancel: cancel, timer: time.AfterFunc(quiet, func() { cancel(errors.New("the server sent nothing for too long")) })}
	answer, err := s.get(ctx, from, offset, -1) //nolint:bodyclose // s.body closes it
	if err != nil {
		return errors.Join(err, w.Close())
	}
	w.body = answer.Body
	if answer.StatusCode == http.StatusOK && offset > 0 { // it does not know ranges
		if _, err := io.CopyN(io.Discard, w, offset); err != nil {
			return errors.Join(err, w.Close())
		}
	}
	s.body = w
	return nil
}

// Close ends the download.
func (s *Stream) Close() error {
	if s.body == nil {
		return nil
	}
	err := s.body.Close()
	s.body = nil
	return err
}

// watched is a body that ends when nothing comes for a while.
type watched struct {
	body   io.ReadCloser // nil: there is none yet
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

func (w *watched) Read(b []byte) (int, error) {
	w.timer.Reset(quiet)
	return w.body.Read(b)
}

func (w *watched) Close() error {
	w.timer.Stop()
	w.cancel(nil)
	if w.body == nil {
		return nil
	}
	return w.body.Close()
}

// sleep waits. It is false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
