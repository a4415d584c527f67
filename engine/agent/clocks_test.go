package agent_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// An agent whose clock was a year ahead or behind before it was started again goes on at once: by what the files say, everything is
// in the future or a year old.
func TestS7ClockBetweenTwoRuns(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, clocks := range [][2]time.Duration{{year, 0}, {0, year}} { // each run has a clock of its own
		t.Run(fmt.Sprint(clocks), func(t *testing.T) {
			dir, host := t.TempDir(), &enginetest.Host{Holds: model.State{}}
			var ids []string
			for run, clock := range clocks {
				synctest.Test(t, func(t *testing.T) {
					w := &world{t: t, repo: newRepo(), host: &eye{Host: host}, dir: dir, log: &enginetest.Log{}}
					defer w.end()
					<-time.After(clock)
					w.repo.push("c1", boxes(map[string]int{"a": 1}))
					if run == 1 {
						w.repo.push("c2", boxes(map[string]int{"a": 2}))
					}
					w.start()
					w.pass(time.Second)
					require.Equal(t, fmt.Sprintf("a=%d", run+1), w.holds())

					// A commit is in force within a poll, and what is changed by hand is put back by the next full check.
					next := fmt.Sprintf("c%d", run+2)
					w.repo.push(next, boxes(map[string]int{"a": run + 2}))
					require.Equal(t, next, w.pass(67*time.Second).Converged.ID)
					w.byHand(func(s model.State) { delete(s, model.Address{Kind: "box", Name: "a"}) })
					w.pass(time.Hour)
					require.Equal(t, fmt.Sprintf("a=%d", run+2), w.holds())
					require.True(t, w.agent.Stuck().IsZero())

					// Receipts stay in the order in which things happened.
					list := w.receipts()
					require.Greater(t, len(list), len(ids))
					require.WithinDuration(t, time.Now(), list[0].Began, 2*time.Hour)
					for i, id := range ids {
						require.Equal(t, id, list[len(list)-len(ids)+i].ID)
					}
					ids = nil
					for _, r := range list {
						ids = append(ids, r.ID)
					}
				})
			}
		})
	}
}
