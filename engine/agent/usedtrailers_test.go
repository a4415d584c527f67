package agent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
)

// back is a forced push that takes the newest n commits off the branch; again pushes
// them again.
func (w *world) back(n int) (again func()) {
	taken := slices.Clone(w.repo.branch[len(w.repo.branch)-n:])
	w.set(func() { w.repo.branch = w.repo.branch[:len(w.repo.branch)-n] })
	return func() { w.set(func() { w.repo.branch = append(w.repo.branch, taken...) }) }
}

func TestATrailerIsNotUsedAgainByABranchThatComesBack(t *testing.T) {
	live(t, func(w *world) {
		var grants []int
		w.repo.push("c1", boxes(four()))
		w.start()
		w.repo.push("c2", asking(map[string]int{"a": 1}, &grants), "Allow-Deletes: 3")
		w.look()
		require.Equal(t, "a=1", w.holds())
		again := w.back(1)
		w.look()
		require.Equal(t, "a=1 b=1 c=1 d=1", w.holds())
		again()
		s := w.look()
		require.Equal(t, []int{3, 0}, grants)
		require.Equal(t, "trailer Allow-Deletes of commit c2 is ignored", s.Last.Findings[0].Summary)

		w.end() // and not after a restart either
		again = w.back(1)
		w.start()
		again()
		w.look()
		require.Equal(t, []int{3, 0, 0}, grants)
		w.repo.push("c3", asking(nil, &grants), "Allow-Deletes: 1")
		w.look()
		require.Equal(t, 1, grants[len(grants)-1], "a new commit may ask anew")
	})
}

// What a pass that broke off has used is void, too, where the host then converges to
// another branch.
func TestATrailerThatIsUsedInPartIsVoidOnAnotherBranch(t *testing.T) {
	live(t, func(w *world) {
		var grants []int
		w.repo.push("c0", boxes(four()))
		w.repo.push("c1", boxes(four()))
		w.start()
		d := asking(map[string]int{"a": 1}, &grants)
		d.Site.Manifests["web"].OnError = "continue"
		w.set(func() { w.host.Fail = map[string]error{"box.d": errors.New("locked")} })
		w.repo.push("c2", d, "Allow-Deletes: 5")
		require.Equal(t, engine.Partly, w.look().Last.Outcome)
		require.Equal(t, 2, w.state().Consumed)
		again := w.back(2)
		w.look()
		require.Equal(t, "c0", w.state().Converged.ID)
		grants = nil
		again()
		w.look()
		require.Equal(t, []int{0}, grants)
	})
}

// The first commit that a host converges to grants nothing, also not when it comes back.
func TestTheFirstCommitGrantsNothingLater(t *testing.T) {
	live(t, func(w *world) {
		var grants []int
		w.repo.push("c1", boxes(four()))
		w.repo.push("c2", asking(map[string]int{"a": 1}, &grants), "Allow-Deletes: 3")
		w.start()
		again := w.back(1)
		w.look()
		again()
		w.look()
		require.Equal(t, []int{0, 0}, grants)
	})
}

// A program that is killed between two removals has written down the first.
func TestRemovalsAreBookedOneByOne(t *testing.T) {
	live(t, func(w *world) {
		var booked []int
		w.options = func(o *agent.Options) {
			o.Width = 1
			o.Notify = func(s agent.Status) {
				if s.Running != nil && s.Running.Done > 0 {
					booked = append(booked, w.state().Consumed)
				}
			}
		}
		w.repo.push("c1", boxes(four()))
		w.start()
		booked = nil
		w.repo.push("c2", boxes(map[string]int{"a": 1}), "Allow-Deletes: 2")
		w.look()
		require.Subset(t, booked, []int{1, 2})
		require.NotContains(t, booked, 3, "the third was not granted by the trailer")
	})
}

func TestWhatWasNotKeptIsKeptLater(t *testing.T) {
	live(t, func(w *world) {
		state := filepath.Join(w.dir, "state.json")
		require.NoError(t, os.Mkdir(state, 0o700), "so that no file can take its place")
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		require.NoError(t, os.Remove(state))
		w.pass(6 * time.Minute)
		require.Equal(t, "c1", w.state().Converged.ID)
	})
}

func TestThatNothingCanBeKeptIsSaidOnce(t *testing.T) {
	live(t, func(w *world) {
		w.repo.before = func(_ context.Context, call string) {
			if call == "keep" {
				panic("no such commit here")
			}
		}
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.pass(10 * time.Minute)
		require.Equal(t, 1, strings.Count(w.log.String(), "does not know which commits to keep"))
	})
}
