package node

import (
	"context"
	"errors"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Wait asks the parent, by long polls, whether there is work for the node: another spec, a requested check, or tasks. After
// each it calls start with what there is, "" for nothing, which returns when the next one may begin. Open returns the parent as it is known by now; note gets errors,
// once for each in a row. It ends with ctx.
func (f Folder) Wait(ctx context.Context, open func() (Server, error), start func(ctx context.Context, what string) error, note func(error)) error {
	var pause wire.Backoff
	said := ""
	for {
		err := f.waitOnce(ctx, open, start)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		next := wire.Jitter(wire.MinPollInterval)
		if err == nil {
			pause.Reset()
			said = ""
		} else {
			if text := err.Error(); text != said {
				said = text
				note(err)
			}
			next = pause.Next()
		}
		if !wire.Sleep(ctx, next, nil) {
			return context.Cause(ctx)
		}
	}
}

// errUnchanged is of a node that does not get what its parent has for it.
var errUnchanged = errors.New("the parent has another spec, and it was not fetched: homestak-gitops config fetch shows why")

// waitOnce is one poll.
func (f Folder) waitOnce(ctx context.Context, open func() (Server, error), start func(ctx context.Context, what string) error) error {
	s, err := open()
	if err != nil {
		return err
	}
	tag := f.tag(s.Client.Parent.Server)
	what, _, err := s.Client.Wait(ctx, tag)
	switch {
	case err != nil:
		return err
	case what == "token":
		return f.renew(ctx, open)
	}
	if err := start(ctx, what); err != nil {
		return err
	}
	if what == "spec" && f.tag(s.Client.Parent.Server) == tag {
		return errUnchanged
	}
	return nil
}

// renew fetches, for the token that comes with the answer. Nothing is applied: a spec that is new, too, is fetched with
// the next poll.
func (f Folder) renew(ctx context.Context, open func() (Server, error)) error {
	unlock, err := f.Lock(ctx, nil)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := open() // another run may have renewed it
	if err != nil {
		return err
	}
	got, err := s.Client.Spec(ctx, f.tag(s.Client.Parent.Server))
	if err != nil || got.NotModified {
		return err
	}
	return s.renew(got)
}
