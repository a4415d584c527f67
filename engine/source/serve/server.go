package serve

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"

	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// How long, and how many, old snapshots can still be used.
const (
	overlap     = 2 * time.Minute
	mostOverlap = 4
)

// Options are the limits of a server. The zero value is useful.
type Options struct {
	Dir      string // of temporary files; the system's if empty
	MostPack int64  // bytes of what one answer holds, before compression; 512 MiB if zero
	MostFile int64  // bytes of one file; 16 MiB if zero
	MostDisk int64  // bytes of all temporary files; 1 GiB if zero

	now func() time.Time // time.Now outside of tests
}

// server answers clients. Its methods may be called by any goroutine.
type server struct {
	o     Options
	spool *spool

	mu      sync.Mutex // requests read what Publish replaces
	current *Snapshot
	before  []replaced // the newest last
}

type replaced struct {
	*Snapshot
	until time.Time
}

// newServer returns a server without a snapshot.
func newServer(o Options) *server {
	o.MostPack = cmp.Or(max(o.MostPack, 0), 512<<20)
	o.MostFile = cmp.Or(max(o.MostFile, 0), 16<<20)
	o.MostDisk = cmp.Or(max(o.MostDisk, 0), 1<<30)
	if o.now == nil {
		o.now = time.Now
	}
	return &server{o: o, spool: newSpool(o.Dir, o.MostDisk)}
}

// Publish serves a snapshot from now on. Nil serves nothing, and also ends the use of old
// snapshots.
func (s *server) Publish(next *Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case next == nil:
		s.before = nil
	case s.current != nil && !bytes.Equal(s.current.advert, next.advert):
		s.before = append(s.before, replaced{s.current, s.o.now().Add(overlap)})
		s.before = s.before[max(0, len(s.before)-mostOverlap):]
	}
	s.current = next
}

// Current is the served snapshot, nil for none.
func (s *server) Current() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// offering returns the newest snapshot that offers all of these commits.
func (s *server) offering(ids []plumbing.Hash) *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && s.current.offers(ids) {
		return s.current
	}
	now := s.o.now()
	for len(s.before) > 0 && !s.before[0].until.After(now) {
		s.before = s.before[1:]
	}
	for _, b := range slices.Backward(s.before) {
		if b.offers(ids) {
			return b.Snapshot
		}
	}
	return nil
}

// Errors of Server.
var (
	// errNothing: the server has no snapshot.
	errNothing = errors.New("no commit is in force yet")
	// ErrCut: an answer was started and cannot be completed. The caller must close the connection,
	// so that the client notices.
	ErrCut = errors.New("the answer is not complete")
)

// UploadPack serves a request to git-upload-pack. If out has a method Flush, it is called after each keep-alive
// that a waiting client gets. Errors of the request are written to out as the protocol has it, and not returned. It
// returns errors of in before anything is written, of out, or of the repository; out then has a message if the
// protocol allows one, else the error is ErrCut.
func (s *server) UploadPack(ctx context.Context, in io.Reader, out io.Writer) error {
	req, err := readRequest(in)
	var snapshot *Snapshot
	if err == nil {
		if len(req.wants) == 0 {
			return nil // a client that has everything
		}
		if snapshot = s.offering(req.wants); snapshot == nil {
			err = s.refusal(req.wants)
		}
	}
	if refused, ok := errors.AsType[requestError](err); ok {
		return sendError(out, refused.Error())
	}
	if err != nil {
		return err
	}
	a := answer{s: snapshot, req: req}
	pack, err := a.negotiate()
	if err == nil {
		_, err = out.Write(a.head.Bytes())
	}
	if err != nil || !pack {
		return err
	}
	return s.pack(ctx, &a, out)
}

// refusal says why some of these commits are not given.
func (s *server) refusal(ids []plumbing.Hash) error {
	current := s.Current()
	if current == nil {
		return requestError(errNothing.Error() + "; try again")
	}
	for _, id := range ids {
		if !current.offers([]plumbing.Hash{id}) {
			return bad("upload-pack: not our ref %s: only the commit in force and the last good one are served; fetch again", id)
		}
	}
	return bad("these commits are not served together any more; fetch again")
}

// sendError writes a message for the client's user, which ends the answer.
func sendError(out io.Writer, message string) error {
	return pktline.NewEncoder(out).EncodeString("ERR " + message + "\n")
}

