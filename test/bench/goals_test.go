package bench_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

// program is P16: what it costs to be there at all. The floor is a Go program that
// links the same libraries and does nothing.
func (m *meter) program() {
	var ours, nothing []run
	for range 11 {
		ours = append(ours, m.ours(false, "version"))
		nothing = append(nothing, m.role("nothing", nil, false))
	}
	info, err := os.Stat(m.bin)
	require.NoError(m.b, err)
	m.add(
		row{"P16", "start to exit of version", "20 ms", sec(wall(ours)), sec(wall(nothing)), seconds, met(wall(ours) <= 20*time.Millisecond), "35 ms"},
		row{"", "size of the binary", "40 MB", float64(info.Size()), 0, megabytes, met(info.Size() <= 40e6), "143.5 MB"},
	)
}

// check is P1 to P5: a plan that finds 500 guests on 4 nodes as they shall be.
func (m *meter) check() {
	const guests, nodes = 500, 4
	f := fleet.Fleet{Guests: guests, Nodes: names(nodes), Files: 10}
	ours, bare, counted, floorCounted := m.plans(f, 20*time.Millisecond, 3)
	quick, quickBare, _, _ := m.plans(f, 0, 5)

	requests, connections := counted.Requests, counted.Connections
	mayRequest := guests + 3*nodes + 5
	mayConnect := concurrency + requests/100 + nodes
	m.add(
		row{"P1", "no-change plan, 500 guests, 4 nodes, 20 ms", "1.4 × floor", sec(wall(ours)), sec(wall(bare)), seconds, met(sec(wall(ours)) <= 1.4*sec(wall(bare))), "23.1 s"},
		row{"P2", "the same at 0 ms", "0.24 s", sec(wall(quick)), sec(wall(quickBare)), seconds, met(wall(quick) <= 240*time.Millisecond), "24.1 s"},
		row{"P3", "CPU of that", "0.32 s", sec(cpu(quick)), sec(cpu(quickBare)), seconds, met(cpu(quick) <= 320*time.Millisecond), "19.1 s"},
		row{"P4", "requests of a full check", fmt.Sprint(mayRequest), float64(requests), float64(floorCounted.Requests), pieces, met(requests <= mayRequest), "2,500"},
		row{"P5", "TLS connections of it", fmt.Sprint(mayConnect), float64(connections), float64(floorCounted.Connections), pieces, met(connections <= mayConnect), "904–1,174"},
	)
	m.notef("P1 CPU: ours %s, floor %s; most requests in service at once: ours %d, floor %d.",
		seconds(sec(cpu(ours))), seconds(sec(cpu(bare))), counted.PeakRequests, floorCounted.PeakRequests)
}

// scale is P6 and P7: how time and memory grow with the number of guests.
func (m *meter) scale() {
	type size struct{ guests, files, repeat int }
	var ours, bare []point
	var memory []run
	for _, z := range []size{{100, 1, 5}, {1000, 10, 5}, {10000, 100, 3}} {
		f := fleet.Fleet{Guests: z.guests, Nodes: names(8), Files: z.files}
		runs, floors, _, _ := m.plans(f, 0, z.repeat)
		ours = append(ours, point{float64(z.guests), sec(cpu(runs))})
		bare = append(bare, point{float64(z.guests), sec(cpu(floors))})
		if z.guests == 10000 {
			m.add(row{"P6", "no-change plan, 10,000 guests, 0 ms", "3 s", sec(wall(runs)), sec(wall(floors)), seconds, met(wall(runs) <= 3*time.Second), "–"})
		}
		memory = append(memory, run{rss: rss(runs)}, run{rss: rss(floors)})
		m.notef("%d guests in %d files: wall %s, CPU %s, peak memory %s.", z.guests, z.files, seconds(sec(wall(runs))), seconds(sec(cpu(runs))), mebibytes(float64(rss(runs))))
	}
	m.add(
		row{"P6", "slope of CPU over guests, 100 to 10,000", "1.05", slope(ours), slope(bare), exponent, met(slope(ours) <= 1.05), "1.14"},
		row{"P7", "peak memory of a plan, 1,000 guests", "74 MiB", float64(memory[2].rss), float64(memory[3].rss), mebibytes, met(memory[2].rss <= 74<<20), "299 MiB"},
		row{"P7", "the same, 10,000 in 100 files", "300 MiB", float64(memory[4].rss), float64(memory[5].rss), mebibytes, met(memory[4].rss <= 300<<20), "–"},
	)
}

