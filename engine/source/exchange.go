package source

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// exchange is one conversation over a network. It has a total and an idle timeout, and records how
// the connection failed, because go-git's errors do not say that.
type exchange struct {
	ctx     context.Context // ends with the conversation; why is its cause
	cancel  context.CancelCauseFunc
	timeout time.Duration
	quiet   *time.Timer
	total   *time.Timer
	failure error // the first one of the connection
}

var errTooSlow = errors.New("it took too long")

// newExchange begins a conversation with the deadlines of Options.Timeout.
func newExchange(ctx context.Context, timeout time.Duration) *exchange {
	x := &exchange{timeout: timeout}
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	end := func() { x.cancel(errTooSlow) }
	x.quiet, x.total = time.AfterFunc(timeout/2, end), time.AfterFunc(timeout, end)
	return x
}

// heard restarts the time of silence.
func (x *exchange) heard() { x.quiet.Reset(x.timeout / 2) }

// download gives the conversation the time that a pack may take.
func (x *exchange) download() {
	x.heard()
	x.total.Reset(10 * x.timeout)
}

func (x *exchange) stop() {
	x.quiet.Stop()
	x.total.Stop()
	x.cancel(context.Canceled)
}

// connectTime returns the time limit for connecting.
func connectTime(timeout time.Duration) time.Duration { return timeout / 4 }

// fail remembers the first failure of the connection, and returns it.
func (x *exchange) fail(err error) error {
	if x.failure == nil {
		x.failure = err
	}
	return err
}

// body is a reader of what comes, at most so many bytes.
func (x *exchange) body(r io.Reader, most int64) io.Reader {
	return &body{io.LimitedReader{R: r, N: most}, x}
}

type body struct {
	r io.LimitedReader
	x *exchange
}

func (b *body) Read(p []byte) (int, error) {
	if b.x.ctx.Err() != nil { // there may be more, but it is not needed
		return 0, b.x.fail(context.Cause(b.x.ctx))
	}
	n, err := b.r.Read(p)
	if n > 0 {
		b.x.heard()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.x.fail(err)
	}
	return n, err
}

func (x *exchange) tooSlow() bool { return errors.Is(context.Cause(x.ctx), errTooSlow) }

// mostRefs bounds the answer that lists the branches, in bytes.
const mostRefs = 64 << 20

// mostAnswer returns the maximum length of an answer with a pack of at most so many bytes:
// with its packets, and what comes before, which is read into memory.
func mostAnswer(pack int64) int64 { return pack + pack/8 + mostRefs }

// explain converts a failure to a fetchError; its kind is otherwise if nothing better is known. A
// cancellation by the caller is returned unchanged.
func (x *exchange) explain(ctx context.Context, from address, err, otherwise error) error {
	if x.failure != nil {
		err = x.failure
	}
	var already *fetchError
	var dns *net.DNSError
	var late net.Error
	switch {
	case errors.As(err, &already):
		return already
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case x.tooSlow(), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.As(err, &late) && late.Timeout():
		return from.Fault(errTimeout, "no answer in time", "this is retried", err)
	case errors.As(err, &dns):
		return from.Fault(errUnreachable, dns.Error(), "check the name in the URL, and the name servers", err)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return from.Fault(otherwise, "", "this is retried", err)
	}
	return from.Fault(otherwise, err.Error(), "this is retried", err)
}
