// Package bench_test measures the program against the goals for its speed and
// prints them as one table:
//
//	go test ./test/bench -run '^$' -bench .
//
// A row has what we reach, and the floor beside it: what a program would need that
// does only what cannot be left out, against the same simulated host in the same
// run. Machines differ and have bad days, ratios hardly do. Counts are not only
// printed here but also tested, in test/integration; times are never tested, and
// nothing fails because of a figure.
//
// Every figure is that of a whole process, from its start to its end. The simulated
// host is another one (this test binary again, see TestMain), and so is the floor.
// Runs of ours and of the floor take turns, so that a bad moment hits both, and
// what is printed is the median.
//
// HOMESTAK_BENCH_ONLY=P9,P13 measures these goals alone, and those measured with them. Of
// P15, serving takes less than a minute; company and children take minutes.
package bench_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

// The roles that this binary plays beside that of the test.
const (
	roleVar  = "HOMESTAK_BENCH_ROLE"  // host, floor, parse, bare or nothing
	setupVar = "HOMESTAK_BENCH_SETUP" // JSON, what the role needs to know
)

// onlyVar names the goals to measure, separated by commas; empty for all.
const onlyVar = "HOMESTAK_BENCH_ONLY"

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(roleVar) {
	case "host":
		err = serve(context.Background(), os.Getenv(setupVar), os.Stdin, os.Stdout)
	case "floor":
		var host access
		if err = json.Unmarshal([]byte(os.Getenv(setupVar)), &host); err == nil {
			err = floor(context.Background(), host)
		}
	case "parse":
		var dir string
		if err = json.Unmarshal([]byte(os.Getenv(setupVar)), &dir); err == nil {
			err = parse(dir)
		}
	case "bare":
		err = bare(os.Getenv(setupVar))
	case "nothing":
	default:
		m.Run()
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// BenchmarkGoals measures everything once, however often it is asked to.
func BenchmarkGoals(b *testing.B) {
	m := &meter{b: b, ctx: b.Context(), dir: b.TempDir()}
	m.build()
	for _, part := range []struct {
		goals   string
		measure func()
	}{
		{"P16", m.program},
		{"P1,P2,P3,P4,P5", m.check},
		{"P6,P7", m.scale},
		{"P8", m.create},
		{"P9", m.deploy},
		{"P10", m.nothingNew},
		{"P11,P12", m.idle},
		{"P13", m.validate},
		{"P19", m.imports},
		{"P20", m.watching},
		{"tree", m.tree},
		{"P14", m.rules},
		{"P15,serving", m.serving},
		{"P15,company", m.company},
		{"P15,restart", m.restarting},
		{"P15,children", m.reporting},
		{"P21", m.spokes},
		{"P17,P18", m.config},
	} {
		if wanted(part.goals) {
			part.measure()
		}
	}
	if m.agents > 0 {
		m.notef("P10: of %d agents that ran, %d had child processes. None could find a program to run.", m.agents, m.parents)
	}
	require.NoError(b, write(os.Stdout, m.rows, m.notes))
}

// wanted reports whether one of some goals is to be measured.
func wanted(goals string) bool {
	only := os.Getenv(onlyVar)
	return only == "" || slices.ContainsFunc(strings.Split(goals, ","), func(goal string) bool {
		return slices.Contains(strings.Split(only, ","), goal)
	})
}

// meter collects the rows of the table.
type meter struct {
	b     *testing.B
	ctx   context.Context
	dir   string
	bin   string
	self  string
	rows  []row
	notes []string

	agents, parents int // that ran, and those of them that had children
}

func (m *meter) add(rows ...row) { m.rows = append(m.rows, rows...) }

func (m *meter) notef(format string, args ...any) {
	m.notes = append(m.notes, fmt.Sprintf(format, args...))
}

// build makes the binary as it is released.
func (m *meter) build() {
	self, err := os.Executable()
	require.NoError(m.b, err)
	m.self, m.bin = self, filepath.Join(m.dir, "homestak-gitops")
	r, err := measure(m.ctx, command{
		name: "go", args: []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", m.bin, "github.com/homestak/homestak-gitops/cmd/homestak-gitops"},
		env: []string{"CGO_ENABLED=0"},
	})
	require.NoError(m.b, err)
	require.Zero(m.b, r.code, r.stderr)
}

// runProgram is a run of the program; it must end well.
func (m *meter) runProgram(watch bool, args ...string) run {
	r, err := measure(m.ctx, command{name: m.bin, args: args, env: []string{"HOMESTAK_DATA_DIR=" + m.dir}, rss: watch})
	require.NoError(m.b, err)
	require.Zero(m.b, r.code, "homestak-gitops %v\n%s\n%s", args, r.stdout, r.stderr)
	return r
}

// role is a run of this binary in another role.
func (m *meter) role(name string, setup any, watch bool) run {
	text, err := json.Marshal(setup)
	require.NoError(m.b, err)
	r, err := measure(m.ctx, command{name: m.self, env: []string{roleVar + "=" + name, setupVar + "=" + string(text)}, rss: watch})
	require.NoError(m.b, err)
	require.Zero(m.b, r.code, r.stderr)
	return r
}

// host starts a simulated host, and stops it when the benchmark is over.
func (m *meter) host(h hosting) *server {
	s, err := startServer(m.ctx, h)
	require.NoError(m.b, err)
	return s
}

// site writes the files of a site into a new folder.
func (m *meter) site(files map[string]string) string {
	dir, err := os.MkdirTemp(m.dir, "site-")
	require.NoError(m.b, err)
	for name, text := range files {
		name = filepath.Join(dir, name)
		require.NoError(m.b, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(m.b, os.WriteFile(name, []byte(text), 0o600))
	}
	return dir
}

// program is P16: what it costs to be there at all. The floor is a Go program that
// links the same libraries and does nothing.
func (m *meter) program() {
	var ours, nothing []run
	for range 11 {
		ours = append(ours, m.runProgram(false, "version"))
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

// imports is P19: the guests of a host are written as files. The floor is that of P1.
func (m *meter) imports() {
	const guests = 500
	host := m.host(hosting{Fleet: fleet.Fleet{Guests: guests, Nodes: names(4)}, Latency: 20 * time.Millisecond, ByHand: true})
	token := filepath.Join(m.site(map[string]string{"token": host.access.Token}), "token")
	var ours, bare []run
	for range 3 {
		dir := m.site(nil)
		r := m.runProgram(false, "import", "--host", host.access.API, "--fingerprint", host.access.Fingerprint, "--token-file", token, "--out", dir, "--json")
		var doc struct{ Imported, Skipped []json.RawMessage }
		require.NoError(m.b, json.Unmarshal([]byte(r.stdout), &doc), r.stdout)
		require.Len(m.b, doc.Imported, guests-1, "%s", r.stdout)
		ours, bare = append(ours, r), append(bare, m.role("floor", host.access, false))
	}
	require.NoError(m.b, host.stop())
	m.add(row{"P19", "import, 500 guests, 4 nodes, 20 ms", "1.5 × floor", sec(wall(ours)), sec(wall(bare)), seconds, met(sec(wall(ours)) <= 1.5*sec(wall(bare))), "–"})
	m.notef("P19 CPU: ours %s, floor %s.", seconds(sec(cpu(ours))), seconds(sec(cpu(bare))))
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
	require.Len(m.b, after.Lags, tasks*cloned, "ends of tasks that were seen")
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
	made = m.runProgram(false, "apply", "--site", dir, "--yes", "--json")
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
		r := m.runProgram(latency == 0, "plan", "--site", dir, "--json")
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

// row is one line of the table: a goal, our figure, the floor, and the figure of a usual tool for the same work.
type row struct {
	id, what    string
	goal        string
	ours, floor float64 // floor 0: there is none
	unit        unit
	met         verdict
	peer        string // OpenTofu with the bpg provider, or who is named; as recorded on another machine
}

// verdict says whether a goal is met.
type verdict string

const (
	yes  verdict = "yes"
	no   verdict = "NO"
	open verdict = "–" // cannot be said from these figures alone
)

func met(is bool) verdict {
	if is {
		return yes
	}
	return no
}

// unit says how a figure is written.
type unit func(float64) string

func seconds(v float64) string {
	if v < 0.1 {
		return fmt.Sprintf("%.1f ms", v*1000)
	}
	return fmt.Sprintf("%.2f s", v)
}

func tenths(v float64) string    { return fmt.Sprintf("%.1f", v) }
func pieces(v float64) string    { return fmt.Sprintf("%.0f", v) }
func perVM(v float64) string     { return fmt.Sprintf("%.1f", v) }
func exponent(v float64) string  { return fmt.Sprintf("%.2f", v) }
func mebibytes(v float64) string { return fmt.Sprintf("%.1f MiB", v/(1<<20)) }
func megabytes(v float64) string { return fmt.Sprintf("%.1f MB", v/1e6) }

// write writes the table. Ratios come from one run on one machine, so they can be
// compared between machines; the figures beside them cannot.
func write(w io.Writer, rows []row, notes []string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "goal\twhat\tat most\tours\tfloor\tratio\tmet\trecorded: OpenTofu + bpg, or who is named")
	for _, r := range rows {
		floor, ratio := "–", "–"
		if r.floor > 0 {
			floor, ratio = r.unit(r.floor), fmt.Sprintf("%.2f", r.ours/r.floor)
		}
		fmt.Fprintln(t, strings.Join([]string{r.id, r.what, r.goal, r.unit(r.ours), floor, ratio, string(r.met), r.peer}, "\t"))
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	for _, n := range notes {
		fmt.Fprintln(w, "*", n)
	}
	return nil
}

func sec(d time.Duration) float64 { return d.Seconds() }

// run is one process, from its start to its end.
type run struct {
	wall, cpu time.Duration
	rss       int64 // peak of its resident memory in bytes; 0 where it was not asked for
	code      int
	stdout    string
	stderr    string
}

// command is a process to measure.
type command struct {
	name string
	args []string
	env  []string // beside that of this process
	rss  bool     // watch its memory; that costs some CPU of this process
}

// measure runs a process to its end. That it exits with another code than 0 is no
// error; that it cannot be run is.
func measure(ctx context.Context, c command) (run, error) {
	var out, text bytes.Buffer
	cmd := exec.CommandContext(ctx, c.name, c.args...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Stdout, cmd.Stderr = &out, &text
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return run{}, fmt.Errorf("start %s: %w", c.name, err)
	}
	peak := func() int64 { return 0 }
	if c.rss {
		peak = watchMemory(cmd.Process.Pid)
	}
	err := cmd.Wait()
	r := run{wall: time.Since(began), rss: peak(), stdout: out.String(), stderr: text.String()}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return r, fmt.Errorf("run %s: %w", c.name, err)
	}
	r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	r.code = cmd.ProcessState.ExitCode()
	if r.rss == 0 {
		// Of systems without /proc. Elsewhere this figure is not good enough: the memory
		// of the process that started another one counts into it.
		if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			r.rss = int64(usage.Maxrss) << 10 //nolint:unconvert // An int32 on systems of 32 bits.
		}
	}
	return r, nil
}

// watchMemory follows the high-water mark of a process until the function that it
// returns is called, which gives it in bytes.
func watchMemory(pid int) func() int64 {
	stop, peak := make(chan struct{}), make(chan int64)
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		last := int64(0)
		for {
			select {
			case <-tick.C:
				last = max(last, memoryOf(pid, "VmHWM"))
			case <-stop:
				peak <- last
				return
			}
		}
	}()
	return func() int64 { close(stop); return <-peak }
}

// memoryOf reads one figure about the memory of a process (proc_pid_status(5)), in
// bytes; 0 when the process is gone.
func memoryOf(pid int, name string) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}

// cpuOf is the CPU that a process that runs has used, to the microsecond: what its
// threads say of themselves. The sum that times(2) gives is counted in steps of 10 ms.
func cpuOf(pid int) (time.Duration, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err == nil && len(threads) == 0 {
		err = fs.ErrNotExist
	}
	var sum time.Duration
	for _, name := range threads {
		text, rerr := os.ReadFile(name)
		var ns int64
		if rerr == nil {
			_, rerr = fmt.Sscan(string(text), &ns)
		}
		err, sum = errors.Join(err, rerr), sum+time.Duration(ns)
	}
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return sum, nil
}

// childrenOf says whether a process had children that it waited for: by the pages
// that they touched (cminflt in proc_pid_stat(5)), since no process starts without.
func childrenOf(pid int) (bool, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false, fmt.Errorf("read the children of process %d: %w", pid, err)
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the name before it may hold anything
	fields := strings.Fields(rest)
	const cminflt = 11 - 3 // the first two were cut off, and lists begin with 0
	if len(fields) <= cminflt {
		return false, fmt.Errorf("read the children of process %d: %q is not understood", pid, text)
	}
	return fields[cminflt] != "0", nil
}

// sizeOf is how many bytes the files of a folder have.
func sizeOf(dir string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	return sum, err
}

// at95 is the value that 95 % of the values do not exceed.
func at95[T int64 | float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)*95+99)/100-1]
}

