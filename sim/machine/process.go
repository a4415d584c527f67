package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one process. Unless documented as safe, its methods belong to its own goroutine.
type Process struct {
	K         *Kernel
	PID, PPID int
	Args      []string
	Cred      Cred
	Dir       string
	Umask     uint32
	Env       []string // NAME=value

	descriptors
	signalled

	ctx  context.Context //nolint:containedctx // it ends when the process is killed
	code int             // when it has ended
	up   chan struct{}   // closed by Ready
}

// descriptors are the open files of a process.
type descriptors struct {
	k   *Kernel
	fds map[int]*OpenFile
}

// signalled has the reaction of a process to each signal. Safe for concurrent use.
type signalled struct {
	// mu is for a moment only: a signal may come from any process.
	mu      sync.Mutex
	kill    context.CancelCauseFunc
	done    chan struct{} // closed when the process has ended
	ignored map[syscall.Signal]bool
	handled map[syscall.Signal]func()
	signal  syscall.Signal // that killed it
}

// Start says how a process starts. Descriptors that are nil are closed.
type Start struct {
	Args     []string
	Env      []string
	Cred     Cred
	Dir      string
	In       io.Reader
	Out, Err io.Writer

	in *OpenFile // in place of In
}

// errHalted is a machine that runs no programs any more.
var errHalted = errors.New("the machine does not run")

// Start runs a program of the machine without a parent process. Wait waits for its end.
func (k *Kernel) Start(s Start) (*Process, error) {
	p := k.process(nil)
	p.Env, p.Cred, p.Dir, p.Umask = s.Env, s.Cred, s.Dir, 0o022
	if p.Dir == "" {
		p.Dir = "/"
	}
	for n, o := range map[int]*OpenFile{0: reading(s.In), 1: writing(s.Out), 2: writing(s.Err)} {
		if o != nil {
			p.fds[n] = o
		}
	}
	if s.in != nil {
		p.fds[0] = s.in
	}
	name, err := p.Find(s.Args[0])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Args[0], err)
	}
	run, err := p.load(name, s.Args)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Args[0], err)
	}
	if !p.begin(run) {
		return nil, errHalted
	}
	return p, nil
}

func (k *Kernel) process(parent *Process) *Process {
	p := &Process{K: k, PID: k.NextPID(), PPID: 1, up: make(chan struct{}), descriptors: descriptors{k: k, fds: map[int]*OpenFile{}}}
	p.done, p.ignored, p.handled = make(chan struct{}), map[syscall.Signal]bool{}, map[syscall.Signal]func(){}
	p.ctx, p.kill = context.WithCancelCause(context.Background())
	if parent != nil {
		p.PPID, p.Args, p.Cred, p.Dir, p.Umask = parent.PID, parent.Args, parent.Cred, parent.Dir, parent.Umask
		p.Env = slices.Clone(parent.Env)
		for n, o := range parent.fds {
			p.fds[n] = o.hold()
		}
		parent.mu.Lock()
		p.ignored = maps.Clone(parent.ignored)
		parent.mu.Unlock()
	}
	return p
}

// Fork makes a process that is like this one. It runs once Go is called.
func (p *Process) Fork() *Process { return p.K.process(p) }

// Go runs a function as the process.
func (p *Process) Go(run Program) {
	if !p.begin(run) {
		p.closeAll()
		p.code, p.signal = 128+int(syscall.SIGKILL), syscall.SIGKILL
		close(p.done)
	}
}

func (p *Process) begin(run Program) bool {
	p.K.mu.Lock()
	if p.K.halted {
		p.K.mu.Unlock()
		return false
	}
	p.K.procs[p.PID] = p
	p.K.all.Add(1)
	p.K.mu.Unlock()
	go func() {
		defer p.K.all.Done()
		code := run(p)
		p.closeAll()
		p.mu.Lock()
		p.code = code & 0xff
		if p.signal != 0 {
			p.code = 128 + int(p.signal)
		}
		p.mu.Unlock()
		p.K.mu.Lock()
		delete(p.K.procs, p.PID)
		p.K.mu.Unlock()
		p.kill(nil)
		close(p.done)
	}()
	return true
}

