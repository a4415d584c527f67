package source

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// guard ends an exchange that takes too long, or in which nothing comes for a while.
type guard struct {
	ctx     context.Context // why it ended is asked of it
	cancel  context.CancelCauseFunc
	silence time.Duration
	quiet   *time.Timer
	whole   *time.Timer
}

var errTooSlow = errors.New("the time for it is over")

// newGuard watches over an exchange until stop is called, and ends the context that it
// gives.
func newGuard(ctx context.Context, silence, whole time.Duration) (context.Context, *guard) {
	g := &guard{silence: silence}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	end := func() { g.cancel(errTooSlow) }
	g.quiet, g.whole = time.AfterFunc(silence, end), time.AfterFunc(whole, end)
	return g.ctx, g
}

// heard says that something came.
func (g *guard) heard() { g.quiet.Reset(g.silence) }

func (g *guard) stop() {
	g.quiet.Stop()
	g.whole.Stop()
	g.cancel(context.Canceled)
}

// reader hears what is read.
func (g *guard) reader(r io.Reader) io.Reader { return &heard{r, g} }

type heard struct {
	r io.Reader
	g *guard
}

func (h *heard) Read(b []byte) (int, error) {
	if err := h.g.ctx.Err(); err != nil {
		return 0, err // the source may have more, but nobody wants it
	}
	n, err := h.r.Read(b)
	if n > 0 {
		h.g.heard()
	}
	return n, err
}

// The deadlines of Options.Timeout.
func connectTime(t time.Duration) time.Duration { return t / 4 }
func silentTime(t time.Duration) time.Duration  { return t / 2 }
func packTime(t time.Duration) time.Duration    { return 10 * t }

// trouble makes a RemoteError of what a connection reports; what is left is of kind
// otherwise. The caller's own end of ctx is given as it is.
func (g *guard) trouble(ctx context.Context, where string, err, otherwise error) error {
	var already *RemoteError
	var dns *net.DNSError
	switch {
	case errors.As(err, &already):
		return already
	case errors.Is(err, errLimit):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case g.tooSlow(), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), timedOut(err):
		return &RemoteError{Kind: ErrTimeout, Where: where, Detail: "no answer in time", Advice: "it is tried again", Err: err, temporary: true}
	case errors.As(err, &dns):
		return &RemoteError{Kind: ErrUnreachable, Where: where, Detail: dns.Error(), Advice: "look at the name in the URL, and at the name servers", Err: err, temporary: true}
	}
	detail := err.Error()
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		detail = ""
	}
	return &RemoteError{Kind: otherwise, Where: where, Detail: detail, Advice: "it is tried again", Err: err, temporary: true}
}

func (g *guard) tooSlow() bool { return errors.Is(context.Cause(g.ctx), errTooSlow) }

func timedOut(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}
