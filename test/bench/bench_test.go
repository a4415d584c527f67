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
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
		{"P20", m.watching},
		{"tree", m.tree},
		{"P14", m.judge},
		{"P15,serving", m.serving},
		{"P15,company", m.company},
		{"P15,restart", m.restarting},
		{"P15,children", m.reporting},
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

// ours is a run of the program; it must end well.
func (m *meter) ours(watch bool, args ...string) run {
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
