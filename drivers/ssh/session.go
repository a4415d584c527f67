package ssh

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/homestak/homestak-gitops/engine/guest"
)

// errNotSent is a connection that ended before the command was sent over it: nothing has run.
var errNotSent = errors.New("the connection was lost before the command was sent")

// drain limits the time that an output may stay open after its command has ended, by a process that it left
// behind.
const drain = 5 * time.Second

// session is one command over a connection. Its goroutine owns what has no other owner.
type session struct {
	c     *connection
	ctx   context.Context
	line  string
	stdin []byte
	state atomic.Int32 // of the command: idle, then sent by the session or dropped by who waits

	out, errs  output
	code, kill int // exit code and signal
	exited     bool
}

const (
	idle = iota
	sent
	dropped
)

// run runs a line in the far shell. done is called once when the session has ended, which may be
// after run where ctx ends; it is not called where the server refuses the session, with an
// ssh.OpenChannelError.
func (c *connection) run(ctx context.Context, line string, stdin []byte, done func()) (guest.Output, error) {
	s := &session{c: c, ctx: ctx, line: line, stdin: stdin}
	result := make(chan error, 1)
	c.m.enter(c)
	if !c.m.start(func() {
		err := s.run()
		c.m.leave(c)
		if !errors.As(err, new(*ssh.OpenChannelError)) {
			done()
		}
		result <- err
	}) {
		c.m.leave(c)
		done()
		return guest.Output{}, errClosed
	}
	select {
	case err := <-result:
		return s.outcome(err)
	case <-ctx.Done():
		select {
		case err := <-result: // it has ended all the same
			return s.outcome(err)
		default:
		}
		if s.state.CompareAndSwap(idle, dropped) {
			return guest.Output{}, fmt.Errorf("the command did not start: %w", context.Cause(ctx))
		}
		return guest.Output{}, fmt.Errorf("%w: it still ran: %w", guest.ErrOutcomeLost, context.Cause(ctx))
	}
}

// outcome is that of a session that has ended.
func (s *session) outcome(err error) (guest.Output, error) {
	if err != nil {
		return guest.Output{}, err
	}
	return s.out.Output(s.code, s.kill, &s.errs.Capture), nil
}

// run returns nil if the command has exited.
func (s *session) run() error {
	ch, reqs, err := s.c.client.OpenChannel("session", nil)
	if err != nil {
		if errors.As(err, new(*ssh.OpenChannelError)) {
			return err
		}
		s.c.end(err)
		return s.lost(errNotSent, err)
	}
	s.c.m.count(1)
	defer s.c.m.count(-1)
	closeOnEnd := context.AfterFunc(s.ctx, func() {
		_, _ = ch.SendRequest("signal", false, ssh.Marshal(struct{ Name string }{"TERM"}))
		_ = ch.Close()
	})
	defer closeOnEnd()
	defer func() { _ = ch.Close() }()
	if !s.state.CompareAndSwap(idle, sent) {
		s.c.m.start(func() { ssh.DiscardRequests(reqs) })
		return errNotSent
	}
	answered := make(chan error, 1)
	var outputs sync.WaitGroup
	outputs.Go(func() {
		if _, err := io.Copy(&s.out, ch); errors.Is(err, errNoise) {
			_ = ch.Close()
		}
	})
	outputs.Go(func() { _, _ = io.Copy(&s.errs, ch.Stderr()) })
	outputs.Go(func() {
		ok, err := ch.SendRequest("exec", true, ssh.Marshal(struct{ Line string }{s.line}))
		if err == nil && !ok {
			err = errRefused
		}
		answered <- err
		if err == nil {
			_, _ = io.Copy(ch, bytes.NewReader(s.stdin)) // who does not read it ends it
			_ = ch.CloseWrite()
		} else {
			_ = ch.Close()
		}
	})
	var late <-chan time.Time
	for open := true; open; {
		select {
		case req, ok := <-reqs:
			if open = ok; ok && s.note(req) {
				late = time.After(drain)
			}
		case <-late:
			_ = ch.Close()
			late = nil
		}
	}
	outputs.Wait()
	switch err := <-answered; {
	case s.out.noise > mostNoise && !s.out.begun:
		return errNoise
	case s.exited && (s.out.begun || s.kill != 0):
		return nil
	case s.exited:
		return &shellError{s.code, strings.TrimSpace(s.errs.text() + "\n" + s.out.text())}
	case errors.Is(err, errRefused):
		return err
	case err != nil:
		return s.lost(guest.ErrOutcomeLost, err)
	default:
		return s.lost(guest.ErrOutcomeLost, errors.New("the machine closed the session without an exit code"))
	}
}

