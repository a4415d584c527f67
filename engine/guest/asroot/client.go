package asroot

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// Client asks the helper of this machine.
type Client struct {
	Socket string
	Commit func() string // whose spec is asked for
}

// Ready returns why there is no helper, and what to do; nil if there is one.
func (c *Client) Ready() error {
	_, err := os.Stat(c.Socket)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("the agent is not root, and the helper that applies the spec of its host is not enabled: systemctl enable --now homestak-gitops-host.socket")
	}
	return err
}

// Observe compares this machine with a spec, and changes nothing.
func (c *Client) Observe(ctx context.Context, want *spec.Spec) (*Seen, error) {
	r, err := c.ask(ctx, want, true, converge.Options{})
	if err != nil {
		return nil, err
	}
	return decode(r.Seen, want)
}

// Apply makes this machine what a spec says. Of the options, only Stop, Started and Progress are used.
func (c *Client) Apply(ctx context.Context, want *spec.Spec, o converge.Options) error {
	_, err := c.ask(ctx, want, false, o)
	return err
}

// ask makes one request, and follows it to its end.
func (c *Client) ask(ctx context.Context, want *spec.Spec, dry bool, o converge.Options) (*result, error) {
	sum, err := digest(want)
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.Socket)
	if err != nil {
		return nil, fmt.Errorf("ask the helper for the spec of this host: %w\nits log: journalctl -u homestak-gitops-host", err)
	}
	defer func() { _ = conn.Close() }()
	cut := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer cut()
	ended := make(chan struct{})
	defer close(ended)
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, maxMessage)
	for begun := false; lines.Scan(); {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return nil, fmt.Errorf("the answer of the helper cannot be read: %w", err)
		}
		switch {
		case m.Result != nil:
			return m.Result, m.Result.err()
		case m.Nonce != "" && !begun:
			begun = true
			if err := json.NewEncoder(conn).Encode(request{version, m.Nonce, c.Commit(), sum, dry}); err != nil {
				return nil, fmt.Errorf("ask the helper for the spec of this host: %w", err)
			}
			go stopOn(o.Stop, ended, conn)
		case m.State != "" && o.Progress != nil:
			o.Progress(aspect.Step{Text: m.Step}, m.State)
		case m.State == "" && o.Started != nil:
			o.Started(aspect.Step{Text: m.Step})
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", guest.ErrOutcomeLost, context.Cause(ctx))
	}
	return nil, fmt.Errorf("%w: the helper ended before it answered: %w\nits log: journalctl -u homestak-gitops-host", guest.ErrOutcomeLost, errors.Join(lines.Err(), net.ErrClosed))
}

// stopOn asks the helper to end before its next step when stop is closed.
func stopOn(stop, ended <-chan struct{}, conn net.Conn) {
	select {
	case <-stop:
		_, _ = conn.Write([]byte("stop\n")) // it may have ended
	case <-ended:
	}
}

// err is how the request failed.
func (r *result) err() error {
	switch {
	case r.Stopped:
		return fmt.Errorf("%s: %w", r.Error, converge.ErrStopped)
	case r.Lost:
		return fmt.Errorf("%s: %w", r.Error, guest.ErrOutcomeLost)
	case r.Error != "":
		return errors.New(r.Error)
	}
	return nil
}
