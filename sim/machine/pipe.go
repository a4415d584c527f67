package machine

import (
	"io"
	"sync"
	"syscall"
	"time"
)

// OpenFile is an open file, which several descriptors of several processes may stand for.
type OpenFile struct {
	r      io.Reader
	w      io.Writer
	handle *Handle // nil of a pipe, and of what comes from outside
	pipe   *pipe
	reads  bool // the end of the pipe

	mu   sync.Mutex // for refs: descriptors are copied and closed side by side
	refs int
}

func reading(r io.Reader) *OpenFile {
	if r == nil {
		return nil
	}
	return &OpenFile{refs: 1, r: r}
}

func writing(w io.Writer) *OpenFile {
	if w == nil {
		return nil
	}
	return &OpenFile{refs: 1, w: w}
}

// Hold is the same open file for one descriptor more.
func (o *OpenFile) hold() *OpenFile {
	if o != nil {
		o.mu.Lock()
		o.refs++
		o.mu.Unlock()
	}
	return o
}

// Dup is the same open file for one descriptor more.
func (o *OpenFile) Dup() *OpenFile { return o.hold() }

// File returns its attributes as a file; false if it is not one.
func (o *OpenFile) File() (FileInfo, bool) {
	if o == nil || o.handle == nil {
		return FileInfo{}, false
	}
	return o.handle.Stat(), true
}

// close gives up one descriptor.
func (k *Kernel) close(o *OpenFile) {
	o.mu.Lock()
	o.refs--
	left := o.refs
	o.mu.Unlock()
	if left > 0 {
		return
	}
	if o.pipe != nil {
		o.pipe.close(o.reads)
	}
	if o.handle != nil {
		k.Unlock(o)
	}
}

// Pipe makes a pipe: what is written to one end is read from the other.
func (*Kernel) Pipe() (r, w *OpenFile) {
	p := &pipe{changed: make(chan struct{}), readers: 1, writers: 1}
	return &OpenFile{refs: 1, pipe: p, reads: true, r: nothing{}}, &OpenFile{refs: 1, pipe: p, w: nothing{}}
}

// nothing stands for a pipe in an Open.
type nothing struct{}

// Read is never called.
func (nothing) Read([]byte) (int, error) { return 0, io.EOF }

// Write is never called.
func (nothing) Write(b []byte) (int, error) { return len(b), nil }

// pipeSize is the capacity of a pipe (pipe(7)).
const pipeSize = 64 << 10

type pipe struct {
	mu               sync.Mutex // readers and writers are processes of their own
	data             []byte
	changed          chan struct{} // closed at every change
	readers, writers int
}

func (p *pipe) change() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *pipe) close(reads bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if reads {
		p.readers--
	} else {
		p.writers--
	}
	p.change()
}

func (p *pipe) read(who *Process, b []byte) (int, error) {
	for {
		p.mu.Lock()
		if len(p.data) > 0 {
			n := copy(b, p.data)
			p.data = p.data[n:]
			p.change()
			p.mu.Unlock()
			return n, nil
		}
		ended, changed := p.writers == 0, p.changed
		p.mu.Unlock()
		if ended {
			return 0, io.EOF
		}
		select {
		case <-changed:
		case <-who.Killed():
			return 0, syscall.EINTR
		}
	}
}

func (p *pipe) write(who *Process, b []byte) (int, error) {
	done := 0
	for len(b) > 0 {
		p.mu.Lock()
		if p.readers == 0 {
			p.mu.Unlock()
			return done, syscall.EPIPE
		}
		n := min(len(b), pipeSize-len(p.data))
		if n > 0 {
			p.data = append(p.data, b[:n]...)
			p.change()
		}
		changed := p.changed
		p.mu.Unlock()
		b, done = b[n:], done+n
		if n > 0 {
			continue
		}
		select {
		case <-changed:
		case <-who.Killed():
			return done, syscall.EINTR
		}
	}
	return done, nil
}

// Lock takes the lock of flock(2) on an open file, and waits for it as long as that; it reports
// whether it has it.
func (p *Process) Lock(o *OpenFile, wait time.Duration) bool {
	i, ok := o.File()
	if !ok {
		return false
	}
	limit := p.K.Clock.Timer(wait)
	defer limit.Stop()
	for {
		p.K.mu.Lock()
		holder, freed := p.K.locks[i.Ino], p.K.freed
		if holder == nil || holder == o {
			p.K.locks[i.Ino] = o
			p.K.mu.Unlock()
			return true
		}
		p.K.mu.Unlock()
		select {
		case <-freed:
		case <-limit.C:
			return false
		case <-p.Killed():
			return false
		}
	}
}

// Unlock releases a lock.
func (k *Kernel) Unlock(o *OpenFile) {
	i, ok := o.File()
	if !ok {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.locks[i.Ino] == o {
		delete(k.locks, i.Ino)
		close(k.freed)
		k.freed = make(chan struct{})
	}
}

// TextFile is an open file that gives what a reader has.
func TextFile(r io.Reader) *OpenFile { return reading(r) }

// Close gives up one descriptor that no process has.
func (k *Kernel) Close(o *OpenFile) {
	if o != nil {
		k.close(o)
	}
}

// WriteAll writes a text to a file that was opened for that.
func (o *OpenFile) WriteAll(text string) error {
	if o.handle == nil {
		return syscall.EBADF
	}
	_, err := o.handle.Write([]byte(text))
	return err
}
