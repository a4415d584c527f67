package specserve

// The program itself, served to new nodes of the same operating system and architecture. The file is opened once,
// so that content and checksum match while another version is installed.

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"time"
)

// Downloads at once, how long a further one waits for its turn, and how long a client may take to
// accept each part of the answer, and all of it.
const (
	most    = 16
	patient = 15 * time.Second
	quiet   = 30 * time.Second
	total   = 15 * time.Minute
)

// errBusy is of a download that did not get its turn: too many others are under way.
var errBusy = errors.New("too many downloads are under way")

// Program is a file that is served. Its methods may be called from any goroutine.
type Program struct {
	file *os.File
	size int64
	sum  string // SHA-256 in hex

	downloads
}

// downloads bound those of files that are under way at once, and how slow they may be.
type downloads struct {
	slots          chan struct{}
	patient, quiet time.Duration
}

func newDownloads() downloads {
	return downloads{slots: make(chan struct{}, most), patient: patient, quiet: quiet}
}

// OpenProgram opens a file, and computes its checksum.
func OpenProgram(name string) (*Program, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open the program to serve it: %w", err)
	}
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the program to serve it: %w", err), f.Close())
	}
	return &Program{file: f, size: size, sum: hex.EncodeToString(sum.Sum(nil)), downloads: newDownloads()}, nil
}

// Close closes the file. No download may be under way.
func (p *Program) Close() error { return p.file.Close() }

// ProgramSystem is the operating system and architecture that the program runs on, as Go names them.
func ProgramSystem() string { return runtime.GOOS + "-" + runtime.GOARCH }

// Sum is the checksum, SHA-256 in hex.
func (p *Program) Sum() string { return p.sum }

// Reader reads the file from its beginning. It is good until Close.
func (p *Program) Reader() io.Reader { return io.NewSectionReader(p.file, 0, p.size) }

// Sums are the checksums by system, for wire.Spec.
func (p *Program) Sums() map[string]string { return map[string]string{ProgramSystem(): p.sum} }

// Serve sends the file, or the part of it that is asked for. errBusy means that nothing was written.
func (p *Program) Serve(w http.ResponseWriter, r *http.Request) error {
	return p.send(w, r, p.sum, io.NewSectionReader(p.file, 0, p.size))
}

// send sends a content with a checksum, or the part of it that is asked for. errBusy means that nothing was written.
func (p *downloads) send(w http.ResponseWriter, r *http.Request, sum string, content io.ReadSeeker) error {
	turn := time.NewTimer(p.patient)
	defer turn.Stop()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-turn.C:
		return errBusy
	case <-r.Context().Done():
		return r.Context().Err()
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Cache-Control", "private, no-cache")
	h.Set("Etag", `"`+sum+`"`)
	out := &paced{ResponseWriter: w, control: http.NewResponseController(w), quiet: p.quiet, end: time.Now().Add(total)}
	// The deadline for reading the request would end the answer, too. Writers of tests have none.
	_ = out.control.SetReadDeadline(time.Time{})
	http.ServeContent(out, r, "", time.Time{}, content)
	return nil
}

// paced is a writer that ends if the client takes nothing for a while.
type paced struct {
	http.ResponseWriter
	control *http.ResponseController
	quiet   time.Duration
	end     time.Time
}

// Write implements io.Writer.
func (p *paced) Write(b []byte) (int, error) {
	until := time.Now().Add(p.quiet)
	if until.After(p.end) {
		until = p.end
	}
	_ = p.control.SetWriteDeadline(until)
	return p.ResponseWriter.Write(b)
}
