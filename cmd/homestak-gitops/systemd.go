package main

import (
	"context"
	"log/slog"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/view"
)

// herald tells the service manager how the agent is (sd_notify(3)), feeds its watchdog,
// and gives memory back after passes. Without a service manager the notices go
// nowhere. Its goroutine owns everything in it but the channels.
type herald struct {
	statuses mailbox
	reloads  chan time.Time // when a look was asked for by the manager
	stopping <-chan struct{}

	notify   func(state string) error // one message; it reaches nobody without a manager
	watchdog time.Duration            // the manager ends a service that is silent for so long; 0: never
	stuck    func() time.Time         // see agent.Agent.Stuck
	log      *slog.Logger

	ready    bool
	reload   time.Time // of a reload that was not answered yet
	status   string    // status text that was sent last
	starving bool      // the watchdog is not fed
	last     time.Time // end of the pass that memory was given back after
	spent    uint64    // bytes allocated until then
}

// mailbox holds the newest status, for one reader: whoever puts one never waits.
type mailbox chan agent.Status

// put replaces what was not read yet. It is for one writer.
func (m mailbox) put(s agent.Status) {
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
	readyPatience  = 60 * time.Second // for the first look at the repository; a unit that waits longer would be taken for dead
	reloadPatience = 5 * time.Second  // for the look of a reload to begin: a pass under way may take long
)

// run tells until ctx ends.
func (h *herald) run(ctx context.Context) {
	late := time.NewTimer(readyPatience)
	defer late.Stop()
	reloaded := time.NewTimer(0)
	defer reloaded.Stop()
	var feed <-chan time.Time
	if h.watchdog > 0 {
		ticker := time.NewTicker(h.watchdog / 2)
		defer ticker.Stop()
		feed = ticker.C
	}
	stopping := h.stopping
	for {
		select {
		case s := <-h.statuses:
			h.state(s)
		case at := <-h.reloads:
			h.reload = at
			h.send(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
			reloaded.Reset(reloadPatience)
		case <-reloaded.C:
			h.reloaded()
		case <-late.C:
			h.isReady()
		case <-feed:
			h.feed()
		case <-stopping:
			stopping = nil
			h.send(daemon.SdNotifyStopping)
		case <-ctx.Done():
			select {
			case <-stopping: // the agent ended so soon that both came together
				h.send(daemon.SdNotifyStopping)
			default:
			}
			return
		}
	}
}

// state takes in a status.
func (h *herald) state(s agent.Status) {
	tried := s.Repository.Checked != nil || s.Repository.Error != ""
	if tried {
		h.isReady()
	}
	if looked := s.Repository.Checked; !h.reload.IsZero() && (s.State == agent.Checking || looked != nil && looked.After(h.reload)) {
		h.reloaded()
	}
	if text := strings.ReplaceAll(view.Printable(s.Summary), "\n", " "); text != h.status && text != "" {
		h.status = text
		h.send("STATUS=" + text)
	}
	if s.State == agent.Idle && s.Last != nil && !s.Last.Ended.Equal(h.last) { // not After: clocks are set back
		h.last = s.Last.Ended
		h.giveBack()
	}
}

func (h *herald) isReady() {
	if !h.ready {
		h.ready = true
		h.send(daemon.SdNotifyReady)
	}
}

// reloaded ends a reload, if one is open: the look that it asked for has begun, or
// comes after the pass under way.
func (h *herald) reloaded() {
	if !h.reload.IsZero() {
		h.reload = time.Time{}
		h.send(daemon.SdNotifyReady)
	}
}

// feed tells the watchdog that all is well, as long as it is.
func (h *herald) feed() {
	since := h.stuck()
	if since.IsZero() {
		h.starving = false
		h.send(daemon.SdNotifyWatchdog)
		return
	}
	if !h.starving {
		h.starving = true
		h.log.Error("the agent does not come on, so the watchdog is not fed any more", "since", since)
	}
}

func (h *herald) send(state string) {
	if err := h.notify(state); err != nil {
		h.log.Debug("the service manager got no notice", "error", err)
	}
}

// passWorth is how many bytes a pass must have allocated to be worth a collection: a
// small site allocates little, and what the collector costs is more than it holds.
const passWorth = 8 << 20

// giveBack returns to the system what a pass needed and the agent does not: it sleeps
// for most of its life, and by itself the runtime would keep the memory for minutes.
func (h *herald) giveBack() {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	if now := sample[0].Value.Uint64(); now-h.spent > passWorth {
		h.spent = now
		debug.FreeOSMemory()
	}
}

// sdNotify sends one message to the service manager, if there is one.
func sdNotify(state string) error {
	_, err := daemon.SdNotify(false, state)
	return err
}