// load finds what a file does, for the arguments that it is called with.
func (p *Process) load(name string, args []string) (Program, error) {
	run, before, err := p.K.interpreter(p.Cred, name)
	if err != nil {
		return nil, err
	}
	if len(before) > 0 {
		if strings.Contains(args[0], "/") { // a script sees how it was called
			before[len(before)-1] = args[0]
		}
		args = append(before, args[1:]...)
	}
	p.Args = args
	p.K.mu.Lock()
	seen := p.K.seen
	p.K.mu.Unlock()
	if seen != nil {
		seen(args, p.Env)
	}
	return run, nil
}

// Exec runs a program in place of what the process does, and gives its exit code. Errors are those
// of execve(2): then nothing has run.
func (p *Process) Exec(args []string) (int, error) {
	name, err := p.Find(args[0])
	if err != nil {
		return 0, err
	}
	old := p.Args
	run, err := p.load(name, args)
	if err != nil {
		p.Args = old
		return 0, err
	}
	return run(p), nil
}

// Run runs a program as a process of its own and waits for its end.
func (p *Process) Run(args []string) (int, error) {
	child := p.Fork()
	if err := child.Launch(args); err != nil {
		child.closeAll()
		return 0, err
	}
	return child.Wait(), nil
}

// Launch runs a program as a process that was forked. With an error nothing has run.
func (p *Process) Launch(args []string) error {
	name, err := p.Find(args[0])
	if err != nil {
		return err
	}
	run, err := p.load(name, args)
	if err != nil {
		return err
	}
	p.Go(run)
	return nil
}

// Discard gives up a process that was forked and never ran.
func (p *descriptors) Discard() { p.closeAll() }

// Wait waits for the end, and gives the exit code as a shell sees it. Safe for concurrent use.
func (p *Process) Wait() int {
	<-p.done
	return p.code
}

// Done is closed when the process has ended. Safe for concurrent use.
func (p *signalled) Done() <-chan struct{} { return p.done }

// Ended is how it ended: its exit code, or the signal that killed it.
func (p *Process) Ended() (int, syscall.Signal) {
	<-p.done
	return p.code, p.signal
}

// Ready says that a service has begun to serve, as sd_notify(3) does. It is called once.
func (p *Process) Ready() { close(p.up) }

// Up is closed by Ready. Safe for concurrent use.
func (p *Process) Up() <-chan struct{} { return p.up }

// Killed is closed when the process has to end. Safe for concurrent use.
func (p *Process) Killed() <-chan struct{} { return p.ctx.Done() }

// Dead reports whether it has to.
func (p *Process) Dead() bool { return p.ctx.Err() != nil }

// Signal sends a signal. Safe for concurrent use.
func (p *signalled) Signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case s == 0, p.signal != 0, s == syscall.SIGCHLD, s == syscall.SIGCONT, s == syscall.SIGWINCH, s == syscall.SIGURG:
	case s != syscall.SIGKILL && p.ignored[s]:
	case p.handled[s] != nil:
		p.handled[s]()
	default:
		select {
		case <-p.done:
			return
		default:
		}
		p.signal = s
		p.kill(syscall.EINTR)
	}
}

// Ignore lets a signal do nothing, or what it usually does again. Safe for concurrent use.
func (p *signalled) Ignore(s syscall.Signal, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ignored[s] = on
}

// Handle lets a signal call a function, which must not block. Safe for concurrent use.
func (p *signalled) Handle(s syscall.Signal, do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handled[s] = do
}

// Sleep waits, unless the process is killed.
func (p *Process) Sleep(d time.Duration) {
	t := p.K.Clock.Timer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.ctx.Done():
	}
}

// Getenv is a variable of the environment.
func (p *Process) Getenv(name string) string {
	for _, pair := range slices.Backward(p.Env) {
		if key, value, _ := strings.Cut(pair, "="); key == name {
			return value
		}
	}
	return ""
}

// Setenv sets one.
func (p *Process) Setenv(name, value string) {
	p.Env = slices.DeleteFunc(slices.Clone(p.Env), func(pair string) bool { return strings.HasPrefix(pair, name+"=") })
	p.Env = append(p.Env, name+"="+value)
}

// Path is a name as seen from the root.
func (p *Process) Path(name string) string {
	if name == "" || strings.HasPrefix(name, "/") {
		return name
	}
	joined := path.Join(p.Dir, name)
	if strings.HasSuffix(name, "/") && joined != "/" {
		joined += "/"
	}
	return joined
}

