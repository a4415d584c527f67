package service

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// jobsFile keeps which jobs ran when.
const jobsFile = "jobs.json"

// jobState is what is known of the jobs of an agent. Version is 1.
type jobState struct {
	Version int                        `json:"version"`
	Last    map[string]lastRun         `json:"last"` // of each with a schedule; see lastKey
	Once    map[string]map[string]bool `json:"once"` // by ID and node that has run it: whether that ended well
}

// lastRun is the time that a job was run for last, or since when it is known. One that has not ended goes on before the next
// one begins.
type lastRun struct {
	At    time.Time `json:"at"`
	Ended bool      `json:"ended"`
}

// lastKey is the key of a job with a schedule. With another schedule it is another job, which has missed nothing.
func lastKey(j *model.Job) string { return j.Name + " " + j.Schedule }

// jobs runs the jobs of the site on the nodes that this agent manages itself, beside its passes. The IDs of their tasks follow
// from job, time and node: what a restart interrupted goes on where that is possible, and runs nowhere twice.
type jobs struct {
	c       *carrier
	status  func() agent.Status
	replace func(name string, content []byte) error // tests crash there
	wake    chan struct{}

	mutex sync.Mutex // for the time of a write
	state jobState
	busy  map[string]bool // jobs that run
	all   sync.WaitGroup
}

func newJobs(c *carrier, status func() agent.Status) (*jobs, error) {
	j := &jobs{c: c, status: status, replace: durable.Replace, wake: make(chan struct{}, 1), busy: map[string]bool{}}
	j.state = jobState{Version: 1, Last: map[string]lastRun{}, Once: map[string]map[string]bool{}}
	text, err := durable.ReadPrivate(j.file())
	if errors.Is(err, fs.ErrNotExist) {
		return j, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &j.state)
	}
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read, and without it jobs could run twice: %w", j.file(), err)
	}
	return j, nil
}

func (j *jobs) file() string { return filepath.Join(j.c.s.o.Config.DataDir, jobsFile) }

// change changes the state, first on disk.
func (j *jobs) change(do func(s *jobState)) error {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	next := jobState{Version: 1, Last: maps.Clone(j.state.Last), Once: map[string]map[string]bool{}}
	for id, nodes := range j.state.Once {
		next.Once[id] = maps.Clone(nodes)
	}
	do(&next)
	text, err := json.Marshal(next)
	if err == nil {
		err = j.replace(j.file(), text)
	}
	if err == nil {
		j.state = next
	}
	return err
}

// soon wakes run.
func (j *jobs) soon() {
	select {
	case j.wake <- struct{}{}:
	default: // it does already
	}
}

// mostJobPause is how long run sleeps at most: jobs come due, and clocks are set.
const mostJobPause = time.Minute

