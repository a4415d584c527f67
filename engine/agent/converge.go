package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

const verb = "agent"

// converge runs a pass while it has the exclusive right to write to the host in this process.
func (l *loop) converge(ctx context.Context) engine.Report {
	l.memory.expire(time.Now())
	began := time.Now()
	if err := l.acquireWrite(ctx); err != nil {
		r := notRun(l.o.Identity, engine.Failed, err)
		r.Seconds = seconds(time.Since(began))
		l.recordEnd(model.Commit{}, r, false)
		return r
	}
	defer func() { <-l.agent.write }()
	r := l.convergeHeadOrLastGood(ctx)
	l.progress = nil
	l.upstream.keep(ctx, l.memory.refs())
	return r
}

// acquireWrite waits for the right to write, which a client that paused the agent has.
func (l *loop) acquireWrite(ctx context.Context) (err error) {
	write := l.agent.write
	select {
	case write <- struct{}{}:
		return nil
	default:
	}
	l.enter(Waiting, 0)
	l.during(ctx, func(ctx context.Context) {
		select {
		case write <- struct{}{}:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	})
	return err
}

var errNothingKnown = errors.New("no commit to converge to: none fetched yet and no last-good commit recorded")

// convergeHeadOrLastGood makes the pass: with head, and where that is refused with the
// last good commit.
func (l *loop) convergeHeadOrLastGood(ctx context.Context) engine.Report {
	head, good := l.memory.Head.ID, l.memory.Good.ID
	var refused *engine.Report
	if c, err := l.upstream.commit(ctx, head); head != "" && err == nil {
		r := l.runPass(ctx, c)
		switch {
		case errors.Is(r.Err, ErrUnknownIdentity):
			l.recordUnknownIdentity(c, r)
			return r
		case !r.Denied:
			l.recordAccepted(c, r)
			return r
		}
		l.recordRefused(c, r)
		refused = &r
	}
	unknown := l.memory.Unknown.ID // head may know the identity again
	c, err := l.upstream.commit(ctx, good)
	var r engine.Report
	switch {
	case good == "" && refused == nil:
		r = notRun(l.o.Identity, engine.Failed, errNothingKnown)
		l.recordEnd(c, r, false)
		return r
	case good == head && refused != nil, good == "":
		return *refused
	case unknown != "":
		r = notRun(l.o.Identity, engine.Invalid, fmt.Errorf("%w: commit %s removed it, and no valid commit has declared it again", ErrUnknownIdentity, short(unknown)))
		l.recordEnd(model.Commit{ID: good}, r, false)
	case err != nil:
		r = notRun(l.o.Identity, engine.Failed, fmt.Errorf("commit %s is in force, and is not here any more: %w", short(good), err))
		l.recordEnd(model.Commit{ID: good}, r, false)
	default:
		if r = l.runPass(ctx, c); r.Denied {
			l.recordEnd(c, r, false)
		}
	}
	if refused != nil {
		r.Findings = append(slices.Clone(refused.Findings), r.Findings...)
		if r.Outcome != engine.Interrupted {
			r.Outcome, r.Success = refused.Outcome, false
		}
	}
	return r
}

// showLastGood reports the last good commit before the first response of the repository, which may be slow or
// unreachable. The pass that follows reports errors.
func showLastGood(ctx context.Context, l *loop) {
	c, known := l.upstream.commits[l.memory.Good.ID]
	if l.o.InForce == nil || !known {
		return
	}
	host, hosts := HostState{Converged: l.memory.Converged.ID}, map[string]ledger.HostBelow(nil)
	if !suspended(l.memory.Suspended, "") {
		host.Removed, hosts = slices.Sorted(maps.Keys(l.memory.Withdrawn)), l.memory.Hosts
	}
	l.during(ctx, func(ctx context.Context) {
		defer func() { _ = recover() }()
		d := l.o.Load(ctx, c)
		if d.Commit = c.ID; d.Site != nil && d.Site.HostFor(l.o.Identity) != nil {
			l.o.inForce(ctx, d, host, hosts)
		}
	})
}
