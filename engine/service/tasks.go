package service

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/tasks"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// The files of tasks in the data folder of an agent.
const (
	queueDir = "queue"      // what its children are asked for
	onceFile = "tasks.json" // what this agent has begun
	runsDir  = "runs"       // receipts of commands
)

// enterer is a driver that can enter guests without observing the host. See push.Driver.
type enterer interface{ Enter(w *model.Want) }

// children are those that a server serves; see daemon.Server.
type children interface {
	Next(node string) (child string, pushed bool)
	Announce(child string)
	State() daemon.State
}

// once and receipts are what a carrier keeps; see tasks.Once and ledger.Ledger. Tests crash at each step of them.
type (
	once interface {
		Begin(t wire.Task, relayed bool) (bool, error)
		End(r wire.TaskResult) error
		Answered(id string) error
		Unanswered() (results []wire.TaskResult, again []wire.Task)
		Task(id string) wire.Task
	}
	receipts interface {
		Write(r ledger.Receipt) (ledger.Receipt, error)
		Last(n int, match func(*ledger.Receipt) bool) ([]ledger.Receipt, error)
	}
)

// carrier carries out tasks beside the passes of the agent: on its own machine, on nodes that it enters, and through the
// queues of its children. It has a driver of its own for each command, since a pass closes the connections of its driver.
type carrier struct {
	s        *Service
	open     open
	children children     // nil without a server
	queue    *tasks.Queue // for them
	once     once
	ledger   receipts
	atWork   atomic.Int32 // commands that would end with this process

	mutex    sync.Mutex // for moments: passes set what is in force while commands run
	desired  engine.Desired
	guests   map[model.Address]model.Guest // where they were observed last, and whether they run
	recorded map[string]wire.TaskOutcome   // tasks that have a receipt
}

func newCarrier(s *Service, below children, open open) (*carrier, error) {
	c := &carrier{s: s, open: open, children: below, guests: map[model.Address]model.Guest{}}
	dir := s.o.Config.DataDir
	var err error
	if c.ledger, err = ledger.Open(filepath.Join(dir, runsDir)); err != nil {
		return nil, fmt.Errorf("open the receipts of commands: %w", err)
	}
	c.readRecorded()
	if c.once, err = tasks.OpenOnce(filepath.Join(dir, onceFile)); err != nil {
		return nil, err
	}
	if below == nil {
		return c, nil
	}
	c.queue, err = tasks.Open(tasks.Options{Dir: filepath.Join(dir, queueDir), Clean: c.clean, Ended: c.record})
	if c.queue != nil && err != nil {
		s.o.Log.Error("a queue of tasks is lost", "error", err)
		err = nil
	}
	return c, err
}

// mostRecorded bounds carrier.recorded: more than a ledger keeps.
const mostRecorded = 4096

// readRecorded learns which tasks have a receipt.
func (c *carrier) readRecorded() {
	list, err := c.ledger.Last(0, nil)
	if err != nil {
		c.s.o.Log.Warn("not all receipts of commands can be read", "error", err)
	}
	c.recorded = map[string]wire.TaskOutcome{}
	for _, r := range slices.Backward(list) {
		if r.Run != nil {
			c.recorded[r.Run.ID] = wire.TaskOutcome(r.Outcome)
		}
	}
}

// inForce records the site that passes converge to.
func (c *carrier) inForce(d engine.Desired) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.desired = d
}