// create is P8: 50 VMs cloned from a template on a host whose clones take 2.2 s; once
// where the other tasks take a moment, and once where they take as long. The floor is
// counted, not measured: waves of ten, each as long as its tasks and the seven
// requests that a VM needs.
func (m *meter) create() {
	const latency, taskTime = 20 * time.Millisecond, 2200 * time.Millisecond
	made, requests, _, after := m.clones(hosting{Latency: latency, Clones: taskTime})
	const waves = cloned / concurrency
	m.add(
		row{"P8", "50 VMs by clone of 2.2 s, 20 ms", "0.65 × tofu", sec(made.wall), sec(waves * (taskTime + 7*latency)), seconds, open, "19.9 s"},
		row{"", "requests for each of them", "11", requests, 7, perVM, met(requests <= 11), "21"},
	)
	m.notef("P8: most tasks at once %d; CPU %s. Its floor is computed: %d waves of a clone and 7 requests. Whether it is met needs tofu beside it.",
		after.PeakTasks, seconds(sec(made.cpu)), waves)

	made, requests, sent, after := m.clones(hosting{Latency: latency, TaskTime: taskTime})
	const tasks = 3 // clone, resize, start
	require.Len(m.b, after.Lags, tasks*cloned, "ends of tasks that somebody saw")
	lag := at95(after.Lags)
	m.add(
		row{"P8", "the same, resize and start of 2.2 s too", "–", sec(made.wall), sec(waves * (tasks*taskTime + 7*latency)), seconds, open, "–"},
		row{"", "requests for each of them", "11", requests, 7, perVM, met(requests <= 11), "–"},
		row{"", "end of a task until it is noticed, p95", "0.30 s", sec(lag), sec(latency), seconds, met(lag <= 300*time.Millisecond), "mean 0.5 s"},
	)
	m.notef("P8: ends of tasks are noticed after %s in the middle, %s at most.", seconds(sec(median(after.Lags))), seconds(sec(slices.Max(after.Lags))))
	m.notef("P8, requests of all %d: %s.", cloned, calls(sent.Calls))
}

// cloned is how many VMs P8 makes.
const cloned = 50

// clones makes VMs by clone on such a host.
func (m *meter) clones(h hosting) (made run, requests float64, sent, after traffic) {
	h.Fleet, h.Template, h.Ends = fleet.Fleet{Nodes: names(4)}, true, true
	host := m.host(h)
	f := h.Fleet
	f.Guests = cloned
	dir := m.site(f.Clones(host.access))
	before, err := host.traffic()
	require.NoError(m.b, err)
	made = m.ours(false, "apply", "--site", dir, "--yes", "--json")
	after, err = host.traffic()
	require.NoError(m.b, err)
	require.NoError(m.b, host.stop())
	require.Equal(m.b, before.Guests+cloned, after.Guests)
	sent = after.minus(before)
	return made, float64(sent.Requests) / cloned, sent, after
}

// plans measures plans of a fleet that is in sync, and the floor, in turns; and
// what the host counted of one of each.
func (m *meter) plans(f fleet.Fleet, latency time.Duration, repeat int) (ours, bare []run, counted, floorCounted traffic) {
	host := m.host(hosting{Fleet: f, Latency: latency})
	dir := m.site(f.Site(host.access))
	m.commit(dir)
	count := func() traffic {
		t, err := host.traffic()
		require.NoError(m.b, err)
		return t
	}
	for range repeat {
		before := count()
		r := m.ours(latency == 0, "plan", "--site", dir, "--json")
		m.inSync(r, f.Guests)
		between := count()
		bare = append(bare, m.role("floor", host.access, latency == 0))
		ours, counted, floorCounted = append(ours, r), between.minus(before), count().minus(between)
	}
	require.NoError(m.b, host.stop())
	return ours, bare, counted, floorCounted
}

// calls lists requests by what they ask for, most first.
func calls(by map[string]int) string {
	names := slices.SortedFunc(maps.Keys(by), func(a, b string) int { return cmp.Or(by[b]-by[a], strings.Compare(a, b)) })
	var out []string
	for _, name := range names {
		if by[name] > 0 {
			out = append(out, fmt.Sprintf("%d × %s", by[name], name))
		}
	}
	return strings.Join(out, ", ")
}

// inSync voids a measurement of something else than a check without findings.
func (m *meter) inSync(r run, guests int) {
	var doc struct {
		Steps, Unknown, Findings []json.RawMessage
		Summary                  struct{ Unchanged int }
	}
	require.NoError(m.b, json.Unmarshal([]byte(r.stdout), &doc), r.stdout)
	require.Empty(m.b, doc.Steps)
	require.Empty(m.b, doc.Unknown)
	require.Empty(m.b, doc.Findings)
	require.GreaterOrEqual(m.b, doc.Summary.Unchanged, guests)
}

// commit makes a git checkout of a site, since that is what a site is in use.
func (m *meter) commit(dir string) {
	repo, err := git.PlainInit(dir, false)
	require.NoError(m.b, err)
	tree, err := repo.Worktree()
	require.NoError(m.b, err)
	require.NoError(m.b, tree.AddWithOptions(&git.AddOptions{All: true}))
	_, err = tree.Commit("The site", &git.CommitOptions{Author: &object.Signature{Name: "bench", Email: "bench@fleet.example", When: time.Now()}})
	require.NoError(m.b, err)
}

// point is one measurement.
type point struct{ x, y float64 }

// slope is the exponent k of y = c·x^k that fits the points best: 1 is in
// proportion, 2 is twice as slow for every guest when there are twice as many.
func slope(points []point) float64 {
	var n, sx, sy, sxx, sxy float64
	for _, p := range points {
		x, y := math.Log(p.x), math.Log(p.y)
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("pve%d", i+1)
	}
	return out
}
