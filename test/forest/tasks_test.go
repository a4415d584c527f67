package forest

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/specserve/node"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// shells are the insides of machines. A command runs until it is let go.
type shells struct {
	mu   sync.Mutex // machines run commands side by side
	runs map[string]int
	hold map[string]chan struct{} // of machines whose commands wait
}

// holds makes the commands of a machine wait; releases ends that.
func (s *shells) holds(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold[name] = make(chan struct{})
}

func (s *shells) releases(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.hold[name])
	delete(s.hold, name)
}

// ran is how many commands a machine began.
func (s *shells) ran(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[name]
}

// shell is one of them.
type shell struct {
	guest.Machine
	name string
	all  *shells
}

func (s shell) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	s.all.mu.Lock()
	hold := s.all.hold[s.name]
	if len(c.Args) > 6 { // else it ends the command
		s.all.runs[s.name]++
	}
	s.all.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return guest.Output{}, fmt.Errorf("%w: %w", guest.ErrOutcomeLost, context.Cause(ctx))
		}
	}
	return guest.Output{Out: "here is " + s.name + ", not canary-of-" + s.name + "\n"}, nil
}

// asked is a command at an agent, and its results.
func asked(t *testing.T, m *Machine, a wire.Asking) func() map[string]wire.TaskResult {
	t.Helper()
	out, ended := map[string]wire.TaskResult{}, make(chan error, 1)
	a.Wait, a.Parallel, a.By = 120, 8, "ann@desk"
	agent := m.Agent()
	go func() {
		ended <- agent.Exec(t.Context(), a, func(r wire.TaskResult) { out[r.Node] = r })
	}()
	synctest.Wait()
	return func() map[string]wire.TaskResult {
		require.NoError(t, <-ended)
		return out
	}
}

// A command or a plan reaches every depth of the tree through the queues, happens once, and its result comes back over
// restarts of the agents in between.
func TestTasksReachEveryDepth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &shells{runs: map[string]int{}, hold: map[string]chan struct{}{}}
		w, _ := grown(t, func(o *Options) {
			o.Machine = func(name string) guest.Machine { return shell{name: name, all: all} }
		})
		defer w.end()
		father := w.Machine("father")
		run := wire.Asking{Kind: wire.TaskRun, Nodes: []string{"father", "inner", "leaf", "none"}, Command: []string{"uptime"}, Timeout: 600}
		results := asked(t, father, run)
		w.live(time.Minute)
		got := results()
		for _, name := range []string{"father", "inner", "leaf"} {
			require.Equal(t, wire.TaskDone, got[name].Outcome, got[name].Error)
			require.Contains(t, got[name].Output, "here is "+name+", not ")
			require.NotContains(t, got[name].Output, "canary")
			require.Equal(t, 1, all.runs[name])
		}
		require.Equal(t, wire.TaskFailed, got["none"].Outcome)

		results = asked(t, father, wire.Asking{Kind: wire.TaskPlan, Nodes: []string{"leaf"}})
		w.live(time.Minute)
		doc, err := plan.Read(results()["leaf"].Plan)
		require.NoError(t, err)
		require.Equal(t, "leaf", doc.Plan.Host)
		require.True(t, doc.Plan.InSync())

		// The agent between them starts again while the command runs.
		all.hold["leaf"] = make(chan struct{})
		run.Nodes = []string{"leaf"}
		results = asked(t, father, run)
		w.live(20 * time.Second)
		require.Equal(t, 2, all.runs["leaf"], "it runs")
		w.Machine("inner").Kill()
		w.live(time.Minute)
		close(all.hold["leaf"])
		delete(all.hold, "leaf")
		w.live(5 * time.Minute)
		require.Equal(t, wire.TaskDone, results()["leaf"].Outcome)
		require.Equal(t, 2, all.runs["leaf"])

		// The agent that runs it does: how it ended is not known, and it does not run again.
		all.hold["leaf"] = make(chan struct{})
		results = asked(t, father, run)
		w.live(20 * time.Second)
		w.Machine("leaf").Kill()
		w.live(5 * time.Minute)
		require.Equal(t, wire.TaskUnknown, results()["leaf"].Outcome)
		require.Equal(t, 3, all.runs["leaf"])
		delete(all.hold, "leaf")

		// A request for a check reaches every depth, too.
		before := w.Machine("leaf").Agent().Status().Last.Ended
		require.NotEqual(t, wire.AskedUnknown, father.Agent().Server().Wake("leaf"))
		w.live(time.Minute)
		require.True(t, w.Machine("leaf").Agent().Status().Last.Ended.After(before))
		require.Empty(t, w.broken)
	})
}

