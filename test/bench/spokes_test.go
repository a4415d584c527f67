package bench_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

// spokeCount is the number of hosts that have the same parent in P21.
const spokeCount = 1000

// spoke is what an agent does with its parent, and nothing else: it waits for news, fetches the configuration and the
// repository, and reports. It makes no plan and has no host.
type spoke struct {
	name    string
	up      *client.Uplink
	repo    *source.Repository
	due     chan struct{} // gets a value when the repository is to be asked
	commit  atomic.Pointer[string]
	arrived chan<- time.Time // gets the time at which another commit was in its copy of the repository
}

// spokes is P21: one hub, the program in a process of its own, and 1,000 hosts that have it as their parent. They are in this process,
// and have an address each, as the hub limits connections by address. Their requests are those of agents, by the same code.
func (m *meter) spokes() {
	if !m.hasGit("P21") {
		return
	}
	const rest = 2 * time.Minute
	f := fleet.Fleet{Guests: 1, Nodes: names(1), Files: 1}
	host := m.host(hosting{Fleet: f})
	p := m.publish(f, host.access)
	require.NoError(m.b, os.WriteFile(filepath.Join(p.dir, "spokes.hcl"), spokesFile(), 0o600))
	p.push("The spokes")
	a := m.follow(p, host, never)
	var s agent.Status
	require.NoError(m.b, a.ask(http.MethodGet, "/status", &s))
	pid := a.cmd.Process.Pid
	alone := memoryOf(pid, "VmRSS")

	ctx, end := context.WithCancel(m.ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	arrived := make(chan time.Time, spokeCount)
	began, used := time.Now(), a.used()
	for n := range spokeCount {
		x := m.spoke(n, a, s.Server)
		x.arrived = arrived
		running.Go(func() { x.up.Run(ctx) })
		running.Go(func() { x.follow(ctx) })
		if n >= starting {
			m.arrivals(arrived, 1)
		}
	}
	m.arrivals(arrived, starting)
	m.notef("P21: the first clone, configuration and report of %d spokes took %s and %s CPU of the hub. Its memory was %s before.",
		spokeCount, seconds(sec(time.Since(began))), seconds(sec(a.used()-used)), mebibytes(float64(alone)))
	m.pause(time.Minute) // polls and reports spread

	used = a.used()
	m.pause(rest)
	share := sec(a.used()-used) / sec(rest)
	memory := memoryOf(pid, "VmRSS")

	p.retag(f.Name(1), "pushed")
	used, here := a.used(), usedHere(m)
	pushed := p.push("Another tag")
	require.NoError(m.b, a.ask(http.MethodPost, "/reconcile", nil))
	took := each(m.arrivals(arrived, spokeCount), func(at time.Time) time.Duration { return at.Sub(pushed) })
	cost, here := a.used()-used, usedHere(m)-here
	m.pause(rest / 2) // the reports that follow
	require.NoError(m.b, a.ask(http.MethodGet, "/status", &s))
	require.Equal(m.b, p.head(), s.Converged.ID)
	var tree wire.Report
	require.NoError(m.b, a.ask(http.MethodGet, "/tree", &tree))
	known := 0
	for _, x := range tree.Nodes {
		if strings.HasPrefix(x.Name, "branch-") && x.Commit == p.head() {
			known++
		}
	}
	m.add(
		row{"P21", "a push until the last of 1,000 spokes at one hub has it", "–", sec(slices.Max(took)), 0, seconds, open, "–"},
		row{"", "the same, p95", "–", sec(at95(took)), 0, seconds, open, "–"},
		row{"", "CPU of the hub until then", "–", sec(cost), 0, seconds, open, "–"},
		row{"", "at rest, each reports every 60 s: share of a CPU", "–", share, 0, percent, open, "–"},
		row{"", "memory of the hub at rest", "–", float64(memory), 0, mebibytes, open, "–"},
		row{"", "its peak", "–", float64(memoryOf(pid, "VmHWM")), 0, mebibytes, open, "–"},
	)
	m.notef("P21: the spokes shared the processors with the hub, and used %s CPU for the push. The hub's own host was as the commit says after %s. The first spoke had the commit after %s, half of them after %s. A minute later the hub knew %d of them at the new commit.",
		seconds(sec(here)), seconds(sec(s.Converged.Since.Sub(pushed))), seconds(sec(slices.Min(took))), seconds(sec(median(took))), known)
	end()
	running.Wait()
	a.end()
	require.NoError(m.b, host.stop())
}

// spoke makes a spoke of an agent.
func (m *meter) spoke(n int, a *agentProcess, hub *agent.ServerStatus) *spoke {
	x := &spoke{name: spokeName(n), due: make(chan struct{}, 1)}
	ring, err := keys.Folder(filepath.Join(a.data, daemon.Folder)).Read()
	require.NoError(m.b, err)
	token, err := ring[0].MintToken(keys.Claims{Node: x.name, Spec: keys.ForAgent, Issued: time.Now().Unix(), Expires: time.Now().Add(keys.TokenLifetime).Unix()})
	require.NoError(m.b, err)
	pins, err := wire.ParsePins(hub.Pins)
	require.NoError(m.b, err)
	parent := wire.Parent{Identity: x.name, Server: "https://" + hub.Address, Pins: pins, Token: token}
	dir := filepath.Join(a.data, "..", x.name)
	require.NoError(m.b, os.Mkdir(dir, 0o700))
	from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(n/250), byte(1+n%250))}}
	x.up, err = client.OpenUplink(client.UplinkOptions{
		Given: parent, File: filepath.Join(dir, "parent.json"), Agent: "bench", Every: time.Minute, Log: slog.New(slog.DiscardHandler), Dial: from.DialContext,
		Report: x.report, Tasks: make(chan struct{}, 1), Check: x.check,
	})
	require.NoError(m.b, err)
	x.repo, err = source.OpenRepository(source.Options{Dir: filepath.Join(dir, "repository"), URL: parent.Server + "/site.git", Transport: x.up.Transport()})
	require.NoError(m.b, err)
	return x
}

