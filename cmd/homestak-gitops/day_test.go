package main

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// day is an agent, a repository and a simulated host through 24 hours of simulated
// time, and what the host must hold by what happened so far.
type day struct {
	t      *testing.T
	repo   *sourcetest.Repo
	sim    *pve.Host
	dark   atomic.Bool // the host answers nothing but 595
	agent  *agent.Agent
	data   string
	cores  map[string]int // of each wanted node, by name
	pushed string         // newest commit that is good
	names  int            // given so far
}

const dayFrame = `site "home" {
  vmid_range "guests" {
    from = 10000
    to   = 10999
  }
}

host "father" {
  api          = "https://192.0.2.10:8006"
  insecure_tls = true
}

image "debian-12" {
  url      = "https://images.example/debian-12.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
}

preset "vm-small" {
  cores  = 2
  memory = 2048
  disk   = 10
}
`

// TestADay lets an agent work for 24 hours, with pushes, bad and denied commits, work
// by hand on the host, a host and a repository that are away, and suspensions. After
// each of them the host is as it must be; in the end nothing has grown.
func TestADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := wake(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		stop := make(chan struct{})
		go func() { ended <- d.agent.Run(ctx, stop) }()

		events := []func(){d.push, d.byHand, d.typo, d.darkness, d.lost, d.withdraw, d.forbidden, d.rest}
		var early, late footprint
		const every = 30 * time.Minute
		for i := range 48 {
			began := time.Now()
			events[i%len(events)]()
			d.pass(every - time.Since(began))
			d.right()
			switch i {
			case 15:
				early = d.footprint()
			case 47:
				late = d.footprint()
			}
		}
		close(stop)
		require.NoError(t, <-ended)
		cancel()
		require.LessOrEqual(t, late.goroutines, early.goroutines, "goroutines")
		require.Less(t, late.heap, early.heap*5/4+1<<20, "bytes of live heap")
		require.LessOrEqual(t, late.files, early.files+16, "files of the clone")
		require.Less(t, late.bytes, 2*early.bytes, "bytes of the clone")
	})
}

func wake(t *testing.T) *day {
	t.Helper()
	d := &day{t: t, repo: sourcetest.New(t), data: filepath.Join(t.TempDir(), "agent"), cores: map[string]int{}}
	d.sim = pve.New(pve.Config{Node: "father", Guests: 3, TaskTime: 3 * time.Second, Fault: func(*http.Request) (int, bool) {
		if d.dark.Load() {
			return 595, false
		}
		return 0, false
	}})
	d.repo.Commit(map[string]string{"site.hcl": dayFrame}, "The frame")
	d.push()
	cfg := &service.Config{AgentFile: model.AgentFile{Identity: "father", DataDir: d.data, DriftEvery: 5 * time.Minute, Concurrency: 8}}
	cfg.Repository = &model.AgentRepository{URL: d.repo.Dir, Branch: "main", Poll: time.Minute, Auth: &model.AgentAuth{}}
	hosts := sim.Hosts{"father": d.sim}
	s, err := newService(cfg, session.Network{Transport: hosts.Transport, Reaches: hosts.Reaches}, nil, slog.New(slog.DiscardHandler), func(string) string { return "" })
	require.NoError(t, err)
	d.agent = s.Agent
	return d
}

// site is the text of the manifest with all nodes that are wanted.
func (d *day) site() string {
	var b strings.Builder
	b.WriteString("manifest \"web\" {\n  pattern = \"flat\"\n  host    = host.father\n")
	for _, name := range slices.Sorted(maps.Keys(d.cores)) {
		fmt.Fprintf(&b, "  node %q {\n    type   = \"vm\"\n    preset = preset.vm-small\n    image  = image.debian-12\n    cores  = %d\n  }\n", name, d.cores[name])
	}
	b.WriteString("}\n")
	return b.String()
}

func (d *day) commit(message string) {
	d.pushed = d.repo.Commit(map[string]string{"web.hcl": d.site()}, message)
}

// push adds a node. From the tenth on, the oldest goes in the same commit, so the
// number of nodes says nothing about what the agent keeps.
func (d *day) push() {
	d.names++
	d.cores[fmt.Sprintf("web-%02d", d.names)] = 1 + d.names%4
	if names := slices.Sorted(maps.Keys(d.cores)); len(names) > 9 {
		delete(d.cores, names[0])
	}
	d.commit(fmt.Sprintf("Node %d", d.names))
}

// withdraw takes the oldest node away, as long as there is one to spare.
func (d *day) withdraw() {
	if names := slices.Sorted(maps.Keys(d.cores)); len(names) > 2 {
		delete(d.cores, names[0])
	}
	d.commit("One fewer")
}

