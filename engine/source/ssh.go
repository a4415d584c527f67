package source

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"golang.org/x/crypto/ssh"
)

// sshRemote runs git-upload-pack on another machine. Each check uses a new connection, so a changed
// key or host key takes effect at once. go-git's own ssh transport has no deadline while the
// connection is made.
type sshRemote struct {
	o    remoteOptions
	from address
}

// sshConversation is one running git-upload-pack.
type sshConversation struct {
	*sshRemote
	x       *exchange
	conn    net.Conn
	client  *ssh.Client
	session *ssh.Session
	in      io.WriteCloser
	out     io.Reader
	said    firstBytes // on its stderr
	asked   bool
}

func (r *sshRemote) Ask(ctx context.Context) (conversation, *packp.AdvRefs, error) {
	config, err := r.config()
	if err != nil {
		return nil, nil, err
	}
	c := &sshConversation{sshRemote: r, x: newExchange(ctx, r.o.Timeout)}
	if err := c.open(config); err != nil {
		err = c.unconnected(ctx, err)
		c.Close()
		return nil, nil, err
	}
	refs := packp.NewAdvRefs()
	err = refs.Decode(c.x.body(c.out, mostRefs))
	if errors.Is(err, packp.ErrEmptyAdvRefs) || err == nil && refs.IsEmpty() {
		err = r.from.NoCommit()
	}
	if err != nil {
		err = c.explain(ctx, err)
		c.Close()
		return nil, nil, err
	}
	return c, refs, nil
}

func (c *sshConversation) open(config *ssh.ClientConfig) error {
	addr := net.JoinHostPort(c.from.host, c.from.port)
	dialer := net.Dialer{Timeout: connectTime(c.o.Timeout)}
	conn, err := dialer.DialContext(c.x.ctx, "tcp", addr)
	if err != nil {
		return err
	}
	c.conn = conn
	context.AfterFunc(c.x.ctx, func() { _ = conn.Close() }) // whatever waits for it ends then
	sc, chans, reqs, err := ssh.NewClientConn(conn, addr, config)
	if err != nil {
		return err
	}
	c.client = ssh.NewClient(sc, chans, reqs)
	c.x.heard()
	if c.session, err = c.client.NewSession(); err != nil {
		return err
	}
	c.session.Stderr = &c.said
	if c.in, err = c.session.StdinPipe(); err != nil {
		return err
	}
	if c.out, err = c.session.StdoutPipe(); err != nil {
		return err
	}
	return c.session.Start("git-upload-pack " + quote(c.from.path))
}

// quote makes one word of a path for any shell, as git does.
func quote(s string) string {
	return "'" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(s) + "'"
}

func (c *sshConversation) Pack(ctx context.Context, req *packp.UploadPackRequest, w io.Writer) error {
	c.asked = true
	var message bytes.Buffer
	err := req.UploadRequest.Encode(&message)
	if err == nil {
		err = req.UploadHaves.Encode(&message, false)
	}
	if err == nil { // end of input: so the server replies once, and neither side waits
		err = pktline.NewEncoder(&message).EncodeString("done\n")
	}
	if err != nil {
		return err
	}
	c.x.download()
	if _, err = c.in.Write(message.Bytes()); err == nil {
		err = receive(c.x.body(c.out, mostAnswer(c.o.MaxPack)), req, w)
	}
	if err != nil {
		return c.explain(ctx, err)
	}
	return nil
}

// receive reads an answer, and writes the pack in it.
func receive(in io.Reader, req *packp.UploadPackRequest, w io.Writer) error {
	res := packp.NewUploadPackResponse(req)
	if err := res.Decode(io.NopCloser(in)); err != nil {
		return err
	}
	return copyPack(w, res, req)
}

// Close ends the conversation: politely where nothing was asked for.
func (c *sshConversation) Close() {
	if c.in != nil {
		if !c.asked {
			_, _ = c.in.Write(pktline.FlushPkt)
		}
		_ = c.in.Close()
	}
	if c.session != nil {
		_ = c.session.Close()
	}
	if c.client != nil {
		_ = c.client.Close()
		_ = c.client.Wait()
	}
	if c.conn != nil {
		_ = c.conn.Close()
	}
	c.x.stop()
}

// explain says what is wrong with the response, or why there was none.
func (c *sshConversation) explain(ctx context.Context, err error) error {
	var fault *fetchError
	var odd *packp.ErrUnexpectedData
	if errors.As(err, &fault) || c.x.ctx.Err() != nil {
		return c.x.explain(ctx, c.from, err, errCut)
	}
	if line, ok := errors.AsType[*pktline.ErrorLine](err); ok {
		return c.from.refused(line.Text)
	}
	cutOff := errors.Is(err, packp.ErrEmptyInput) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if cutOff || errors.As(err, &odd) {
		_ = c.in.Close()
		end := c.session.Wait() // so that all of its words are here; the exchange ends a long wait
		_, failed := errors.AsType[*ssh.ExitError](end)
		if text := c.said.String(); text != "" && (cutOff || odd.Msg != "") && c.x.ctx.Err() == nil {
			if end == nil || failed {
				return c.from.refused(text)
			}
			// without a status of the command, the connection was cut, and the text may be of the login shell
			return c.from.Fault(errCut, "the server says: "+text, "this is retried", err)
		}
		if !cutOff && !strings.Contains(odd.Msg, "EOF") {
			return c.from.Fault(errNotGit, odd.Msg, "check the URL; a login shell that prints something also causes this", err)
		}
	}
	return c.x.explain(ctx, c.from, err, errCut)
}

// unconnected explains why the connection failed.
func (c *sshConversation) unconnected(ctx context.Context, err error) error {
	if strings.Contains(err.Error(), "unable to authenticate") {
		return c.from.Fault(errDenied, "the server accepts none of the keys of user "+c.user(), "add the public key to those that may read the repository", err)
	}
	if strings.Contains(err.Error(), "no common algorithm") || strings.Contains(err.Error(), "overflow reading version") {
		f := c.from.Fault(errUnreachable, err.Error(), "check the port in the URL, and the version of the server", err)
		f.temporary = false
		return f
	}
	return c.x.explain(ctx, c.from, err, errUnreachable)
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
