package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"golang.org/x/crypto/ssh"
)

// sshRemote runs git-upload-pack on another machine. Each question is a connection of
// its own, so a changed key or host key counts at once.
type sshRemote struct {
	o    Options
	from address
}

// sshTalk is one running git-upload-pack.
type sshTalk struct {
	r       *sshRemote
	g       *guard
	client  *ssh.Client
	session *ssh.Session
	in      io.WriteCloser
	out     io.Reader
	said    *firstBytes // on its stderr
	advert  advert
	asked   bool
	unhook  func() bool
}

func (r *sshRemote) ask(ctx context.Context) (talk, error) {
	config, err := r.config()
	if err != nil {
		return nil, err
	}
	watched, g := newGuard(ctx, silentTime(r.o.Timeout), r.o.Timeout)
	t := &sshTalk{r: r, g: g, said: &firstBytes{}}
	if err := t.open(watched, config); err != nil {
		t.close()
		return nil, r.failed(ctx, t.g, err)
	}
	if t.advert, err = readAdvert(t.g.reader(t.out), r.from); err != nil {
		err = t.answer(ctx, err)
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *sshTalk) open(ctx context.Context, config *ssh.ClientConfig) error {
	addr := net.JoinHostPort(t.r.from.host, t.r.from.port)
	dialer := net.Dialer{Timeout: connectTime(t.r.o.Timeout)}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	t.unhook = context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, chans, reqs, err := ssh.NewClientConn(conn, addr, config)
	if err != nil {
		_ = conn.Close()
		return err
	}
	t.client = ssh.NewClient(c, chans, reqs)
	t.g.heard()
	if t.session, err = t.client.NewSession(); err != nil {
		return err
	}
	t.session.Stderr = t.said
	if t.in, err = t.session.StdinPipe(); err != nil {
		return err
	}
	if t.out, err = t.session.StdoutPipe(); err != nil {
		return err
	}
	return t.session.Start("git-upload-pack " + quote(t.r.from.path))
}

// quote makes one word of a path for the shell on the other side.
func quote(s string) string {
	return "'" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(s) + "'"
}

func (t *sshTalk) tip() (plumbing.Hash, error) { return t.advert.tip(t.r.o.Branch) }

func (t *sshTalk) bring(ctx context.Context, n need, w io.Writer) error {
	t.asked = true
	ask, err := t.advert.request(n)
	if err != nil {
		return t.r.fault(ErrNotGit, err.Error(), "", err)
	}
	message, err := encode(ask)
	if err != nil {
		return err
	}
	t.g.whole.Reset(packTime(t.r.o.Timeout))
	t.g.heard()
	stop := context.AfterFunc(ctx, func() { t.g.cancel(context.Cause(ctx)) })
	defer stop()
	if _, err := t.in.Write(message); err != nil {
		return t.answer(ctx, err)
	}
	if err := receive(t.g.reader(t.out), mostAnswer(t.r.o.MaxPack), ask, w); err != nil {
		return t.answer(ctx, err)
	}
	return nil
}

// close ends the conversation: politely where nothing was asked for.
func (t *sshTalk) close() {
	if t.in != nil {
		if !t.asked {
			_, _ = t.in.Write(pktline.FlushPkt)
		}
		_ = t.in.Close()
	}
	if t.session != nil {
		_ = t.session.Close()
	}
	if t.client != nil {
		_ = t.client.Close()
		_ = t.client.Wait()
	}
	if t.unhook != nil {
		t.unhook()
	}
	t.g.stop()
}

// answer says what is wrong with what came, or why nothing did.
func (t *sshTalk) answer(ctx context.Context, err error) error {
	var fault *RemoteError
	var odd *packp.ErrUnexpectedData
	if errors.As(err, &fault) || errors.Is(err, errLimit) || ctx.Err() != nil || t.g.ctx.Err() != nil {
		return t.g.trouble(ctx, t.r.from.String(), err, ErrCut)
	}
	if said, ok := errors.AsType[*pktline.ErrorLine](err); ok {
		return refused(t.r.from, said.Text)
	}
	cutOff := errors.Is(err, packp.ErrEmptyInput) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if cutOff || errors.As(err, &odd) {
		_ = t.in.Close()
		_ = t.session.Wait() // so that all of its words are here; the guard ends a long wait
		if text := t.said.String(); text != "" && (cutOff || odd.Msg != "") {
			return refused(t.r.from, text)
		}
		if !cutOff && !strings.Contains(odd.Msg, "EOF") {
			return t.r.fault(ErrNotGit, odd.Msg, "look at the URL; a login that prints something also does this", err)
		}
	}
	return t.g.trouble(ctx, t.r.from.String(), err, ErrCut)
}

// failed says why there was no conversation.
func (r *sshRemote) failed(ctx context.Context, g *guard, err error) error {
	if err != nil && strings.Contains(err.Error(), "unable to authenticate") {
		return r.fault(ErrDenied, "the server accepts none of the keys of user "+r.user(), "add the public key to those that may read the repository", err)
	}
	if err != nil && (strings.Contains(err.Error(), "no common algorithm") || strings.Contains(err.Error(), "overflow reading version")) {
		return r.fault(ErrUnreachable, err.Error(), "look at the port in the URL, and at the age of the server", err)
	}
	return g.trouble(ctx, r.from.String(), err, ErrUnreachable)
}

func (r *sshRemote) user() string {
	if r.from.user != "" {
		return r.from.user
	}
	return r.o.Auth.Username
}

func (r *sshRemote) fault(kind error, detail, advice string, err error) error {
	return &RemoteError{Kind: kind, Where: r.from.String(), Detail: detail, Advice: advice, Err: err}
}

// firstBytes keeps the beginning of what a command says. The connection's goroutine
// writes and ours reads, hence the lock.
type firstBytes struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const mostSaid = 2 << 10

func (f *firstBytes) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf.Write(b[:min(len(b), mostSaid-f.buf.Len())])
	return len(b), nil
}

func (f *firstBytes) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.TrimSpace(f.buf.String())
}

// config says who we are and whom we trust, from the files as they are now.
func (r *sshRemote) config() (*ssh.ClientConfig, error) {
	keys, err := r.keys()
	if err != nil {
		return nil, err
	}
	known, algorithms, err := r.hostKeys()
	if err != nil {
		return nil, err
	}
	return &ssh.ClientConfig{
		User:              r.user(),
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(keys...)},
		HostKeyCallback:   known,
		HostKeyAlgorithms: algorithms,
		ClientVersion:     "SSH-2.0-homestak",
		Timeout:           connectTime(r.o.Timeout),
	}, nil
}

// port is shown where it is not the usual one.
func (r *sshRemote) port() string {
	if r.from.port == "22" {
		return ""
	}
	return fmt.Sprintf("-p %s ", r.from.port)
}