// byHand is a person at work on the host: one guest is switched off, one removed, one renamed.
func (d *day) byHand() {
	ours := d.managed()
	names := slices.Sorted(maps.Keys(ours))
	d.sim.Edit(func(e *pve.Edit) {
		e.Stop(ours[names[0]].VMID)
		last := ours[names[len(names)-1]].VMID
		if len(names) > 2 {
			e.Delete(last)
		} else {
			e.Set(last, "description", "mine now")
			e.Set(last, "name", "mine")
			e.Set(last, "description", ours[names[len(names)-1]].Config["description"])
		}
	})
}

// typo is a commit that is not valid. It is fixed after a while, with a node more.
func (d *day) typo() {
	bad := d.repo.Commit(map[string]string{"web.hcl": "manifest \"web\" {\n"}, "A typo")
	d.byHand()
	d.pass(12 * time.Minute)
	st := d.agent.Status()
	require.NotNil(d.t, st.Refused)
	require.Equal(d.t, bad, st.Refused.Commit)
	d.right() // by the last good commit
	d.push()
}

// darkness is a host that cannot be reached, while a commit comes.
func (d *day) darkness() {
	d.dark.Store(true)
	d.push()
	d.pass(12 * time.Minute)
	require.False(d.t, d.agent.Status().Healthy)
	d.dark.Store(false)
}

// lost is a repository that is away while a person works on the host.
func (d *day) lost() {
	d.repo.Remove()
	d.byHand()
	d.pass(12 * time.Minute)
	require.NotEmpty(d.t, d.agent.Status().Repository.Error)
	d.right()
	d.repo.Restore()
	d.push()
}

// forbidden is a commit that a policy denies.
func (d *day) forbidden() {
	const posture = "posture \"prod\" {\n  auth {\n    method = \"node_token\"\n  }\n  ssh {\n    password_authentication = \"yes\"\n  }\n}\n"
	bad := d.repo.Commit(map[string]string{"posture.hcl": posture}, "Easier logins")
	d.byHand()
	d.pass(12 * time.Minute)
	st := d.agent.Status()
	require.NotNil(d.t, st.Refused)
	require.Equal(d.t, bad, st.Refused.Commit)
	d.right()
	d.pushed = d.repo.Commit(map[string]string{"posture.hcl": sourcetest.Gone}, "As it was")
}

// rest is a suspension with an end, and a commit that waits for it.
func (d *day) rest() {
	until := time.Now().Add(15 * time.Minute)
	require.NoError(d.t, d.agent.Suspend(ledger.Suspension{Reason: "disks are swapped", By: "ops", Since: time.Now(), Until: &until}))
	before := d.sim.Snapshot().Writes
	d.push()
	d.pass(14 * time.Minute)
	require.Equal(d.t, before, d.sim.Snapshot().Writes, "it wrote while it was suspended")
}

// pass lets simulated time pass.
func (*day) pass(t time.Duration) {
	<-time.After(t)
	synctest.Wait()
}

func (d *day) managed() map[string]pve.Guest {
	out := map[string]pve.Guest{}
	for _, g := range d.sim.Snapshot().Guests {
		if strings.Contains(g.Config["description"], "homestak-gitops:") {
			require.NotContains(d.t, out, g.Name(), "two of one name")
			out[g.Name()] = g
		}
	}
	return out
}

// right requires that the host holds what the last good commit says.
func (d *day) right() {
	d.t.Helper()
	synctest.Wait()
	st := d.agent.Status()
	ours := d.managed()
	require.Equal(d.t, slices.Sorted(maps.Keys(d.cores)), slices.Sorted(maps.Keys(ours)), st.Summary)
	for name, g := range ours {
		require.True(d.t, g.Running, name)
		require.Equal(d.t, fmt.Sprint(d.cores[name]), g.Config["cores"], name)
	}
	require.NotNil(d.t, st.InForce)
	require.Equal(d.t, d.pushed, st.InForce.ID, st.Summary)
}

// footprint is what the agent takes up.
type footprint struct {
	goroutines, files int
	heap, bytes       int64
}

func (d *day) footprint() footprint {
	d.t.Helper()
	synctest.Wait()
	runtime.GC()
	runtime.GC() // the second one empties the pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f := footprint{goroutines: runtime.NumGoroutine(), heap: int64(m.HeapAlloc)} //nolint:gosec // far from its limit
	require.NoError(d.t, filepath.WalkDir(filepath.Join(d.data, "repository"), func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			f.files, f.bytes = f.files+1, f.bytes+info.Size()
		}
		return err
	}))
	return f
}
