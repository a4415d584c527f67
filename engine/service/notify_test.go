package service

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
)

// notified is a notifier at work in a bubble, with what it told.
type notified struct {
	*notifier
	log  bytes.Buffer // read when the notifier rests
	stop chan struct{}
	end  func()

	mu   sync.Mutex
	said []string
	ill  time.Time
}

// stuckSince makes the agent one that does not come on.
func (g *notified) stuckSince(t time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ill = t
}

func startNotifier(watchdog time.Duration) *notified {
	g := &notified{stop: make(chan struct{})}
	g.notifier = &notifier{
		statuses: make(mailbox, 1), reloads: make(chan time.Time, 1), stopping: g.stop, watchdog: watchdog,
		notify: func(state string) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			line, _, _ := strings.Cut(state, "MONOTONIC_USEC=")
			g.said = append(g.said, strings.TrimSpace(line))
			return nil
		},
		stuck: func() time.Time {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.ill
		},
		log: slog.New(slog.NewTextHandler(&g.log, nil)),
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		g.run(ctx)
	}()
	g.end = func() { cancel(); <-over }
	return g
}

// heard gives what was told since the last time.
func (g *notified) heard() []string {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.said
	g.said = nil
	return out
}

// after lets time pass.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestReadyAfterTheFirstLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startNotifier(0)
		defer g.end()
		g.statuses.Put(agent.Status{State: agent.Starting, Summary: "starts"})
		require.Equal(t, []string{"STATUS=starts"}, g.heard())
		g.statuses.Put(agent.Status{State: agent.Idle, Summary: "no\nanswer", Repository: agent.RepositoryStatus{Error: "refused"}})
		require.Equal(t, []string{"READY=1", "STATUS=no answer"}, g.heard(), "a repository that is away does not keep the unit from starting")
		g.statuses.Put(agent.Status{State: agent.Idle, Summary: "no\nanswer"})
		after(time.Hour)
		require.Empty(t, g.heard(), "nothing is said twice")
		close(g.stop)
		require.Equal(t, []string{"STOPPING=1"}, g.heard())
		for range 20 {
			g := startNotifier(0)
			close(g.stop)
			g.end()
			require.Equal(t, []string{"STOPPING=1"}, g.heard(), "also where all ends at once")
		}
	})
}

func TestReadyAtLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startNotifier(0)
		defer g.end()
		after(readyPatience)
		require.Equal(t, []string{"READY=1"}, g.heard())
	})
}

func TestReloadIsOverWhenTheLookBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startNotifier(0)
		defer g.end()
		now := time.Now()
		g.statuses.Put(agent.Status{State: agent.Idle, Repository: agent.RepositoryStatus{Checked: &now}})
		require.Equal(t, []string{"READY=1"}, g.heard())
		g.reloads <- time.Now()
		require.Equal(t, []string{"RELOADING=1"}, g.heard())
		g.statuses.Put(agent.Status{State: agent.Checking, Repository: agent.RepositoryStatus{Checked: &now}})
		require.Equal(t, []string{"READY=1"}, g.heard())
		after(time.Minute)
		require.Empty(t, g.heard(), "once")

		g.reloads <- time.Now()
		after(time.Millisecond)
		later := time.Now()
		g.statuses.Put(agent.Status{State: agent.Idle, Repository: agent.RepositoryStatus{Checked: &later}})
		require.Equal(t, []string{"RELOADING=1", "READY=1"}, g.heard(), "a look that was over so soon that its state was not seen")

		g.reloads <- time.Now()
		g.statuses.Put(agent.Status{State: agent.Converging})
		after(reloadPatience)
		require.Equal(t, []string{"RELOADING=1", "READY=1"}, g.heard(), "the look comes after a pass that takes its time")
	})
}

func TestTheWatchdogOfAStuckAgentIsNotFed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startNotifier(20 * time.Second)
		defer g.end()
		g.statuses.Put(agent.Status{Repository: agent.RepositoryStatus{Error: "away"}})
		require.Equal(t, []string{"READY=1"}, g.heard())
		after(41 * time.Second)
		require.Equal(t, []string{"WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"}, g.heard())
		g.stuckSince(time.Now())
		after(20 * time.Second)
		require.Empty(t, g.heard())
		require.Equal(t, 1, strings.Count(g.log.String(), "it stops feeding the watchdog"), g.log.String())
		g.stuckSince(time.Time{})
		after(10 * time.Second)
		require.Equal(t, []string{"WATCHDOG=1"}, g.heard())
	})
}

func TestMailboxHoldsTheNewest(t *testing.T) {
	m := make(mailbox, 1)
	for _, s := range []string{"a", "b", "c"} {
		m.Put(agent.Status{Summary: s})
	}
	require.Equal(t, "c", (<-m).Summary)
	require.Empty(t, m)
}

func TestNotifySocket(t *testing.T) {
	require.NoError(t, sdNotify("READY=1"), "without a service manager it goes nowhere")
	name := filepath.Join(controltest.ShortDir(t), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	t.Setenv("NOTIFY_SOCKET", name)
	require.NoError(t, sdNotify("READY=1"))
	buf := make([]byte, 100)
	n, err := conn.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "READY=1", string(buf[:n]))
}

// A pass that ended before the last one did is one on a machine whose clock was set back.
func TestMemoryIsGivenBackAlsoWhereTheClockWasSetBack(t *testing.T) {
	h := &notifier{notify: func(string) error { return nil }}
	ended := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, at := range []time.Time{ended, ended.Add(-time.Hour)} {
		h.state(agent.Status{State: agent.Idle, Last: &agent.PassStatus{Ended: at}})
		require.Equal(t, at, h.last)
	}
}