// Open opens a file for a descriptor.
func (p *Process) Open(name string, flags int, perm uint32) (*OpenFile, error) {
	h, err := p.K.FS.Open(p.Cred, p.Path(name), flags, perm&^p.Umask)
	if err != nil {
		return nil, err
	}
	return &OpenFile{refs: 1, handle: h, r: h, w: h}, nil
}

// FD is a descriptor; nil if it is closed.
func (p *descriptors) FD(n int) *OpenFile { return p.fds[n] }

// SetFD puts an open file at a descriptor, and closes what was there. It takes the file over.
func (p *descriptors) SetFD(n int, o *OpenFile) {
	old := p.fds[n]
	if o == nil {
		delete(p.fds, n)
	} else {
		p.fds[n] = o
	}
	if old != nil {
		p.k.close(old)
	}
}

func (p *descriptors) closeAll() {
	for n := range p.fds {
		p.SetFD(n, nil)
	}
}

// In is descriptor 0, which every program has, as the two after it.
func (p *Process) In() io.Reader { return stream{p, 0} }

// Out is descriptor 1.
func (p *Process) Out() io.Writer { return stream{p, 1} }

// Err is descriptor 2.
func (p *Process) Err() io.Writer { return stream{p, 2} }

// Printf writes to descriptor 1.
func (p *Process) Printf(format string, args ...any) { fmt.Fprintf(p.Out(), format, args...) }

// Failf writes a complaint of the program to descriptor 2, with its name before it, and gives 1.
func (p *Process) Failf(format string, args ...any) int {
	fmt.Fprintf(p.Err(), "%s: %s\n", path.Base(p.Args[0]), fmt.Sprintf(format, args...))
	return 1
}

// ReadFile reads a whole file as the user of the process.
func (p *Process) ReadFile(name string) (string, error) {
	o, err := p.Open(name, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer p.K.close(o)
	data, err := io.ReadAll(o.r)
	return string(data), err
}

// stream is a descriptor of a process.
type stream struct {
	p *Process
	n int
}

// Read is as io.Reader wants it.
func (s stream) Read(b []byte) (int, error) {
	o := s.p.fds[s.n]
	switch {
	case s.p.Dead():
		return 0, syscall.EINTR
	case o == nil || o.r == nil:
		return 0, syscall.EBADF
	case o.pipe != nil:
		return o.pipe.read(s.p, b)
	}
	return o.r.Read(b)
}

// Write implements io.Writer. Writing to a pipe without a reader kills the process.
func (s stream) Write(b []byte) (int, error) {
	o := s.p.fds[s.n]
	switch {
	case s.p.Dead():
		return 0, syscall.EINTR
	case o == nil || o.w == nil:
		return 0, syscall.EBADF
	case o.pipe != nil:
		n, err := o.pipe.write(s.p, b)
		if errors.Is(err, syscall.EPIPE) {
			s.p.Signal(syscall.SIGPIPE)
		}
		return n, err
	}
	return o.w.Write(b)
}

// Descriptors returns the open descriptors, and keeps them open until SetDescriptors restores them.
func (p *descriptors) Descriptors() map[int]*OpenFile {
	out := make(map[int]*OpenFile, len(p.fds))
	for n, o := range p.fds {
		out[n] = o.hold()
	}
	return out
}

// SetDescriptors puts back what was open, and closes everything else.
func (p *descriptors) SetDescriptors(saved map[int]*OpenFile) {
	p.closeAll()
	maps.Copy(p.fds, saved)
}

// Died is the signal that killed the process; 0 if none has. Safe for concurrent use.
func (p *signalled) Died() syscall.Signal {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.signal
}

// StartWithInput is Start for a program that reads external input: a pipe is in between, so that ending the program
// does not wait for the sender. Unread input is dropped.
func (k *Kernel) StartWithInput(s Start, in io.Reader) (*Process, error) {
	r, w := k.Pipe()
	feeder := k.process(nil)
	feeder.fds[1] = w
	s.in = r
	p, err := k.Start(s)
	if err != nil {
		k.close(r)
		feeder.closeAll()
		return nil, err
	}
	go func() {
		_, err := io.Copy(feeder.Out(), in)
		feeder.closeAll()
		if err != nil {
			_, _ = io.Copy(io.Discard, in) // the sender goes on
		}
	}()
	return p, nil
}