// median is the value in the middle; of an even number, the greater of the two.
func median[T int | int64 | float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// each takes one figure of every run.
func each[R, T any](runs []R, figure func(R) T) []T {
	out := make([]T, len(runs))
	for i, r := range runs {
		out[i] = figure(r)
	}
	return out
}

func wall(runs []run) time.Duration {
	return median(each(runs, func(r run) time.Duration { return r.wall }))
}

func cpu(runs []run) time.Duration {
	return median(each(runs, func(r run) time.Duration { return r.cpu }))
}

func rss(runs []run) int64 { return median(each(runs, func(r run) int64 { return r.rss })) }

// concurrency is how many requests are in flight at once, ours and of the floor.
const concurrency = 10

// floor does the reads of a full check and nothing else: the list of guests, then
// the configuration of each, over connections that are kept. A check of every guest over this API cannot do less.
func floor(ctx context.Context, host access) error {
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // A floor has no duties.
		MaxConnsPerHost:     concurrency,
		MaxIdleConnsPerHost: concurrency,
		DisableCompression:  true,
	}}
	defer client.CloseIdleConnections()
	get := func(path string, into any) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, host.API+"/api2/json"+path, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "PVEAPIToken="+host.Token)
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s", path, res.Status)
		}
		return json.NewDecoder(res.Body).Decode(into)
	}
	type guest struct {
		VMID int    `json:"vmid"`
		Node string `json:"node"`
		Name string `json:"name"`
	}
	var list struct{ Data []guest }
	if err := get("/cluster/resources?type=vm", &list); err != nil {
		return err
	}
	work := make(chan guest, len(list.Data))
	for _, g := range list.Data {
		work <- g
	}
	close(work)
	errs := make([]error, concurrency)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			for g := range work {
				var config struct{ Data map[string]any }
				if errs[i] = get(fmt.Sprintf("/nodes/%s/qemu/%d/config", g.Node, g.VMID), &config); errs[i] != nil {
					return
				}
				if config.Data["name"] == nil {
					errs[i] = fmt.Errorf("guest %d has no name", g.VMID)
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
