package service

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/homestak/homestak-gitops/engine/control"
)

// Claim makes this process the one agent of its data folder, until release is called. It is
// a *control.RefusedError where another one is.
func (c *Config) Claim(verb, socket string) (release func() error, err error) {
	unlock, err := (control.Holder{Verb: verb, Socket: socket}).Lock(control.Folder(c.DataDir).AgentLock())
	locked, isLocked := errors.AsType[*control.LockedError](err)
	switch {
	case isLocked && verb != "agent" && locked.By.Verb == "agent":
		return nil, &control.RefusedError{Err: fmt.Errorf("an agent works with %s already: it was started %w\nstart a pass there instead: homestak-gitops reconcile", c.DataDir, locked)}
	case isLocked:
		return nil, &control.RefusedError{Err: fmt.Errorf("an agent works with %s already: it was started %w\none agent has one data folder: end it, or name another with --data-dir", c.DataDir, locked)}
	case err != nil:
		return nil, fmt.Errorf("use data folder %s: %w\n%s", c.DataDir, err, control.Folder(c.DataDir).Hint(err))
	}
	// At the beginning too: a run of root that was killed did not hand over.
	if err := control.Folder(c.DataDir).HandOver(); err != nil {
		unlock()
		return nil, err
	}
	return func() error {
		defer unlock()
		return control.Folder(c.DataDir).HandOver()
	}, nil
}

// Others finds other agents on this machine for a host of the same name. It may be another
// host, of another site: that is for people to decide.
func (c *Config) Others(ctx context.Context) []control.Card {
	sockets := []string{control.StandardSocket}
	if dir, err := ownDataDir(c.env); err == nil {
		sockets = append(sockets, control.ReadHolder(control.Folder(dir).AgentLock()).Socket)
	}
	var out []control.Card
	for _, socket := range slices.Compact(sockets) {
		if socket == "" {
			continue
		}
		r, err := control.Dial(ctx, socket)
		if err == nil && r.Card.Identity == c.Identity && r.Card.DataDir != c.DataDir {
			out = append(out, r.Card)
		}
	}
	return out
}