// Jobs run on time, wherever their nodes are: each agent runs them on its own nodes. After an outage a job runs once.
func TestJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &shells{runs: map[string]int{}, hold: map[string]chan struct{}{}}
		w, s := grown(t, func(o *Options) {
			o.Machine = func(name string) guest.Machine { return shell{name: name, all: all} }
		})
		defer w.end()
		files := s.files()
		files["jobs.hcl"] = `
job "tick" {
  nodes    = [host.father, node.inner, node.leaf]
  command  = ["true"]
  schedule = "every 1h"
}
job "rotate" {
  nodes   = [node.leaf]
  command = ["true"]
  once    = "2026-11-27-rotate"
}
`
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + 10*time.Minute)))
		w.pushFiles(s, files, "jobs")
		w.live(10 * time.Minute)
		require.Equal(t, map[string]int{"leaf": 1}, all.runs, "what happens once")
		w.rest(3 * time.Hour)
		require.Equal(t, map[string]int{"father": 3, "inner": 3, "leaf": 4}, all.runs)
		before := time.Now()
		w.down["inner"] = before.Add(5 * time.Hour)
		w.Machine("inner").Kill()
		w.rest(5*time.Hour + 20*time.Minute)
		require.Equal(t, 8, all.runs["father"])
		require.Equal(t, 5, all.runs["leaf"], "the agent above it was away, which runs the job there: it ran once for all that was missed")
		require.Equal(t, 4, all.runs["inner"])
		w.rest(time.Hour)
		require.Equal(t, map[string]int{"father": 9, "inner": 5, "leaf": 6}, all.runs)
	})
}

// chatty is the inside of a node whose commands write much, with a secret of the site at the end.
type chatty struct{ *shells }

func (m chatty) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	out, err := shell{name: "edge", all: m.shells}.Run(ctx, c)
	out.Out = strings.Repeat("x", wire.MaxTaskOutput) + " canary-of-father\n"
	return out, err
}

// A node in mode pull hears of a command or of a job by its poll, runs it once, and its parent has the result: after the node, its
// connection or the parent were away, too.
func TestTasksOfANodeInModePull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &shells{runs: map[string]int{}, hold: map[string]chan struct{}{}}
		w := newWorld(t, nil)
		defer w.end()
		s := newSite()
		s.inner, s.leaf = false, false
		s.add("father")
		files := s.files()
		files["edge.hcl"] = `
manifest "edge" {
  pattern = "flat"
  host    = host.father
  node "edge" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian-12
    spec   = spec.plain
    execution {
      mode = "pull"
    }
  }
}
job "tick" {
  nodes    = [node.edge]
  command  = ["backup", "canary-of-father"]
  schedule = "every 1h"
}
`
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + time.Minute)))
		w.pushFiles(s, files, "a node in mode pull")
		w.live(5 * time.Minute)
		father := w.Machine("father")
		known, err := father.Agent().Parent("edge", "plain")
		require.NoError(t, err)
		dir := sourcetest.TempDir(t)
		from := node.Source{File: filepath.Join(dir, "node.json")}
		require.NoError(t, known.Save(from.File))

		// wait is config wait on the node, until it is ended.
		wait := func() (end func()) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			run := node.Run{Folder: dir, Machine: chatty{all}, Dial: w.Network.dial(&Machine{Name: "edge"}), Note: func(string, ...any) {}}
			go func() { ended <- run.Wait(ctx, from) }()
			return func() {
				cancel()
				require.ErrorIs(t, <-ended, context.Canceled)
			}
		}
		end := wait()
		w.live(time.Minute)
		run := wire.Asking{Kind: wire.TaskRun, Nodes: []string{"edge"}, Command: []string{"uptime"}, Timeout: 600}
		began := time.Now()
		got := asked(t, father, run)()["edge"]
		require.Less(t, time.Since(began), 5*time.Second, "it hears of it at once")
		require.Equal(t, wire.TaskDone, got.Outcome, got.Error)
		require.LessOrEqual(t, len(got.Output), wire.MaxTaskOutput)
		require.True(t, got.Cut)
		require.True(t, strings.HasSuffix(got.Output, "xxx (sensitive)\n"), got.Output[len(got.Output)-40:])
		require.Equal(t, 1, all.ran("edge"))

		// The parent ends while the command runs, and the answer goes to the next process.
		all.holds("edge")
		_ = asked(t, father, run)
		w.live(10 * time.Second)
		father.Kill()
		w.down["father"] = time.Now().Add(2 * time.Minute)
		all.releases("edge")
		w.live(10 * time.Minute)
		require.Equal(t, 2, all.ran("edge"))

		// The node ends while it runs: how it ended is not known, and it does not run again.
		all.holds("edge")
		results := asked(t, father, run)
		w.live(10 * time.Second)
		end()
		all.releases("edge")
		end = wait()
		w.live(2 * time.Minute)
		require.Equal(t, wire.TaskUnknown, results()["edge"].Outcome)
		require.Equal(t, 3, all.ran("edge"))

		// A node that cannot be reached does not run it later.
		w.Network.Cut("edge", true)
		results = asked(t, father, run)
		w.live(4 * time.Minute)
		require.Equal(t, wire.TaskExpired, results()["edge"].Outcome)
		w.Network.Cut("edge", false)
		w.rest(4 * time.Hour)
		end()
		require.Equal(t, 3+4, all.ran("edge"), "a job runs each hour")

		receipts, err := ledger.Read(filepath.Join(father.Data, "data", "runs")).Last(0, nil)
		require.NoError(t, err)
		outcomes := map[string]int{}
		for _, r := range receipts {
			outcomes[r.Verb+" "+r.Outcome]++
			text, err := json.Marshal(r)
			require.NoError(t, err)
			require.NotContains(t, string(text), "canary")
			if r.Verb == "job" {
				require.Equal(t, []string{"backup", "(sensitive)"}, r.Run.Command)
			}
		}
		require.Equal(t, map[string]int{"exec done": 2, "exec unknown": 1, "exec expired": 1, "job done": 4}, outcomes)
	})
}