// run runs the jobs until ctx ends.
func (j *jobs) run(ctx context.Context) {
	defer j.all.Wait()
	for {
		now := time.Now()
		if err := j.learn(now); err != nil {
			j.c.s.o.Log.Error("jobs that are new do not run yet, since it cannot be kept since when they are known", "error", err)
		}
		next := now.Add(mostJobPause)
		for _, due := range j.due(now) {
			if due.at.IsZero() || due.at.After(now) {
				if !due.at.IsZero() && due.at.Before(next) {
					next = due.at
				}
				continue
			}
			j.start(ctx, due)
		}
		timer := time.NewTimer(max(time.Until(next), 10*time.Millisecond))
		select {
		case <-timer.C:
		case <-j.wake:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// learn keeps since when jobs are known: the first time of each comes after that, and counts as missed if the agent is away
// then. A job that has no node here any more is forgotten.
func (j *jobs) learn(now time.Time) error {
	site, suspended := j.site()
	if site == nil {
		return nil
	}
	last := map[string]lastRun{}
	j.mutex.Lock()
	for _, job := range site.Jobs {
		if job.Schedule != "" && (j.busy[job.Name] || len(j.mine(site, job, suspended)) > 0) {
			last[lastKey(job)] = lastRun{now.UTC(), true}
		}
	}
	for key := range last {
		if at, known := j.state.Last[key]; known && !at.At.After(now) {
			last[key] = at // else the clock was set back; what runs twice by that has the same ID
		}
	}
	same := maps.Equal(last, j.state.Last)
	j.mutex.Unlock()
	if same {
		return nil
	}
	return j.change(func(s *jobState) { s.Last = last })
}

// dueJob is a job that is to run at a time, on nodes of this agent.
type dueJob struct {
	*model.Job
	nodes   []string
	at      time.Time // zero: never
	expires time.Time
}

// due lists the jobs that have nodes here and do not run: with the latest time that has passed, or the next one.
func (j *jobs) due(now time.Time) []dueJob {
	site, suspended := j.site()
	if site == nil {
		return nil
	}
	j.mutex.Lock()
	defer j.mutex.Unlock()
	var out []dueJob
	for _, name := range slices.Sorted(maps.Keys(site.Jobs)) {
		d := dueJob{Job: site.Jobs[name], nodes: j.mine(site, site.Jobs[name], suspended)}
		if j.busy[name] {
			continue
		}
		if d.Once != "" {
			done := j.state.Once[d.Once]
			if d.OnFailure == "stop" && slices.Contains(slices.Collect(maps.Values(done)), false) {
				continue
			}
			ready := j.ready()
			d.nodes = slices.DeleteFunc(d.nodes, func(n string) bool { _, ran := done[n]; return ran || site.Hosts[n] == nil && !ready[n] })
			d.at, d.expires = now, now.Add(onceTime)
		} else {
			last, known := j.state.Last[lastKey(d.Job)]
			if !known {
				continue // learn failed
			}
			if d.at = last.At; last.Ended {
				d.at = d.Next(last.At, site.Timezone)
				for next := d.at; !next.IsZero() && !next.After(now); next = d.Next(next, site.Timezone) {
					d.at = next // of those that were missed, the last one
				}
			}
			d.expires = d.Next(d.at, site.Timezone)
		}
		if s := j.c.children; s != nil && !s.State().Answers && slices.ContainsFunc(d.nodes, j.c.queued) {
			d.at = now.Add(time.Second) // soon after a start
		}
		if len(d.nodes) > 0 {
			out = append(out, d)
		}
	}
	return out
}

// ready are the nodes on this host that are ready: what happens once waits for that.
func (j *jobs) ready() map[string]bool {
	out := map[string]bool{}
	for _, n := range j.status().Nodes {
		out[n.Node] = n.Ready
	}
	return out
}

// onceTime is how long a node may take to begin what it does once.
const onceTime = 7 * 24 * time.Hour

// site is the one in force, and what is suspended; nil while all is.
func (j *jobs) site() (*model.Site, map[string]bool) {
	j.c.mutex.Lock()
	site := j.c.desired.Site
	j.c.mutex.Unlock()
	suspended := map[string]bool{}
	for _, s := range j.status().Suspended {
		if s.Manifest == "" {
			return nil, nil
		}
		suspended[s.Manifest] = true
	}
	return site, suspended
}

// mine are the nodes of a job that this agent manages itself, or is the host of if no other agent is above it.
func (j *jobs) mine(site *model.Site, job *model.Job, suspended map[string]bool) []string {
	me := j.c.s.o.Config.Identity
	children := site.ChildrenOf(me)
	var out []string
	for _, name := range job.Nodes {
		if h := site.Hosts[name]; h != nil {
			if name == me && h.Parent == "" || slices.ContainsFunc(children, func(c *model.Child) bool { return c.Name == name }) {
				out = append(out, name)
			}
			continue
		}
		for _, m := range site.Manifests {
			if n := m.Node(name); n != nil && m.On(n) == me && !m.Suspend && !suspended[m.Name] && !slices.Contains(site.Suspended, m.Name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// start runs a job beside everything else.
func (j *jobs) start(ctx context.Context, d dueJob) {
	j.mutex.Lock()
	j.busy[d.Name] = true
	j.mutex.Unlock()
	j.all.Go(func() {
		defer j.soon()
		defer func() {
			j.mutex.Lock()
			defer j.mutex.Unlock()
			delete(j.busy, d.Name)
		}()
		ran := func(ended bool) {
			if d.Once == "" {
				j.keep(ctx, d.Name, func(s *jobState) { s.Last[lastKey(d.Job)] = lastRun{d.at.UTC(), ended} })
			}
		}
		ran(false)
		j.carryOut(ctx, d)
		ran(true)
	})
}

// keep changes the state around a run. It tries until that succeeds or ctx ends: then the next process goes on.
func (j *jobs) keep(ctx context.Context, job string, do func(*jobState)) {
	for ctx.Err() == nil {
		err := j.change(do)
		if err == nil {
			return
		}
		j.c.s.o.Log.Error("it cannot be kept that a job runs; it does not run again before it can be", "job", job, "error", err)
		select {
		case <-time.After(mostJobPause):
		case <-ctx.Done():
		}
	}
}

// carryOut runs a job on its nodes.
func (j *jobs) carryOut(ctx context.Context, d dueJob) {
	j.c.s.o.Log.Info("a job runs", "job", d.Name, "nodes", len(d.nodes))
	occurrence := cmp.Or(d.Once, d.at.UTC().Format(time.RFC3339))
	slots := make(chan struct{}, max(1, d.Concurrency))
	var all sync.WaitGroup
	var mutex sync.Mutex // for failed and ended
	failed, ended := 0, 0
	for _, node := range d.nodes {
		slots <- struct{}{}
		mutex.Lock()
		stops := failed > 0 && d.OnFailure == "stop" || ctx.Err() != nil
		mutex.Unlock()
		if stops {
			break
		}
		t := wire.Task{
			ID: wire.NewTaskID("job", d.Name, occurrence, node), Kind: wire.TaskRun, For: node, Node: node, Command: d.Command, Timeout: max(1, int(d.Timeout.Seconds())),
			Expires: d.expires.UTC(), Job: d.Name, By: j.c.s.o.Config.Identity,
		}
		all.Go(func() {
			defer func() { <-slots }()
			ran := j.outcome(ctx, t)
			if ctx.Err() != nil {
				return // the next process goes on
			}
			if d.Once != "" {
				j.keep(ctx, d.Name, func(s *jobState) {
					if s.Once[d.Once] == nil {
						s.Once[d.Once] = map[string]bool{}
					}
					s.Once[d.Once][node] = ran == wire.TaskDone
				})
			}
			mutex.Lock()
			defer mutex.Unlock()
			if ended++; ran != wire.TaskDone {
				failed++
			}
		})
	}
	all.Wait()
	j.c.s.o.Log.Info("a job ended", "job", d.Name, "nodes", ended, "failed", failed)
}

// outcome is how a task ends, or ended before this process began. One that could not begin gets its receipt here.
func (j *jobs) outcome(ctx context.Context, t wire.Task) wire.TaskOutcome {
	if ran := j.c.outcomeOf(t.ID); ran != "" {
		return ran
	}
	r := j.c.do(ctx, t)
	if j.c.outcomeOf(t.ID) == "" && ctx.Err() == nil {
		if err := j.c.record(t, j.c.clean(r)); err != nil {
			j.c.s.o.Log.Error("the result of a command is not kept", "node", t.Node, "error", err)
		}
	}
	return r.Outcome
}

// outcomeOf is the outcome of a task that has a receipt; "" if it has none.
func (c *carrier) outcomeOf(id string) wire.TaskOutcome {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.recorded[id]
}

// List is as control.Server wants it.
func (j *jobs) List() ([]control.Job, error) {
	receipts, err := j.Receipts("", 0)
	now := time.Now()
	out := []control.Job{}
	site, suspended := j.site()
	if site == nil {
		return out, err
	}
	for _, name := range slices.Sorted(maps.Keys(site.Jobs)) {
		is := site.Jobs[name]
		row := control.Job{Name: name, Nodes: j.mine(site, is, suspended), Schedule: is.Schedule, Once: is.Once}
		if len(row.Nodes) == 0 {
			continue
		}
		if is.Schedule != "" {
			at := is.Next(now, site.Timezone)
			row.Next = &at
		}
		for _, r := range receipts {
			if r.Run.Job != name {
				continue
			}
			if row.Last == nil {
				row.Last = &r.Began
			}
			if row.Last.Sub(r.Began) > time.Hour || slices.Contains(row.Ran, r.Run.Node) {
				break // of an earlier time
			}
			row.Ran = append(row.Ran, r.Run.Node)
			if r.Outcome != string(wire.TaskDone) {
				row.Failed++
			}
		}
		out = append(out, row)
	}
	return out, err
}

// Receipts is as control.Server wants it.
func (j *jobs) Receipts(job string, n int) ([]ledger.Receipt, error) {
	return j.c.ledger.Last(n, func(r *ledger.Receipt) bool { return r.Run != nil && (job == "" || r.Run.Job == job) })
}
