package service

import (
	"context"
	"log/slog"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// sdNotifier reports to the service manager how the agent is (sd_notify(3)), feeds its
// watchdog, and gives memory back after passes. Without a service manager the notices go
// nowhere. Its goroutine owns everything in it but the channels.
type sdNotifier struct {
	statuses mailbox
	reloads  chan time.Time // when the manager asked for a reload
	stopping <-chan struct{}

	notify   func(state string) error // sends one message; does nothing without a service manager
	watchdog time.Duration            // the manager ends a service that is silent for so long; 0: never
	stuck    func() time.Time         // see agent.Agent.Stuck
	log      *slog.Logger

	ready    bool
	reload   time.Time // of a reload that was not answered yet
	status   string    // status text that was sent last
	starving bool      // the watchdog is not fed
	last     time.Time // end of the pass that memory was given back after
	before   uint64    // bytes that were allocated until then
	passed   uint64    // bytes that were allocated until the end of the last pass
	shared   bool      // the process is that of simulated hosts too, and of other agents on them
}

// mailbox holds the newest status, for one reader; writing never blocks.
type mailbox chan agent.Status

// Put replaces what was not read yet. It is for one writer.
func (m mailbox) Put(s agent.Status) {
	for {
		select {
		case m <- s:
			return
		default:
		}
		select {
		case <-m:
		default:
		}
	}
}

const (
	readyPatience  = 60 * time.Second // for the first check of the repository; a unit that waits longer would be taken for dead
	reloadPatience = 5 * time.Second  // for the check of a reload to begin: a pass under way may take long
)

// run reports until ctx ends.
func (n *sdNotifier) run(ctx context.Context) {
	late := time.NewTimer(readyPatience)
	defer late.Stop()
	reloaded := time.NewTimer(0)
	defer reloaded.Stop()
	var feed <-chan time.Time
	if n.watchdog > 0 {
		ticker := time.NewTicker(n.watchdog / 2)
		defer ticker.Stop()
		feed = ticker.C
	}
	stopping := n.stopping
	for {
		select {
		case s := <-n.statuses:
			n.state(s)
		case at := <-n.reloads:
			n.reload = at
			n.send(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
			reloaded.Reset(reloadPatience)
		case <-reloaded.C:
			n.reloaded()
		case <-late.C:
			n.isReady()
		case <-feed:
			n.feed()
		case <-stopping:
			stopping = nil
			n.send(daemon.SdNotifyStopping)
		case <-ctx.Done():
			select {
			case <-stopping: // the agent ended so soon that both came together
				n.send(daemon.SdNotifyStopping)
			default:
			}
			return
		}
	}
}

// state takes in a status.
func (n *sdNotifier) state(s agent.Status) {
	tried := s.Repository.Checked != nil || s.Repository.Error != ""
	if tried {
		n.isReady()
	}
	if checked := s.Repository.Checked; !n.reload.IsZero() && (s.State == agent.Checking || checked != nil && checked.After(n.reload)) {
		n.reloaded()
	}
	if text := strings.ReplaceAll(diag.Clean(s.Summary), "\n", " "); text != n.status && text != "" {
		n.status = text
		n.send("STATUS=" + text)
	}
	if s.State == agent.Idle && s.Last != nil && !s.Last.Ended.Equal(n.last) { // not After: clocks are set back
		n.last = s.Last.Ended
		n.giveBack()
	}
}

func (n *sdNotifier) isReady() {
	if !n.ready {
		n.ready = true
		n.send(daemon.SdNotifyReady)
	}
}

// reloaded ends a reload, if one is open: the check that it asked for has begun, or
// comes after the pass under way.
func (n *sdNotifier) reloaded() {
	if !n.reload.IsZero() {
		n.reload = time.Time{}
		n.send(daemon.SdNotifyReady)
	}
}

// feed feeds the watchdog as long as all is well.
func (n *sdNotifier) feed() {
	since := n.stuck()
	if since.IsZero() {
		n.starving = false
		n.send(daemon.SdNotifyWatchdog)
		return
	}
	if !n.starving {
		n.starving = true
		n.log.Error("the agent makes no progress, so it stops feeding the watchdog", "since", since)
	}
}

func (n *sdNotifier) send(state string) {
	if err := n.notify(state); err != nil {
		n.log.Debug("the service manager got no notice", "error", err)
	}
}

// passWorth is the number of bytes that a pass must have allocated to be worth a collection: a
// small site allocates little, and what the collector costs is more than it holds.
const passWorth = 8 << 20

// giveBack returns memory to the system after a pass: the agent is mostly idle, and the runtime would keep the
// memory for minutes. After a pass that was large alone, as each is that loads a commit, it also returns the code
// of the program. If the process has much memory of others, a collection costs more than it saves.
func (n *sdNotifier) giveBack() {
	if n.shared {
		return
	}
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	now := sample[0].Value.Uint64()
	if now-n.before > passWorth {
		n.before = now
		debug.FreeOSMemory()
	}
	if now-n.passed > passWorth {
		if err := unmap(programMappings()); err != nil {
			n.log.Debug("the pages of the program stay mapped", "error", err)
		}
	}
	n.passed = now
}

// sdNotify sends one message to the service manager, if there is one.
func sdNotify(state string) error {
	_, err := daemon.SdNotify(false, state)
	return err
}