// pack sends the pack of an answer.
func (s *server) pack(ctx context.Context, a *answer, out io.Writer) error {
	p := a.parcel()
	build := func(ctx context.Context, w io.Writer) error { return p.write(ctx, a.s, s.o.MostPack, w) }
	if a.req.sideBand == 0 {
		err := s.spool.copy(ctx, p.key(), build, out, func() error { return nil })
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCut, err)
		}
		return nil
	}
	band := &sideBand{out: pktline.NewEncoder(out), most: a.req.sideBand - 5}
	err := s.spool.copy(ctx, p.key(), build, band, func() error {
		if err := band.send(bandData, nil); err != nil {
			return &writeError{err}
		}
		if f, ok := out.(interface{ Flush() error }); ok {
			return f.Flush()
		}
		return nil
	})
	if err == nil {
		return band.out.Flush()
	}
	if _, ok := errors.AsType[*writeError](err); ok || ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrCut, err)
	}
	if refused, ok := errors.AsType[requestError](err); ok {
		return band.send(bandError, []byte(refused.Error()+"\n"))
	}
	return errors.Join(err, band.send(bandError, []byte("the repository cannot be read; see the log of the server\n")))
}

// The bands of an answer.
const (
	bandData  = 1
	bandError = 3
)

// sideBand writes a pack in packets that say which band they belong to.
type sideBand struct {
	out  *pktline.Encoder
	most int
	buf  []byte
}

func (b *sideBand) Write(data []byte) (int, error) {
	for at := 0; at < len(data); at += b.most {
		if err := b.send(bandData, data[at:min(len(data), at+b.most)]); err != nil {
			return at, err
		}
	}
	return len(data), nil
}

func (b *sideBand) send(band byte, data []byte) error {
	b.buf = append(append(b.buf[:0], band), data...)
	return b.out.Encode(b.buf)
}

// file is a file of a commit that is served.
type file struct {
	ID     string // of its contents
	Size   int64
	server *server
	tree   *objects.Tree
	path   string
}

// Errors of Server.File: fs.ErrNotExist for a missing file, and objects.ErrTooLarge for one over the limit.
var (
	// errNoRef is of a name that is not HEAD, the branch, last-good, or the full id of a
	// commit that is served.
	errNoRef = errors.New("no such commit is served")
	// errNotFile is of a folder, a symbolic link or a submodule.
	errNotFile = errors.New("not a file")
)

// File finds a file in a commit. Names are those of git's trees, with slashes between
// folders; no file system is asked, and symbolic links are not followed.
func (s *server) File(commit, path string) (*file, error) {
	tree, err := s.tree(commit)
	if err != nil {
		return nil, err
	}
	at := ""
	var info fs.FileInfo
	for part := range strings.SplitSeq(path, "/") {
		if info != nil && !info.IsDir() {
			return nil, fs.ErrNotExist // a file has nothing below it
		}
		at = strings.TrimPrefix(at+"/"+part, "/")
		if info, err = tree.Lstat(at); err != nil {
			return nil, err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("%w: %s is a symbolic link", errNotFile, at)
		}
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is a folder or a submodule", errNotFile, at)
	}
	if info.Size() > s.o.MostFile {
		return nil, fmt.Errorf("%w: more than %d MiB in one file; clone the repository", objects.ErrTooLarge, s.o.MostFile>>20)
	}
	id, _ := info.Sys().(string)
	return &file{ID: id, Size: info.Size(), server: s, tree: tree, path: at}, nil
}

// tree gives the files of a commit by one of its names.
func (s *server) tree(commit string) (*objects.Tree, error) {
	if id, err := parseHash(commit); err == nil {
		if found := s.offering([]plumbing.Hash{id}); found != nil {
			return found.trees[id], nil
		}
		return nil, errNoRef
	}
	current := s.Current()
	if current == nil {
		return nil, errNothing
	}
	for _, r := range current.refs {
		if commit == strings.TrimPrefix(r.name, "refs/heads/") || r.name == lastGood && commit == "last-good" {
			return current.trees[r.id], nil
		}
	}
	return nil, errNoRef
}

// Copy writes the file.
func (f *file) Copy(ctx context.Context, w io.Writer) error {
	build := func(_ context.Context, w io.Writer) error {
		data, err := f.tree.ReadFile(f.path)
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	}
	return f.server.spool.copy(ctx, "file "+f.ID, build, w, func() error { return nil })
}

// writeRefusal writes an answer to info/refs that is only a message.
func writeRefusal(out io.Writer, service, message string) error {
	e := pktline.NewEncoder(out)
	return errors.Join(e.EncodeString("# service="+service+"\n"), e.Flush(), sendError(out, message))
}
