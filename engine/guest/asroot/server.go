package asroot

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Server is the helper. It applies a spec only if
//
//   - the caller is the user of the agent,
//   - the commit is in force by the repository, which the helper asks itself: the head of the branch, or a commit between
//     the one that was applied last and the head,
//   - the commit, as the helper reads it from a copy of its own, says that spec.
//
// So an agent that is not to be trusted can choose when the commit in force is applied, and nothing else.
type Server struct {
	UID     int // of the agent
	Commits commits
	// Resolve returns the spec of the host at a commit; nil if the host has none.
	Resolve func(context.Context, model.Commit) (*spec.Spec, error)
	Machine converge.Machine
	State   string // a file of root's
	Log     *slog.Logger
}

// commits is the helper's own copy of the repository: *source.Repository.
type commits interface {
	Head(ctx context.Context) (model.Commit, error)
	Commit(ctx context.Context, id string) (model.Commit, error)
	Since(ctx context.Context, from, to string) ([]model.Commit, error)
	Keep(ids ...string) error
}

// state is what the helper remembers.
type state struct {
	Version int    `json:"version"`
	Head    string `json:"head"`    // of the branch, when the repository answered last
	Applied string `json:"applied"` // the last commit whose spec was applied, as a whole or in part
	// Withdrawn is the document of what remains of that spec when it is withdrawn; nil if the host had none.
	Withdrawn json.RawMessage `json:"withdrawn,omitempty"`
}

// refusal is why a request is not carried out.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

