package bench_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/test/bench/fleet"
	"github.com/homestak/homestak-gitops/test/forest"
)

// The tree that is measured: the father, its children, and the children of each, with one VM on each leaf.
const (
	branches = 20
	twigs    = 20
	agents   = 1 + branches + branches*twigs

	// starting is how many agents begin at once. Machines of their own would not share a processor.
	starting = 16
)

// counting counts what agents log of requests to their servers, and of what they ask their hosts.
type counting struct{ served, asked *atomic.Int64 }

func (counting) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (c counting) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "request" {
		c.served.Add(1)
	}
	return nil
}

func (c counting) WithAttrs([]slog.Attr) slog.Handler { return c }
func (c counting) WithGroup(string) slog.Handler      { return c }

// tree measures agents in a tree, all in this process, with links in memory and real time.
func (m *meter) tree() {
	var served, asked atomic.Int64
	repo := sourcetest.New(m.b)
	repo.Commit(treeFiles(1), "begin")
	var secrets strings.Builder
	secrets.WriteString(fleet.Auth + "api_tokens:\n  father: \"a@pve!b=1\"\n")
	for b := range branches {
		fmt.Fprintf(&secrets, "  b%d: \"a@pve!b=1\"\n", b)
		for t := range twigs {
			fmt.Fprintf(&secrets, "  b%d-t%d: \"a@pve!b=1\"\n", b, t)
		}
	}
	f, err := forest.New(m.ctx, "father", forest.Options{
		Dir: sourcetest.TempDir(m.b), Repository: repo.URL(), Secrets: secrets.String(),
		Log:   func(string) *slog.Logger { return slog.New(counting{&served, &asked}) },
		Fault: func(string, *http.Request) (int, bool) { asked.Add(1); return 0, false },
	})
	require.NoError(m.b, err)
	defer f.End()
	began := time.Now()
	m.grow(f, repo.Head())
	grown := time.Since(began)
	m.pause(time.Minute) // reports fold upward, and the first polls spread

	const rest = 2 * time.Minute
	served.Store(0)
	asked.Store(0)
	cpu := usedHere(m)
	m.pause(rest)
	cpu = usedHere(m) - cpu
	perMinute := func(n int64) float64 { return float64(n) / agents / rest.Minutes() }
	servedAtRest, askedAtRest := perMinute(served.Load()), perMinute(asked.Load())

	commit := repo.Commit(treeFiles(2), "push")
	pushed := time.Now()
	f.Machine("father").Agent().Agent.CheckNow()
	took := m.leavesAt(f, commit, pushed)

	with := heap()
	f.End()
	own := (with - heap()) / agents
	m.add(
		row{"tree", fmt.Sprintf("a push until it is converged at %d leaves, p95", len(took)), "–", sec(at95(took)), 0, seconds, open, "–"},
		row{"", "until the last of them", "–", sec(slices.Max(took)), 0, seconds, open, "–"},
		row{"", "requests to agents at rest, per agent and minute", "–", servedAtRest, 0, tenths, open, "–"},
		row{"", "requests to hosts at rest, per agent and minute", "–", askedAtRest, 0, tenths, open, "–"},
		row{"", "memory of an agent, without its host", "–", float64(own), 0, mebibytes, open, "–"},
	)
	m.notef("tree: 1 + %d + %d agents in one process, with real TLS over links in memory. It came up from nothing in %s. At rest all of them use %s CPU a minute, their simulated hosts included.",
		branches, branches*twigs, seconds(sec(grown)), seconds(sec(cpu)/rest.Minutes()))
}

// grow starts agents as soon as their machines are there, a few at once, and waits until all have converged to a commit.
func (m *meter) grow(f *forest.Forest, commit string) {
	limit := time.Now().Add(20 * time.Minute)
	converged := map[string]bool{}
	for len(converged) < agents {
		require.NoError(m.b, f.Step())
		begun := 0
		for _, x := range f.Machines() {
			if converged[x.Name] || begun == starting {
				continue
			}
			if x.Agent() == nil && x.Start() != nil {
				continue // its parent does not serve yet
			}
			if s := x.Agent().Status(); s.Converged != nil && s.Converged.ID == commit && len(s.Nodes) > 0 {
				converged[x.Name] = true
			} else {
				begun++
			}
		}
		require.True(m.b, time.Now().Before(limit), "%d of %d agents converge", len(converged), agents)
		m.pause(500 * time.Millisecond)
	}
}

// leavesAt waits until all leaves have converged to a commit, and says how long it took each.
func (m *meter) leavesAt(f *forest.Forest, commit string, since time.Time) []time.Duration {
	took := map[string]time.Duration{}
	limit := since.Add(10 * time.Minute)
	for len(took) < branches*twigs {
		for _, x := range f.Machines() {
			if _, has := took[x.Name]; has || !strings.Contains(x.Name, "-") {
				continue
			}
			if s := x.Agent().Status(); s.Converged != nil && s.Converged.ID == commit {
				took[x.Name] = s.Converged.Since.Sub(since)
			}
		}
		require.True(m.b, time.Now().Before(limit), "%d leaves have the commit", len(took))
		m.pause(50 * time.Millisecond)
	}
	out := make([]time.Duration, 0, len(took))
	for _, d := range took {
		out = append(out, d)
	}
	return out
}

// heap is what is in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapInuse + s.StackInuse) //nolint:gosec // far below the limit
}

// usedHere is the CPU that this process has used so far.
func usedHere(m *meter) time.Duration {
	d, err := cpuOf(os.Getpid())
	require.NoError(m.b, err)
	return d
}

func treeFiles(rev int) map[string]string {
	var b strings.Builder
	b.WriteString("manifest \"tree\" {\n  pattern = \"tiered\"\n  host = host.father\n")
	for i := range branches {
		fmt.Fprintf(&b, "  node \"b%d\" {\n    type = \"pve\"\n    cores = 2\n    memory = 2048\n    image = image.debian-12\n    spec = spec.plain\n  }\n", i)
		for j := range twigs {
			fmt.Fprintf(&b, "  node \"b%d-t%d\" {\n    type = \"pve\"\n    parent = node.b%d\n    cores = 2\n    memory = 2048\n    image = image.debian-12\n    spec = spec.plain\n  }\n", i, j, i)
			fmt.Fprintf(&b, "  node \"v%d-%d\" {\n    type = \"vm\"\n    parent = node.b%d-t%d\n    cores = 1\n    memory = 512\n    image = image.debian-12\n    tags = [\"rev-%d\"]\n  }\n", i, j, i, j, rev)
		}
	}
	return map[string]string{
		"site.hcl": "site \"home\" {}\nhost \"father\" {\n  api = \"https://192.0.2.10:8006\"\n}\nimage \"debian-12\" {\n  url = \"https://images.example/debian-12.qcow2\"\n  checksum = \"sha256:" + strings.Repeat("aa", 32) + "\"\n}\nspec \"plain\" {}\n",
		"tree.hcl": b.String() + "}\n",
	}
}