// A login shell may write something before it comes to what it is asked to run: bash reads ~/.bashrc
// where sshd starts it (bash(1), "invoked by sshd"). So the shell says on both outputs when
// it is there, and what came before is dropped.
const (
	marker = "\x01homestak\x02\n"
	begin  = `printf '\001homestak\002\n' >&2; printf '\001homestak\002\n'; exec `
)

// mostNoise is the number of bytes that a login shell may write before it runs the command.
const mostNoise = 1 << 20

// errNoise is a login shell that writes without end. The command, which comes behind that, has not run.
var errNoise = errors.New("the login shell of this user writes more than 1 MiB before it runs the command: see its profile, such as ~/.bashrc")

// mostBefore is the number of bytes that are kept of the output before the marker.
const mostBefore = 2 << 10

// output is an output of the far shell, and then of the command. For one goroutine.
type output struct {
	guest.Capture

	begun  bool
	noise  int    // how many bytes came before the marker
	before string // the beginning of what the shell wrote
	tail   []byte // its last bytes, which may be the beginning of the marker
}

// Write takes all of p, unless the shell writes too much.
func (o *output) Write(p []byte) (int, error) {
	if o.begun {
		return o.Capture.Write(p)
	}
	o.tail = append(o.tail, p...)
	noise, rest, found := bytes.Cut(o.tail, []byte(marker))
	if !found {
		noise = o.tail[:max(len(o.tail)-len(marker), 0)]
		rest = o.tail[len(noise):]
	}
	o.before += string(noise[:min(len(noise), mostBefore-len(o.before))])
	if o.begun = found; found {
		_, _ = o.Capture.Write(rest)
		rest = nil
	}
	o.tail = slices.Clone(rest)
	if o.noise += len(noise); !found && o.noise > mostNoise {
		return 0, errNoise
	}
	return len(p), nil
}

// text returns the output so far, if the marker did not come.
func (o *output) text() string { return o.before + string(o.tail) }

// shellError is a login shell that ended before it ran the command.
type shellError struct {
	code int
	said string
}

func (e *shellError) Error() string {
	said := cmp.Or(e.said, "it printed nothing")
	return fmt.Sprintf("the login shell of this user ended with exit code %d before it ran the command: %s; it must be a POSIX shell that runs commands", e.code, said)
}

// errRefused is a server that refuses to run commands.
var errRefused = errors.New("its sshd refuses to run a command")

// note takes what the server reports of the command, and reports whether that has ended.
func (s *session) note(req *ssh.Request) bool {
	ended := false
	switch req.Type {
	case "exit-status": // RFC 4254 section 6.10
		var status struct{ Code uint32 }
		ended = ssh.Unmarshal(req.Payload, &status) == nil
		s.code = int(status.Code)
	case "exit-signal":
		var status struct {
			Name        string
			Core        bool
			Text, Words string
		}
		ended = ssh.Unmarshal(req.Payload, &status) == nil
		if s.kill = int(signals()[status.Name]); s.kill == 0 {
			s.kill = -1
		}
	}
	if req.WantReply {
		_ = req.Reply(false, nil)
	}
	s.exited = s.exited || ended
	return ended
}

// lost returns an error for a lost connection or session.
func (s *session) lost(what, err error) error {
	select {
	case <-s.c.ended:
		err = s.c.why
	default:
	}
	return fmt.Errorf("%w: %w", what, err)
}

// signals are those that RFC 4254 section 6.10 names, and those that sshd adds (sig2name in its session.c).
func signals() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"ABRT": syscall.SIGABRT, "ALRM": syscall.SIGALRM, "FPE": syscall.SIGFPE, "HUP": syscall.SIGHUP, "ILL": syscall.SIGILL, "INT": syscall.SIGINT,
		"KILL": syscall.SIGKILL, "PIPE": syscall.SIGPIPE, "QUIT": syscall.SIGQUIT, "SEGV": syscall.SIGSEGV, "TERM": syscall.SIGTERM,
		"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
	}
}