func refuse(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// requestTime limits the time until a connection has sent its request.
const requestTime = 10 * time.Second

// Serve answers one connection after the other, and ends when there was none for a time, or ctx ends.
func (s *Server) Serve(ctx context.Context, ln *net.UnixListener, idle time.Duration) error {
	end := context.AfterFunc(ctx, func() { _ = ln.SetDeadline(time.Unix(1, 0)) })
	defer end()
	for ctx.Err() == nil {
		if err := ln.SetDeadline(time.Now().Add(idle)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		conn, err := ln.AcceptUnix()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept a request: %w", err)
		}
		s.answer(ctx, conn)
	}
	return nil
}

// connection is one with an agent. Progress comes from several goroutines.
type connection struct {
	net.Conn
	mu sync.Mutex
}

// send sends a line. An agent that is gone does not end what runs.
func (c *connection) send(m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.SetWriteDeadline(time.Now().Add(requestTime))
	_ = json.NewEncoder(c).Encode(m)
}

// answer carries out one request.
func (s *Server) answer(ctx context.Context, conn *net.UnixConn) {
	defer func() { _ = conn.Close() }()
	c := &connection{Conn: conn}
	r := result{}
	seen, err := s.do(ctx, c, conn)
	if err == nil && seen != nil {
		r.Seen, err = seen.encode()
	}
	if err != nil {
		r.Error = diag.Clean(err.Error())
		r.Lost, r.Stopped = errors.Is(err, guest.ErrOutcomeLost), errors.Is(err, converge.ErrStopped)
		s.Log.Warn("a request was not carried out", "refused", errors.As(err, new(*refusal)), "error", r.Error)
	}
	c.send(message{Result: &r})
}

// do checks a request and carries it out.
func (s *Server) do(ctx context.Context, c *connection, conn *net.UnixConn) (*Seen, error) {
	if uid, err := peer(conn); err != nil || uid != s.UID {
		return nil, refuse("user %d may not ask the helper: only the agent may, which runs as user %d", uid, s.UID)
	}
	nonce := rand.Text()
	c.send(message{Nonce: nonce})
	in := bufio.NewReaderSize(io.LimitReader(conn, maxRequest+16), maxRequest)
	if err := conn.SetReadDeadline(time.Now().Add(requestTime)); err != nil {
		return nil, err
	}
	q, err := readRequest(in, nonce)
	if err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	st, err := s.load()
	if err != nil {
		return nil, err
	}
	commit, err := s.inForce(ctx, &st, q.Commit)
	if err != nil {
		return nil, err
	}
	want, err := s.wanted(ctx, &st, commit)
	if err != nil {
		return nil, err
	}
	sum, err := digest(want)
	if err != nil {
		return nil, err
	}
	if sum != q.Digest {
		return nil, refuse("the spec is not that of commit %s, as the helper reads it: digest %s, not %s\nthe agent may have other secrets than /etc/homestak-gitops has for root, or run another version: restart it", commit.ID, sum, q.Digest)
	}
	if q.DryRun {
		now, err := converge.Observe(ctx, s.Machine, want)
		if err != nil {
			return nil, err
		}
		seen := seenOf(now)
		return &seen, nil
	}
	st.Applied = commit.ID
	if err := s.save(st); err != nil { // before the first step: from now on no older commit is accepted
		return nil, err
	}
	return nil, s.apply(ctx, c, in, want)
}

// apply makes the machine what the spec says. When the agent asks for it, or is gone, it ends before the next step.
func (s *Server) apply(ctx context.Context, c *connection, in io.Reader, want *spec.Spec) error {
	stop := make(chan struct{})
	once := sync.OnceFunc(func() { close(stop) })
	defer context.AfterFunc(ctx, once)()
	go func() {
		_, _ = in.Read(make([]byte, 1)) // whatever comes, or the end
		once()
	}()
	s.Log.Info("applying the spec of this host", "spec", want.Name)
	_, err := converge.Apply(context.WithoutCancel(ctx), s.Machine, want, converge.Options{
		Stop:     stop,
		Started:  func(step aspect.Step) { c.send(message{Step: step.Text}) },
		Progress: func(step aspect.Step, state string) { c.send(message{Step: step.Text, State: state}) },
	})
	return err
}

// readRequest reads the request, which must have the nonce of its connection.
func readRequest(in *bufio.Reader, nonce string) (request, error) {
	var q request
	line, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return q, refuse("the request is longer than %d bytes", maxRequest)
	}
	if err != nil {
		return q, refuse("the request did not arrive within %s: %v", requestTime, err)
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	switch err := d.Decode(&q); {
	case err != nil:
		return q, refuse("the request cannot be read: %v", err)
	case q.Version != version:
		return q, refuse("the request has version %d, the helper answers %d: restart the agent, which runs another version of the program", q.Version, version)
	case q.Nonce != nonce:
		return q, refuse("the request was made for another connection")
	}
	return q, nil
}

// inForce returns the commit if it is in force, and notes the head of the branch.
func (s *Server) inForce(ctx context.Context, st *state, id string) (model.Commit, error) {
	head, err := s.Commits.Head(ctx)
	last := "" // why the head may be an old one
	switch {
	case err == nil && head.ID != st.Head:
		st.Head = head.ID
		if err := s.save(*st); err != nil {
			return model.Commit{}, err
		}
	case err != nil && st.Head == "":
		return model.Commit{}, fmt.Errorf("the helper asks the repository itself which commit is in force, and it does not answer: %w", err)
	case err != nil:
		s.Log.Warn("the repository does not answer: its head is taken to be the last one", "error", err)
		last = fmt.Sprintf("; that is the last head that the helper knows, since the repository does not answer: %v", err)
	}
	keep := []string{st.Head}
	if st.Applied != "" && st.Applied != st.Head {
		keep = append(keep, st.Applied)
	}
	if err := s.Commits.Keep(keep...); err != nil {
		s.Log.Warn("a commit is not kept", "error", err)
	}
	switch {
	case id == st.Head:
	case st.Applied == "":
		return model.Commit{}, refuse("commit %.40q is not in force: the head of the branch is %s, and no spec was applied yet%s", id, st.Head, last)
	case !s.between(ctx, st.Applied, id) || !s.between(ctx, id, st.Head):
		return model.Commit{}, refuse("commit %.40q is not in force: it is not between %s, which was applied last, and %s, the head of the branch%s", id, st.Applied, st.Head, last)
	}
	return s.Commits.Commit(ctx, id)
}

// between reports whether a commit is another one, or comes before it.
func (s *Server) between(ctx context.Context, from, to string) bool {
	_, err := s.Commits.Since(ctx, from, to)
	return err == nil
}

// wanted returns the spec of the host at a commit, or what remains of the last one if it has none. It notes in st what will
// remain of it.
func (s *Server) wanted(ctx context.Context, st *state, commit model.Commit) (*spec.Spec, error) {
	want, err := s.Resolve(ctx, commit)
	switch {
	case err != nil:
		return nil, err
	case want == nil && st.Withdrawn == nil:
		return nil, refuse("the host has no spec at commit %s, and none was applied before", commit.ID)
	case want == nil:
		return spec.Read(st.Withdrawn)
	}
	st.Withdrawn, err = json.Marshal(want.Withdrawn())
	return want, err
}

// load reads the state. A damaged one is an error: without it, older commits could not be told apart.
func (s *Server) load() (state, error) {
	st := state{Version: version}
	text, err := os.ReadFile(s.State)
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &st)
	}
	if err != nil {
		return st, fmt.Errorf("read the state of the helper: %w\nif it cannot be repaired, remove %s: the next request is then taken for the first", err, s.State)
	}
	return st, nil
}

func (s *Server) save(st state) error {
	text, err := json.MarshalIndent(st, "", "  ")
	if err == nil {
		err = durable.Replace(s.State, append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write the state of the helper: %w", err)
	}
	return nil
}

// peer returns the user at the other end.
func peer(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	uid := -1
	if cerr := raw.Control(func(fd uintptr) {
		var cred *syscall.Ucred
		if cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			uid = int(cred.Uid)
		}
	}); cerr != nil {
		return -1, cerr
	}
	return uid, err
}
