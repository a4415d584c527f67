package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/specserve/tasks"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Wait waits for news of the parent in a loop, and starts the unit that fetches the spec and applies it. It ends
// with ctx, and at once without a parent, or without a token for it.
func (r Run) Wait(ctx context.Context, from Source) error {
	switch s, err := r.open(from); {
	case errors.Is(err, wire.ErrNoParent):
		r.Note("nothing to wait for: %s", err)
		return nil
	case err != nil:
		return err
	case s.Client.Parent.Token == "":
		r.Note("nothing to wait for: the parent answers only who shows a token, and this machine has none\nits timer asks for the spec now and then")
		return nil
	}
	r.Note("waiting for news of the parent")
	open := func() (Server, error) { return r.open(from) }
	var w *tasks.Worker
	var unlock func()
	defer func() {
		if w != nil {
			w.Wait()
			unlock()
		}
	}()
	start := func(ctx context.Context, what string) error {
		if what == "" || what == "queue" {
			var err error
			if w == nil { // still nil if another run has the tasks until it ends
				w, unlock, err = r.worker(from)
			}
			if w != nil && (what == "queue" || w.Due()) {
				return w.Turn(ctx) // what it begins goes on meanwhile
			}
			return err
		}
		r.Note("the parent has news")
		return r.startPull(ctx)
	}
	return Folder{Path: r.Folder}.Wait(ctx, open, start, func(err error) { r.Note("%s", err) })
}

// startPull runs the unit, and waits for its end.
func (r Run) startPull(ctx context.Context) error {
	out, err := r.machine().Run(ctx, guest.Command{Args: []string{"systemctl", "start", aspect.PullService}})
	if err == nil && out.Code != 0 {
		err = fmt.Errorf("%s: %s", aspect.PullService, strings.TrimSpace(out.Err))
	}
	return err
}
