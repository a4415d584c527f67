package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/tasks"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

var errCrash = errors.New("the power fails")

// process is an agent or a node of a schedule, until its crash.
type process struct {
	ctx   context.Context //nolint:containedctx // its life
	kill  context.CancelFunc
	mutex sync.Mutex
	steps int // until the crash; negative: there is none
	dead  bool
	all   sync.WaitGroup
}

func newProcess(t *testing.T, steps int) *process {
	p := &process{steps: steps}
	p.ctx, p.kill = context.WithCancel(t.Context())
	return p
}

// alive is a step of a process: it may crash there.
func (p *process) alive() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.steps--; p.steps == -1 {
		p.dead = true
		p.kill()
	}
	return !p.dead
}

// crash ends a process, and all that it runs.
func (p *process) crash() {
	p.mutex.Lock()
	p.dead = true
	p.mutex.Unlock()
	p.kill()
	p.all.Wait()
}

// does does something on disk, and may crash before or after it.
func (p *process) does(do func() error) error {
	if !p.alive() {
		return errCrash
	}
	if err := do(); err != nil {
		return err
	}
	if !p.alive() {
		return errCrash
	}
	return nil
}

// crashing is the once, the receipts and the children of an agent that crashes.
type crashing struct {
	*process
	once
	receipts
	served []string
}

func (c crashing) Begin(t wire.Task, relayed bool) (begins bool, err error) {
	err = c.does(func() error {
		begins, err = c.once.Begin(t, relayed)
		return err
	})
	return begins, err
}

func (c crashing) End(r wire.TaskResult) error {
	return c.does(func() error { return c.once.End(r) })
}

func (c crashing) Answered(id string) error {
	return c.does(func() error { return c.once.Answered(id) })
}

func (c crashing) Write(r ledger.Receipt) (out ledger.Receipt, err error) {
	err = c.does(func() error {
		out, err = c.receipts.Write(r)
		return err
	})
	return out, err
}

func (c crashing) Next(node string) (string, bool) {
	c.alive()
	if slices.Contains(c.served, node) {
		return node, false
	}
	return "", false
}

func (c crashing) Announce(string)   { c.alive() }
func (crashing) State() daemon.State { return daemon.State{Answers: true, Commit: "c"} }

// jobStory is one schedule: an agent with jobs on its own machine and on its children.
type jobStory struct {
	t     *testing.T
	r     *rand.Rand
	dir   string
	site  *model.Site
	calm  bool // nothing fails any more
	agent *process
	queue *tasks.Queue
	c     *carrier

	mutex sync.Mutex                 // machines run commands side by side
	runs  map[string]int             // of each task
	now   map[string]map[string]bool // nodes that run each job
	most  map[string]int             // at once
	ended map[wire.TaskOutcome]int   // commands
}

// steps is how many steps a process does.
func (s *jobStory) steps() int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.calm || s.r.IntN(3) == 0 {
		return -1
	}
	return s.r.IntN(60)
}

// chance is true once in n times, while things fail.
func (s *jobStory) chance(n int) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return !s.calm && s.r.IntN(n) == 0
}

// shell is the inside of a machine, whose commands end with it.
type shell struct {
	guest.Machine
	s    *jobStory
	node string
	p    *process
}

func (m shell) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	if len(c.Args) < 6 || !m.p.alive() { // it ends a command, which hears of it by ctx here
		return guest.Output{}, errCrash
	}
	s, id, job := m.s, c.Args[4], c.Args[6]
	limit, _ := strconv.Atoi(c.Args[5])
	s.mutex.Lock()
	s.runs[id]++
	if s.now[job] == nil {
		s.now[job] = map[string]bool{}
	}
	s.now[job][m.node] = true
	s.most[job] = max(s.most[job], len(s.now[job]))
	takes, code := time.Duration(s.r.IntN(limit+limit/10))*time.Second, 0
	if s.r.IntN(5) == 0 && !s.calm {
		code = 7
	}
	s.mutex.Unlock()
	if takes > time.Duration(limit)*time.Second {
		takes, code = time.Duration(limit)*time.Second, 124
	}
	ended := time.NewTimer(takes)
	defer ended.Stop()
	select {
	case <-ended.C:
	case <-m.p.ctx.Done():
	case <-ctx.Done():
	}
	s.mutex.Lock()
	delete(s.now[job], m.node)
	s.mutex.Unlock()
	if !m.p.alive() {
		return guest.Output{}, errCrash
	}
	return guest.Output{Code: code}, nil
}