// observed records the guests of the host.
func (c *carrier) observed(have model.Observed) {
	if have.NothingSeen() {
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if !have.Only {
		c.guests = make(map[model.Address]model.Guest, len(have.State))
	}
	for addr, r := range have.State {
		if r.Guest != nil { // the rest of it would stay in memory between passes
			c.guests[addr] = model.Guest{VMID: r.Guest.VMID, Node: r.Guest.Node, Running: r.Guest.Running}
		}
	}
}

// clean takes the values of secrets out of a result, which is no longer than before after that.
func (c *carrier) clean(r wire.TaskResult) wire.TaskResult {
	c.mutex.Lock()
	site := c.desired.Site
	c.mutex.Unlock()
	if site != nil {
		var cut bool
		r.Output, cut = tasks.Tail(site.Secrets.Mask(r.Output)) // what stands for a secret may be longer
		r.Error, _ = tasks.Tail(site.Secrets.Mask(r.Error))
		r.Cut = r.Cut || cut
	}
	return r
}

// record writes the receipt of a command. It may be called again for one that has it.
func (c *carrier) record(t wire.Task, r wire.TaskResult) error {
	if t.Kind != wire.TaskRun {
		return nil
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.recorded[t.ID] == r.Outcome {
		return nil
	}
	verb := "exec"
	if t.Job != "" {
		verb = "job"
	}
	out := ledger.Receipt{
		Verb: verb, By: t.By, Host: c.s.o.Config.Identity, Commit: c.desired.Commit, Began: r.Began, Seconds: r.Seconds, Outcome: string(r.Outcome),
		Run: &ledger.Run{ID: t.ID, Job: t.Job, Node: t.Node, Command: t.Command, Code: r.Code, Output: r.Output, Cut: r.Cut, Error: r.Error},
	}
	if site := c.desired.Site; site != nil {
		out.Site, out.Run.Command = site.Name, masked(site, t.Command)
	}
	if _, err := c.ledger.Write(out); err != nil {
		return fmt.Errorf("write the receipt of a command: %w", err)
	}
	c.recorded[t.ID] = r.Outcome
	if len(c.recorded) > mostRecorded {
		c.readRecorded()
	}
	return nil
}

// masked is a command to keep: a person may have typed a secret.
func masked(site *model.Site, command []string) []string {
	out := slices.Clone(command)
	for i, arg := range out {
		out[i] = site.Secrets.Mask(arg)
	}
	return out
}

// failedTask is the result of a task that did not begin.
func failedTask(t wire.Task, err error) wire.TaskResult {
	return wire.TaskResult{ID: t.ID, Node: t.Node, Outcome: wire.TaskFailed, Code: -1, Began: time.Now().UTC(), Error: err.Error()}
}

// next is the child that a task goes through; "" for one that is carried out here.
func (c *carrier) next(node string) string {
	if node == c.s.o.Config.Identity || c.children == nil {
		return ""
	}
	child, pushed := c.children.Next(node)
	if pushed {
		return ""
	}
	return child
}

// queued reports whether a node of this agent takes its tasks from a queue.
func (c *carrier) queued(node string) bool {
	c.mutex.Lock()
	site := c.desired.Site
	c.mutex.Unlock()
	me := c.s.o.Config.Identity
	if site == nil {
		return false
	}
	if slices.ContainsFunc(site.ChildrenOf(me), func(child *model.Child) bool { return child.Name == node }) {
		return true
	}
	for _, m := range site.Manifests {
		if n := m.Node(node); n != nil && m.On(n) == me && n.TakesCommands() {
			return true
		}
	}
	return false
}

// do carries out a task once, and records it.
func (c *carrier) do(ctx context.Context, t wire.Task) wire.TaskResult {
	child := ""
	if c.queue != nil { // after a restart it knows before the first commit which child has the task
		child = c.queue.Child(t.ID)
	}
	if child = cmp.Or(child, c.next(t.Node)); child != "" {
		return c.relay(ctx, t, child)
	}
	if c.queued(t.Node) {
		return failedTask(t, errors.New("the server for nodes does not run, so the node cannot take it"))
	}
	kept := t
	c.mutex.Lock()
	if site := c.desired.Site; site != nil {
		kept.Command = masked(site, t.Command)
	}
	c.mutex.Unlock()
	begins, err := c.once.Begin(kept, false)
	switch {
	case err != nil:
		return failedTask(t, err)
	case !begins && time.Now().Before(t.Expires):
		r := failedTask(t, errors.New("it was begun before, and how it ended is not known any more"))
		r.Outcome = wire.TaskUnknown
		return r
	case !begins:
		r := failedTask(t, errors.New("its turn did not come in time"))
		r.Outcome = wire.TaskExpired
		return r
	}
	c.atWork.Add(1)
	defer c.atWork.Add(-1)
	r := c.clean(c.here(ctx, t))
	if err := errors.Join(c.once.End(r), c.record(t, r), c.once.Answered(t.ID)); err != nil {
		c.s.o.Log.Error("the result of a command is not kept", "node", t.Node, "error", err)
	}
	return r
}

// whenIdle is a condition that does not hold while a command runs that would end with this process.
func (c *carrier) whenIdle(holds func() bool) func() bool {
	return func() bool { return c.atWork.Load() == 0 && holds() }
}

// relay puts a task into the queue of a child, and waits for its result.
func (c *carrier) relay(ctx context.Context, t wire.Task, child string) wire.TaskResult {
	t.For = child
	if err := c.queue.Put(t); err != nil {
		return failedTask(t, err)
	}
	c.children.Announce(child)
	r, err := c.queue.Await(ctx, child, t.ID)
	if err == nil {
		return r
	}
	r = failedTask(t, err)
	r.Outcome = wire.TaskUnknown
	return r
}

// here carries out a task of this agent.
func (c *carrier) here(ctx context.Context, t wire.Task) wire.TaskResult {
	switch {
	case t.Kind == wire.TaskPlan && t.Node == c.s.o.Config.Identity:
		return c.plan(ctx, t)
	case t.Kind == wire.TaskPlan:
		return failedTask(t, fmt.Errorf("no host %s is below the agent of %s, or it has not reported yet", t.Node, c.s.o.Config.Identity))
	case t.Node == c.s.o.Config.Identity:
		if c.s.o.Machine == nil {
			return failedTask(t, errors.New("commands on the machine of this agent are not simulated"))
		}
		return tasks.Run(ctx, c.s.o.Machine, t)
	default:
		m, release, err := c.machine(ctx, t.Node)
		if err != nil {
			return failedTask(t, err)
		}
		defer release()
		return tasks.Run(ctx, m, t)
	}
}

// plan makes the plan of the host, as its next pass would.
func (c *carrier) plan(ctx context.Context, t wire.Task) wire.TaskResult {
	began := time.Now()
	c.mutex.Lock()
	d := c.desired
	c.mutex.Unlock()
	if d.Site == nil {
		return failedTask(t, errors.New("no commit is in force there yet"))
	}
	commit := model.Commit{ID: d.Commit}
	p := engine.Pass{
		Verb: "plan", Host: c.s.o.Config.Identity, Grants: engine.Grants{Commit: &commit, Unattended: true},
		Load: func(context.Context) engine.Desired { return d }, Open: c.open,
	}
	p.Health.Simulated = c.s.o.Simulated
	if c.s.server != nil {
		p.Children = c.s.children()
	}
	made := p.Run(ctx)
	if made.Plan == nil {
		made.Plan = &plan.Plan{FormatVersion: plan.FormatVersion, Host: p.Host, Commit: d.Commit, ObservedAt: began.UTC().Truncate(time.Second)}
	}
	made.Plan.Findings = append(made.Plan.Findings, engine.FindingOf(made.Err)...)
	doc := plan.Document{Plan: made.Plan}
	if t.Attributes != "" {
		of, err := model.FindIn(d.Site, t.Attributes)
		if err != nil {
			return failedTask(t, err)
		}
		doc.Attributes = made.Attributes(of)
	}
	document, err := json.Marshal(doc)
	r := wire.TaskResult{ID: t.ID, Node: t.Node, Outcome: wire.TaskDone, Began: began.UTC(), Seconds: time.Since(began).Seconds(), Plan: document}
	switch {
	case err == nil && len(document) > wire.MaxTaskPlan:
		err = fmt.Errorf("its plan has %d KiB, %d KiB are the most: make it on that machine", len(document)>>10, wire.MaxTaskPlan>>10)
		fallthrough
	case err != nil:
		return failedTask(t, err)
	}
	return r
}

// planTime is how long the agent of another host may take to begin its plan.
const planTime = 2 * time.Minute

// planOf makes the plan of this host or one below, and returns it as the result of a task.
func (c *carrier) planOf(ctx context.Context, host, attributes, by string) (r wire.TaskResult, err error) {
	a := wire.Asking{Kind: wire.TaskPlan, Nodes: []string{host}, Wait: int(planTime.Seconds()), By: by, Attributes: attributes}
	err = c.exec(ctx, a, func(got wire.TaskResult) { r = got })
	return r, err
}

// busyPoll is the interval at which a node that is being changed is checked.
const busyPoll = 500 * time.Millisecond

// noWayInto says why a node cannot be entered that has no spec.
func noWayInto(node, host string, want *model.Want) error {
	var names []string
	for _, n := range want.Nodes {
		names = append(names, n.Name)
	}
	if slices.Contains(names, node) {
		return fmt.Errorf("node %s has no spec, which says how it is entered: name one in the node", node)
	}
	if hint := diag.DidYouMean(node, names); hint != "" {
		return fmt.Errorf("host %s has no node %s; %s", host, node, hint)
	}
	return fmt.Errorf("host %s has no nodes", host)
}

// machine is the way into a node that this agent enters. It waits for steps about the node.
func (c *carrier) machine(ctx context.Context, node string) (m guest.Machine, release func(), err error) {
	c.mutex.Lock()
	d := c.desired
	c.mutex.Unlock()
	if d.Site == nil {
		return nil, nil, errors.New("no commit is in force yet")
	}
	want, _ := d.Site.Want(c.s.o.Config.Identity)
	host := d.Site.HostFor(c.s.o.Config.Identity)
	if host == nil || want == nil {
		return nil, nil, errors.New("the site does not have this host")
	}
	inside := want.State.Find(func(r *model.Resource) bool { return r.Node == node && r.Inside != (model.Address{}) })
	if len(inside) == 0 {
		return nil, nil, noWayInto(node, host.Name, want)
	}
	res := want.State[inside[0]]
	if res.Deferred != "" {
		return nil, nil, fmt.Errorf("node %s cannot be entered: %s", node, res.Deferred)
	}
	for c.changes(res) {
		select {
		case <-time.After(busyPoll):
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
	driver, err := c.open(d, host)
	if err != nil {
		return nil, nil, err
	}
	release = func() {
		if r, ok := driver.(engine.Releaser); ok {
			r.Release()
		}
	}
	at, err := c.guest(ctx, driver, want, res.Inside)
	if err == nil && !at.Running {
		err = fmt.Errorf("node %s does not run on host %s", node, host.Name)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	if e, ok := driver.(enterer); ok {
		e.Enter(want)
	}
	if m = driver.Machine(res.Addr, at, nil); m == nil {
		release()
		return nil, nil, fmt.Errorf("no access to the guests of host %s is configured", host.Name)
	}
	return m, release, nil
}

// guest is a guest as it was observed last, zero if it was not. One that was not seen to run, as it was just created, is
// looked for.
func (c *carrier) guest(ctx context.Context, driver engine.Driver, want *model.Want, addr model.Address) (model.Guest, error) {
	known := func() model.Guest {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		return c.guests[addr]
	}
	if at := known(); at.Running {
		return at, nil
	}
	host := *want
	host.State = maps.Clone(want.State)
	maps.DeleteFunc(host.State, func(_ model.Address, r *model.Resource) bool { return r.Inside != (model.Address{}) })
	have, err := driver.Observe(ctx, &host)
	if err != nil {
		return model.Guest{}, err
	}
	c.observed(have)
	return known(), nil
}

// changes reports whether a step about a node, or its guest, runs.
func (c *carrier) changes(r *model.Resource) bool {
	now := c.s.Agent.Status().Running
	return now != nil && slices.ContainsFunc(now.Now, func(s agent.StepNow) bool { return s.Address == r.Addr.String() || s.Address == r.Inside.String() })
}

// run takes the tasks of the agent's parent, and gives up those of its children that expired, until ctx ends.
func (c *carrier) run(ctx context.Context, news <-chan struct{}) {
	var w *tasks.Worker
	if c.s.above != nil {
		once, err := tasks.OpenOnce(filepath.Join(c.s.o.Config.DataDir, "parent-"+onceFile))
		if err != nil {
			c.s.o.Log.Error("no tasks of the parent are taken", "error", err)
		} else {
			w = &tasks.Worker{
				Once: once, Parent: uplinked{c.s.above}, Do: c.do, Relayed: func(t wire.Task) bool { return c.next(t.Node) != "" },
				Note: func(err error) { c.s.o.Log.Warn("a task of the parent", "error", err) },
			}
			defer w.Wait()
		}
	}
	for {
		next := time.Now().Add(sweepEvery)
		if c.queue != nil && c.served() != nil {
			at, err := c.queue.Sweep(c.served())
			if err != nil {
				c.s.o.Log.Error("tasks of children cannot be given up", "error", err)
			}
			if !at.IsZero() && at.Before(next) {
				next = at.Add(time.Millisecond)
			}
		}
		timer := time.NewTimer(max(time.Until(next), time.Second))
		select {
		case <-news:
			if w != nil {
				if err := w.Turn(ctx); err != nil && ctx.Err() == nil {
					c.s.o.Log.Warn("the tasks of the parent are not taken", "error", err)
				}
			}
		case <-timer.C:
			if w != nil && w.Due() {
				_ = w.Turn(ctx) // the uplink reports a parent that does not answer
			}
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// sweepEvery is how often expired tasks are looked for, if none is known to expire before.
const sweepEvery = time.Minute

// served reports which children are served; nil before the first commit.
func (c *carrier) served() func(child string) bool {
	if c.children.State().Commit == "" {
		return nil
	}
	return func(child string) bool {
		next, pushed := c.children.Next(child)
		return next == child && !pushed
	}
}

// settle records the commands that an earlier process began and did not end.
func (c *carrier) settle() {
	results, _ := c.once.Unanswered()
	for _, r := range results {
		if err := errors.Join(c.record(c.once.Task(r.ID), r), c.once.Answered(r.ID)); err != nil {
			c.s.o.Log.Error("the result of a command is not kept", "node", r.Node, "error", err)
		}
	}
}

// uplinked is the parent of an agent, as it is known by now.
type uplinked struct{ *client.Uplink }

// Tasks is as tasks.Parent wants it.
func (u uplinked) Tasks(ctx context.Context) ([]wire.Task, error) { return u.Client().Tasks(ctx) }

// Answer is as tasks.Parent wants it.
func (u uplinked) Answer(ctx context.Context, r wire.TaskResult) error {
	return u.Client().Answer(ctx, r)
}

// Exec runs a command on nodes, or makes plans of hosts, side by side, and calls each with every result.
func (s *Service) Exec(ctx context.Context, a wire.Asking, each func(wire.TaskResult)) error {
	return s.carrier.exec(ctx, a, each)
}

func (c *carrier) exec(ctx context.Context, a wire.Asking, each func(wire.TaskResult)) error {
	if a.Kind == wire.TaskRun && (len(a.Command) == 0 || a.Timeout <= 0 || a.By == "") {
		return errors.New("a command, its time and who asks are needed")
	}
	nodes, err := c.chosen(a)
	if err != nil {
		return err
	}
	slots := make(chan struct{}, max(1, a.Parallel))
	var all sync.WaitGroup
	var mutex sync.Mutex // each is for one goroutine at a time
	for _, node := range nodes {
		t := wire.Task{
			ID: wire.NewTaskID(), Kind: a.Kind, For: node, Node: node, Command: a.Command, Timeout: a.Timeout,
			Expires: time.Now().Add(time.Duration(a.Wait) * time.Second).UTC(), By: a.By, Attributes: a.Attributes,
		}
		if err := t.Check(); err != nil {
			return err
		}
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			t.Expires = time.Now().Add(time.Duration(a.Wait) * time.Second).UTC() // its turn may be late
			c.s.o.Log.Info("a command is run", "node", t.Node, "by", t.By, "kind", string(t.Kind), "program", strings.Join(t.Command[:min(1, len(t.Command))], ""))
			r := c.do(ctx, t)
			if child := c.next(t.Node); ctx.Err() != nil && child != "" { // who asked has left
				if _, err := c.queue.Cancel(child, t.ID); err != nil {
					c.s.o.Log.Warn("a command is not taken back", "node", t.Node, "error", err)
				}
			}
			mutex.Lock()
			defer mutex.Unlock()
			each(r)
		})
	}
	all.Wait()
	return nil
}

// chosen are the nodes that a person means.
func (c *carrier) chosen(a wire.Asking) ([]string, error) {
	out := slices.Clone(a.Nodes)
	if a.Manifest != "" || a.Spec != "" {
		c.mutex.Lock()
		site := c.desired.Site
		c.mutex.Unlock()
		if site == nil {
			return nil, errors.New("no commit is in force yet")
		}
		for _, n := range site.Below(c.s.o.Config.Identity) {
			if (a.Manifest == "" || n.Manifest != nil && n.Manifest.Name == a.Manifest) && (a.Spec == "" || n.Spec == a.Spec) {
				out = append(out, n.Name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
