package agent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// chaos is a world in which anybody does anything at any time.
type chaos struct {
	*world
	r      *rand.Rand
	ctx    context.Context
	asked  sync.WaitGroup
	held   atomic.Int32 // somebody else is the one writer
	paused atomic.Bool  // everything is suspended
	life   atomic.Int32 // agents so far
	n      int          // commits so far
}

// Whatever is said to an agent, in whatever order: it changes nothing while somebody else
// is the one writer or all is suspended, nothing of a refused commit ever arrives, nobody
// waits for ever, and in the end the host is as the newest commit says.
func TestAnAgentInAStorm(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			live(t, func(w *world) { (&chaos{world: w, r: rand.New(rand.NewPCG(seed, 1))}).run() })
		})
	}
}

func (c *chaos) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.ctx = ctx
	c.set(func() {
		c.host.During = func(_ context.Context, s plan.Step) error {
			switch {
			case c.held.Load() > 0:
				c.t.Errorf("%s while somebody else is the one writer", s.Address)
			case c.paused.Load():
				c.t.Errorf("%s while everything is suspended", s.Address)
			case strings.HasPrefix(s.Address.Name, "evil") && s.Want != nil:
				c.t.Errorf("%s of a refused commit", s.Address)
			}
			<-time.After(time.Duration(s.VMID%7+1) * 13 * time.Second)
			return nil
		}
	})
	c.push()
	c.start()
	for range 150 {
		c.anything()
		c.pass(time.Duration(c.r.IntN(40)) * time.Second)
		require.Zero(c.t, c.agent.Stuck())
	}
	// The storm is over.
	c.asked.Wait()
	c.paused.Store(false)
	for _, s := range c.agent.Status().Suspended {
		_, err := c.agent.Resume(s.Manifest)
		require.NoError(c.t, err)
	}
	c.repo.fault(nil)
	c.push()
	s := c.pass(2 * time.Hour)
	require.Equal(c.t, engine.Done, s.Last.Outcome, s.Summary)
	require.True(c.t, s.Healthy, s.Summary)
	require.Equal(c.t, fmt.Sprintf("a=%d b=2", c.n), c.holds())
}

// push is of a good commit.
func (c *chaos) push() {
	c.n++
	c.repo.push(fmt.Sprintf("good%d", c.n), boxes(map[string]int{"a": c.n, "b": 2}))
}

func (c *chaos) anything() {
	until := time.Now().Add(time.Duration(c.r.IntN(300)+1) * time.Second)
	switch c.r.IntN(12) {
	case 0:
		c.push()
	case 1:
		d := boxes(map[string]int{fmt.Sprint("evil", c.r.IntN(9)): 1})
		d.Findings = diag.List{diag.Errorf(diag.Range{}, "no good", "")}
		c.repo.push(fmt.Sprint("bad", c.r.Uint64()), d)
	case 2:
		c.repo.push(fmt.Sprint("denied", c.r.Uint64()), denied(map[string]int{"evil": 1}, diag.FromGuard, func() bool { return true }))
	case 3:
		c.n++
		c.repo.rewrite(fmt.Sprintf("good%d", c.n), boxes(map[string]int{"a": c.n, "b": 2}))
	case 4:
		c.repo.fault([]error{nil, errors.New("no route")}[c.r.IntN(2)])
	case 5:
		c.suspend(ledger.Suspension{Manifest: []string{"", "web"}[c.r.IntN(2)], Reason: "x"}, until)
	case 6:
		c.paused.Store(false) // or more may be seen than is wrong
		_, err := c.agent.Resume([]string{"", "web"}[c.r.IntN(2)])
		require.NoError(c.t, err)
	case 7:
		c.hold(until)
	case 8:
		c.beside(func(ctx context.Context) { _, _ = c.agent.Reconcile(ctx) })
	case 9:
		c.agent.CheckNow()
	case 10:
		c.byHand(func(s model.State) { delete(s, enginetest.Addr("box", "a")) })
	case 11:
		if c.held.Load() == 0 { // a hold ends with the agent; the lock file, which does not, is not here
			c.life.Add(1)
			c.end()
			c.start()
		}
	}
}

func (c *chaos) suspend(s ledger.Suspension, until time.Time) {
	if c.r.IntN(2) == 0 {
		s.Until = &until
		c.paused.Store(c.paused.Load() && s.Manifest != "") // the word before is replaced
	}
	if c.agent.Suspend(s) == nil && s.Manifest == "" && s.Until == nil {
		synctest.Wait()
		c.paused.Store(true)
	}
}

// beside does something that waits, and sometimes loses patience.
func (c *chaos) beside(f func(context.Context)) {
	ctx, cancel := context.WithTimeout(c.ctx, time.Duration(c.r.IntN(600)+1)*time.Second)
	c.asked.Go(func() { defer cancel(); f(ctx) })
}

// hold makes somebody else the one writer for a while, as soon as may be.
func (c *chaos) hold(until time.Time) {
	agent, life := c.agent, c.life.Load()
	c.asked.Go(func() {
		release, err := agent.Pause(c.ctx, "cli")
		if err != nil {
			return
		}
		defer release()
		if life != c.life.Load() {
			return // of an agent that is no more
		}
		c.held.Add(1)
		<-time.After(time.Until(until))
		c.held.Add(-1)
	})
}