// startAgent starts the agent.
func (s *jobStory) startAgent() {
	p := newProcess(s.t, s.steps())
	service := &Service{o: Options{Config: &Config{}, Log: slog.New(slog.DiscardHandler), Machine: shell{s: s, node: "father", p: p}}}
	service.o.Config.Identity, service.o.Config.DataDir = "father", s.dir
	served := slices.DeleteFunc(slices.Sorted(maps.Keys(s.site.Hosts)), func(name string) bool { return name == "father" })
	c, err := newCarrier(service, crashing{process: p, served: served}, nil)
	require.NoError(s.t, err)
	kept := crashing{process: p, once: c.once, receipts: c.ledger, served: served}
	c.once, c.ledger = kept, kept
	j, err := newJobs(c, func() agent.Status { return agent.Status{} })
	require.NoError(s.t, err)
	j.replace = func(name string, content []byte) error {
		return p.does(func() error { return durable.Replace(name, content) })
	}
	c.inForce(engine.Desired{Site: s.site, Commit: "c"})
	c.settle()
	s.mutex.Lock()
	s.agent, s.queue, s.c = p, c.queue, c
	s.mutex.Unlock()
	p.all.Go(func() { c.run(p.ctx, nil) })
	p.all.Go(func() { j.run(p.ctx) })
}

// current is the process of the agent, and its queue, for who runs beside the one that starts it.
func (s *jobStory) current() (*process, *tasks.Queue) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.agent, s.queue
}

// spoke is a child that takes its tasks.
type spoke struct {
	s    *jobStory
	name string
	p    *process
	w    *tasks.Worker
}

func (n *spoke) start() {
	n.p = newProcess(n.s.t, n.s.steps())
	kept, err := tasks.OpenOnce(filepath.Join(n.s.dir, n.name))
	require.NoError(n.s.t, err)
	p := n.p
	n.w = &tasks.Worker{Once: kept, Parent: link{n.s, p, n.name}, Note: func(error) {}, Do: func(ctx context.Context, t wire.Task) wire.TaskResult {
		r := tasks.Run(ctx, shell{s: n.s, node: n.name, p: p}, t)
		if !p.alive() {
			runtime.Goexit() // it keeps no result
		}
		return r
	}}
}

// turn takes the tasks, after a start if there was a crash.
func (n *spoke) turn() {
	if n.p != nil && (!n.p.alive() || n.s.chance(20)) {
		n.stop()
	}
	if n.p == nil {
		n.start()
	}
	if n.s.queue.News(n.name) || n.w.Due() {
		_ = n.w.Turn(n.p.ctx)
	}
}

func (n *spoke) stop() {
	if n.p != nil {
		n.p.crash()
		n.w.Wait()
		n.p = nil
	}
}

// link is the network between a child and the agent. It loses requests and answers.
type link struct {
	s    *jobStory
	p    *process
	name string
}

// through is a request, which both ends survive or not.
func (l link) through(do func(*tasks.Queue) error) error {
	up, queue := l.s.current()
	if !l.p.alive() || !up.alive() || l.s.chance(10) {
		return errCrash
	}
	if err := do(queue); err != nil {
		return err
	}
	if !up.alive() || !l.p.alive() || l.s.chance(10) {
		return errCrash
	}
	return nil
}