// check makes a poll of the repository due.
func (x *spoke) check() {
	select {
	case x.due <- struct{}{}:
	default: // it is due already
	}
}

// follow fetches the repository whenever that is due.
func (x *spoke) follow(ctx context.Context) {
	for {
		select {
		case <-x.due:
		case <-ctx.Done():
			return
		}
		head, err := x.repo.Head(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			wire.Sleep(ctx, wire.Jitter(time.Second), nil)
			x.check()
		default:
			if before := x.commit.Swap(&head.ID); before == nil || *before != head.ID {
				x.arrived <- time.Now()
			}
			x.up.PassEnded()
		}
	}
}

// report is the report of an agent with one guest.
func (x *spoke) report() ([]byte, error) {
	commit := *cmp.Or(x.commit.Load(), new(string))
	return json.Marshal(wire.Report{
		Version: wire.ReportVersion, Identity: x.name, Agent: "1.2.3", Commit: commit, LastGood: commit, At: time.Now().UTC(), Every: 60, Phase: wire.PhaseRun, Ready: true,
		Findings: diag.List{}, Nodes: []wire.ReportNode{{Name: "vm-of-" + x.name, Type: "vm", Parent: x.name, Phase: wire.PhaseRun, Ready: true, Since: time.Now().UTC()}},
	})
}

// arrivals waits until so many spokes have another commit.
func (m *meter) arrivals(arrived <-chan time.Time, n int) []time.Time {
	limit := time.NewTimer(10 * time.Minute)
	defer limit.Stop()
	out := make([]time.Time, 0, n)
	for len(out) < n {
		select {
		case at := <-arrived:
			out = append(out, at)
		case <-limit.C:
			require.Fail(m.b, "spokes do not get the commit", "%d of %d have it", len(out), n)
		}
	}
	return out
}

func spokeName(n int) string { return fmt.Sprintf("branch-%04d", n) }

// spokesFile declares the spokes, with a guest on each.
func spokesFile() []byte {
	var b strings.Builder
	for n := range spokeCount {
		name := spokeName(n)
		fmt.Fprintf(&b, "host %q {\n  parent = host.father\n}\nmanifest \"of-%s\" {\n  pattern = \"flat\"\n  host    = host.%s\n  node \"vm-of-%s\" {\n    type   = \"vm\"\n    preset = preset.app\n    image  = image.debian-12\n  }\n}\n", name, name, name, name)
	}
	return []byte(b.String())
}
