package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// attempt is the running check of one guest. The goroutine of Run owns it.
type attempt struct {
	Prober
	Subject
	at   guest.Address // as it was found; none while it must be asked for
	last netip.Addr    // as it was found last
}

// try runs a check once. It returns the result of a check that passed, or an error with the result.
func (a *attempt) try(ctx context.Context, c *model.Check) (string, error) {
	switch c.Way() {
	case model.WayReport:
		return a.Reported(a.Address.Name)
	case model.WayHTTP:
		e, err := model.HTTPEndpoint(c.HTTP)
		return a.tryAt(ctx, e, err, func(n network, addr string) (string, error) { return a.tryHTTP(ctx, n, c, e, addr) })
	case model.WayTCP:
		e, err := model.TCPEndpoint(c.TCP)
		return a.tryAt(ctx, e, err, func(n network, addr string) (string, error) { return a.tryTCP(ctx, n, c, addr) })
	case model.WaySSH:
		return a.tryAt(ctx, model.Endpoint{Port: sshPort}, nil, func(n network, addr string) (string, error) { return a.trySSH(ctx, n, addr) })
	case model.WayAgent:
		began := time.Now()
		if err := a.Machine.Ping(ctx); err != nil {
			return "", whyEnded(ctx, err)
		}
		return "the guest agent answered in " + short(time.Since(began)), nil
	default:
		return a.tryCommand(ctx, c)
	}
}

// tryAt tries an endpoint over the network; for a simulated guest it only reports whether the guest
// is up. unread is why the endpoint cannot be read.
func (a *attempt) tryAt(ctx context.Context, e model.Endpoint, unread error, way func(n network, addr string) (string, error)) (string, error) {
	if unread != nil {
		return "", unreadable(unread)
	}
	addr, err := a.target(ctx, e)
	switch {
	case err != nil:
		return "", err
	case a.Simulated == nil:
		return way(a.network(e), addr)
	case e.Host == "":
		if err := a.Simulated(a.at.IP); err != nil {
			return "", fmt.Errorf("%s: %w", addr, err)
		}
	}
	return addr + ": assumed to answer, because it is simulated", nil
}

// target returns the address of an endpoint, for Dial and for texts.
func (a *attempt) target(ctx context.Context, e model.Endpoint) (string, error) {
	port := strconv.Itoa(e.Port)
	if e.Host != "" {
		return net.JoinHostPort(e.Host, port), nil
	}
	if !a.at.IP.IsValid() {
		at, err := a.Machine.Address(ctx)
		if err != nil {
			return "", fmt.Errorf("its address is unknown: %w", whyEnded(ctx, err))
		}
		a.at, a.last = at, at.IP
	}
	return net.JoinHostPort(a.at.IP.String(), port), nil
}

// longestBanner limits how much of a server's first output is read.
const longestBanner = 4 << 10

func (a *attempt) tryTCP(ctx context.Context, n network, c *model.Check, addr string) (string, error) {
	conn, err := a.dial(ctx, n, addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if c.Expect == "" {
		return fmt.Sprintf("%s: accepted in %s", addr, short(conn.took)), nil
	}
	var got strings.Builder
	buf := make([]byte, 512)
	for got.Len() < longestBanner {
		n, err := conn.Read(buf)
		got.Write(buf[:n])
		if strings.Contains(got.String(), c.Expect) {
			return fmt.Sprintf("%s: began with: %s", addr, a.line(got.String())), nil
		}
		if err != nil && got.Len() == 0 {
			return "", fmt.Errorf("%s: %s", addr, conn.story(err))
		}
		if err != nil {
			break
		}
	}
	return "", fmt.Errorf("%s: began without %q: %s", addr, c.Expect, a.line(got.String()))
}

// tryCommand runs a command inside the guest. If the outcome of a try is unknown, it runs again: a
// declared command may run more than once.
func (a *attempt) tryCommand(ctx context.Context, c *model.Check) (string, error) {
	if c.Command == "" {
		return "", &HopelessError{"its command uses a secret that is unknown here"}
	}
	out, err := a.Machine.Run(ctx, guest.Command{Args: []string{"/bin/sh", "-c", c.Command}})
	switch {
	case err != nil:
		return "", whyEnded(ctx, err)
	case out.Signal != 0:
		return "", fmt.Errorf("killed by signal %d%s", out.Signal, a.wrote(out))
	case out.Code != 0:
		return "", fmt.Errorf("exit %d%s", out.Code, a.wrote(out))
	case c.Expect != "" && a.Simulated == nil && !strings.Contains(out.Out, c.Expect):
		return "", fmt.Errorf("exit 0, but its output has no %q%s", c.Expect, a.wrote(out))
	}
	return "exit 0" + a.wrote(out), nil
}

// wrote says what a command wrote: of its errors if there are any, else of its output.
func (a *attempt) wrote(out guest.Output) string {
	for _, w := range []struct{ name, text string }{{"stderr", out.Err}, {"stdout", out.Out}} {
		if text := strings.TrimSpace(w.text); text != "" {
			return fmt.Sprintf(", %s: %s", w.name, cut(diag.Line(a.redact(text)), most))
		}
	}
	return ""
}

// unreadable is an endpoint that cannot be read: the loader has refused it, unless it is
// made from a secret that is not known here.
func unreadable(err error) error {
	return &HopelessError{fmt.Sprintf("the target is unknown: it %v", err)}
}

// whyEnded prefers the cause of a cancellation to the resulting error.
func whyEnded(ctx context.Context, err error) error {
	if ctx.Err() == nil || guest.Hopeless(err) {
		return err
	}
	return cmp.Or(context.Cause(ctx), errors.New("ended"))
}