func (l link) Tasks(context.Context) (list []wire.Task, err error) {
	err = l.through(func(q *tasks.Queue) error {
		list, err = q.Take(l.name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

func (l link) Answer(_ context.Context, r wire.TaskResult) error {
	return l.through(func(q *tasks.Queue) error {
		_, err := q.Answer(l.name, r)
		return err
	})
}

// jobs of a schedule: those that are due often, and those that run once. The first argument is the job, for the machines.
func jobsOf(nodes []string) map[string]*model.Job {
	out := map[string]*model.Job{}
	for _, j := range []*model.Job{
		{Name: "tick", Schedule: "every 15m", Timeout: 5 * time.Minute, OnFailure: "continue", Concurrency: 2},
		{Name: "turns", Schedule: "every 40m", Timeout: 2 * time.Minute, OnFailure: "stop", Concurrency: 1},
		{Name: "rotate", Once: "rotate-1", Timeout: 20 * time.Minute, OnFailure: "continue", Concurrency: 8},
		{Name: "careful", Once: "careful-1", Timeout: time.Minute, OnFailure: "stop", Concurrency: 1},
	} {
		j.Nodes, j.Command = nodes, []string{j.Name}
		out[j.Name] = j
	}
	return out
}

// run lives through one schedule.
func (s *jobStory) run() error {
	began := time.Now()
	nodes := []string{"father", "spoke-1", "spoke-2"}
	s.site = &model.Site{Name: "home", Timezone: "UTC", Hosts: map[string]*model.Host{"father": {Name: "father"}}, Jobs: jobsOf(nodes)}
	spokes := []*spoke{}
	for _, name := range nodes[1:] {
		s.site.Hosts[name] = &model.Host{Name: name, Parent: "father"}
		spokes = append(spokes, &spoke{s: s, name: name})
	}
	s.startAgent()
	live := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); {
			time.Sleep(30 * time.Second)
			if !s.agent.alive() || s.chance(60) {
				s.agent.crash()
				if s.chance(4) {
					time.Sleep(50 * time.Minute)
				}
				s.startAgent()
			}
			for _, n := range spokes {
				n.turn()
			}
		}
	}
	live(3 * time.Hour)
	s.mutex.Lock()
	s.calm = true
	s.mutex.Unlock()
	s.agent.crash()
	s.startAgent()
	for _, n := range spokes {
		n.stop()
	}
	quiet := time.Now().Add(time.Hour) // until then what was under way before has ended
	live(150 * time.Minute)
	s.agent.crash()
	for _, n := range spokes {
		n.stop()
	}
	time.Sleep(time.Minute) // timers of commands
	return s.wrong(began, quiet)
}

// wrong says what is wrong at the end.
func (s *jobStory) wrong(began, quiet time.Time) error {
	list, err := s.c.ledger.Last(0, nil)
	if err != nil {
		return err
	}
	all := map[string][]wire.TaskOutcome{} // by ID
	for _, r := range slices.Backward(list) {
		all[r.Run.ID] = append(all[r.Run.ID], wire.TaskOutcome(r.Outcome))
		if r.Run.Node == "" || r.Run.Job == "" || len(r.Run.Command) != 1 || r.By != "father" {
			return fmt.Errorf("the receipt %+v lacks something", r)
		}
	}
	for name, job := range s.site.Jobs {
		if s.most[name] > job.Concurrency {
			return fmt.Errorf("%s ran on %d nodes at once", name, s.most[name])
		}
		occurrences := []string{job.Once}
		if job.Once == "" {
			occurrences = nil
			for at := job.Next(began, ""); at.Before(time.Now()); at = job.Next(at, "") {
				occurrences = append(occurrences, at.UTC().Format(time.RFC3339))
			}
		}
		for _, o := range occurrences {
			failed, without := 0, 0
			at, _ := time.Parse(time.RFC3339, o)
			for _, node := range job.Nodes {
				id := wire.NewTaskID("job", name, o, node)
				outcomes := all[id]
				ran := s.runs[id]
				delete(s.runs, id)
				delete(all, id)
				what := fmt.Sprintf("%s of %s on %s: outcomes %v, ran %d times", name, o, node, outcomes, ran)
				if len(outcomes) == 0 {
					if time.Since(at) < 30*time.Minute {
						continue // it is under way
					}
					missed := !at.IsZero() && at.Before(quiet)
					if ran > 0 || !missed && (job.OnFailure != "stop" || failed == 0) {
						return errors.New(what)
					}
					without++
					continue
				}
				last := outcomes[len(outcomes)-1]
				s.ended[last]++
				wrong := ran > 1 || len(outcomes) > 2 || len(outcomes) == 2 && outcomes[0] != wire.TaskUnknown
				if last == wire.TaskDone || last == wire.TaskTimeout {
					wrong = wrong || ran != 1
				}
				if last == wire.TaskExpired {
					wrong = wrong || ran != 0
				}
				if at.After(quiet) && time.Since(at) >= 30*time.Minute {
					wrong = wrong || ran != 1 || last == wire.TaskUnknown
				}
				if last != wire.TaskDone {
					failed++
				}
				if wrong || job.OnFailure == "stop" && failed > job.Concurrency {
					return errors.New(what)
				}
			}
			if job.OnFailure != "stop" && without > 0 && without < len(job.Nodes) {
				return fmt.Errorf("%s of %s began, and %d nodes have no receipt", name, o, without)
			}
		}
	}
	if len(s.runs) > 0 || len(all) > 0 {
		return fmt.Errorf("there are runs of no time of a job: %v %v", s.runs, all)
	}
	return nil
}

// inMemory is a folder that needs no disk, where the machine has such.
func inMemory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "jobs-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// A job runs once on each of its nodes at each of its times, or has a receipt that says why not, at whichever step a process
// crashes. HOMESTAK_SCHEDULES is the number of schedules, and HOMESTAK_SCHEDULES_SKIP how many of them are left out before.
func TestJobsExactlyOnce(t *testing.T) {
	number := func(name string, otherwise int) int {
		text := os.Getenv(name)
		if text == "" {
			return otherwise
		}
		n, err := strconv.Atoi(text)
		require.NoError(t, err, name)
		return n
	}
	first, schedules := number("HOMESTAK_SCHEDULES_SKIP", 0), number("HOMESTAK_SCHEDULES", 30)
	ended := map[wire.TaskOutcome]int{}
	for seed := first; seed < schedules; seed++ {
		if seed%100 == 0 && seed > first {
			fmt.Printf("schedules %d to %d: %v\n", first, seed-1, ended) // by hand: what is logged comes in the end
		}
		synctest.Test(t, func(t *testing.T) {
			s := &jobStory{
				t: t, r: rand.New(rand.NewPCG(uint64(seed), 1)), dir: inMemory(t), //nolint:gosec // a schedule
				runs: map[string]int{}, now: map[string]map[string]bool{}, most: map[string]int{}, ended: ended,
			}
			require.NoError(t, s.run(), "schedule %d", seed)
		})
	}
	t.Logf("%d schedules: %v", schedules-first, ended)
	require.Len(t, ended, 5, "all outcomes happen")
}

// A clock that was set back stops no job.
func TestAClockThatIsSetBackStopsNoJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &jobStory{
			t: t, r: rand.New(rand.NewPCG(1, 1)), dir: inMemory(t), calm: true, //nolint:gosec // a schedule
			runs: map[string]int{}, now: map[string]map[string]bool{}, most: map[string]int{}, ended: map[wire.TaskOutcome]int{},
		}
		tick := &model.Job{Name: "tick", Schedule: "every 15m", Timeout: time.Minute, Nodes: []string{"father"}, Command: []string{"tick"}, Concurrency: 1}
		s.site = &model.Site{Name: "home", Timezone: "UTC", Hosts: map[string]*model.Host{"father": {Name: "father"}}, Jobs: map[string]*model.Job{"tick": tick}}
		s.startAgent()
		synctest.Wait()
		s.agent.crash()
		j, err := newJobs(s.c, nil)
		require.NoError(t, err)
		require.NoError(t, j.change(func(kept *jobState) {
			kept.Last[lastKey(tick)] = lastRun{time.Now().AddDate(1, 0, 0).UTC(), true} // the clock was a year ahead
		}))
		s.startAgent()
		time.Sleep(time.Hour + time.Minute)
		s.agent.crash()
		require.Len(t, s.runs, 4)
	})
}
