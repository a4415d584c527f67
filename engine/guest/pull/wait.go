package pull

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Pauses of Wait: between two polls, and after one that failed or changed nothing; the latter doubles each time.
const (
	betweenPolls = 2 * time.Second
	firstPause   = 5 * time.Second
	mostPause    = 5 * time.Minute
)

// Wait asks the parent, by long polls, whether there is something to do for the node: another spec, or somebody who wants it
// to check itself. Then it calls start, which returns when that is done. Open gives the parent as it is known by now; what is
// wrong goes to note, once for each error in a row. It ends with ctx.
func (f Folder) Wait(ctx context.Context, open func() (Server, error), start func(context.Context) error, note func(error)) error {
	pause, said := firstPause, ""
	for {
		err := f.waitOnce(ctx, open, start)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		next := betweenPolls
		if err == nil {
			pause, said = firstPause, ""
		} else {
			if text := err.Error(); text != said {
				said = text
				note(err)
			}
			next, pause = pause, min(2*pause, mostPause)
		}
		timer := time.NewTimer(time.Duration(float64(next) * (0.8 + 0.4*rand.Float64()))) //nolint:gosec // nobody gains by knowing it
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// errUnchanged is of a node that does not get what its parent has for it.
var errUnchanged = errors.New("the parent has another spec, and it was not fetched: homestak-gitops config fetch shows why")

// waitOnce is one poll.
func (f Folder) waitOnce(ctx context.Context, open func() (Server, error), start func(context.Context) error) error {
	s, err := open()
	if err != nil {
		return err
	}
	tag := f.tag(s.Client.Parent.Server)
	what, _, err := s.Client.Wait(ctx, tag)
	if err != nil || what == "" {
		return err
	}
	if err := start(ctx); err != nil {
		return err
	}
	if what == "spec" && f.tag(s.Client.Parent.Server) == tag {
		return errUnchanged
	}
	return nil
}
