package tasks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

var errCrash = errors.New("the power fails")

// memory is a disk that crashes: at that step, before or after it took effect. Then it is dead until it starts again.
type memory struct {
	files map[string]string
	steps int  // until the crash; negative: there is none
	after bool // the step still takes effect
	dead  bool
}

func (m *memory) step(do func()) error {
	if m.dead {
		return errCrash
	}
	if m.steps--; m.steps == -1 {
		m.dead = true
		if m.after {
			do()
		}
		return errCrash
	}
	do()
	return nil
}

func (m *memory) list(string) ([]string, error) {
	var out []string
	for name := range m.files {
		out = append(out, filepath.Base(name))
	}
	return out, nil
}

func (m *memory) read(name string) ([]byte, error) {
	text, ok := m.files[name]
	if !ok {
		return nil, os.ErrNotExist
	}
	return []byte(text), nil
}

func (m *memory) replace(name string, content []byte) error {
	return m.step(func() { m.files[name] = string(content) })
}

func (m *memory) remove(name string) error { return m.step(func() { delete(m.files, name) }) }

// start is a disk after a start, which crashes at some step or never.
func (m *memory) start(r *rand.Rand) {
	m.dead, m.steps, m.after = false, -1, r.IntN(2) == 0
	if r != nil && r.IntN(3) == 0 {
		m.steps = r.IntN(8)
	}
}

// story is a parent and a child that run one schedule. Its log is what happened.
type story struct {
	t      *testing.T
	r      *rand.Rand
	now    time.Time
	calm   bool // nothing fails any more
	parent memory
	child  memory
	queue  *Queue
	worker *Worker

	asked    []wire.Task
	sent     []wire.Task                   // that were sent to the child
	runs     map[string]int                // of each task
	receipts map[string]wire.TaskResult    // by ID; the last one
	outcomes map[string][]wire.TaskOutcome // that receipts had, in turn
	log      []string
}

func (s *story) say(format string, args ...any) { s.log = append(s.log, fmt.Sprintf(format, args...)) }

func (s *story) startParent() {
	if s.calm {
		s.parent = memory{files: s.parent.files, steps: -1}
	} else {
		s.parent.start(s.r)
	}
	s.say("the parent starts")
	var err error
	s.queue, err = Open(Options{Dir: "q", Now: func() time.Time { return s.now }, disk: &s.parent, Ended: func(t wire.Task, r wire.TaskResult) error {
		if s.parent.dead {
			return errCrash
		}
		if before, has := s.receipts[t.ID]; !has || before.Outcome != r.Outcome {
			s.outcomes[t.ID] = append(s.outcomes[t.ID], r.Outcome)
		}
		s.receipts[t.ID] = r
		s.say("receipt of %.4s: %s", t.ID, r.Outcome)
		return nil
	}})
	require.NoError(s.t, err)
}

func (s *story) startChild() {
	if s.calm {
		s.child = memory{files: s.child.files, steps: -1}
	} else {
		s.child.start(s.r)
	}
	s.say("the child starts")
	once, err := openOnce("tasks.json", func() time.Time { return s.now }, &s.child)
	require.NoError(s.t, err)
	s.worker = &Worker{Once: once, Parent: s, Note: func(error) {}, begin: func(do func()) { do() }, Do: func(_ context.Context, t wire.Task) wire.TaskResult {
		if s.child.dead {
			return wire.TaskResult{Outcome: wire.TaskFailed}
		}
		s.runs[t.ID]++
		s.say("%.4s runs", t.ID)
		return wire.TaskResult{Outcome: wire.TaskDone, Began: s.now}
	}}
}

// lost reports whether a message is lost.
func (s *story) lost() bool { return !s.calm && s.r.IntN(8) == 0 }

// Tasks is a request of the child over a network that loses requests and answers.
func (s *story) Tasks(context.Context) ([]wire.Task, error) {
	if s.child.dead || s.parent.dead || s.lost() {
		return nil, errCrash
	}
	list, err := s.queue.Take("web-1")
	if err != nil {
		return nil, errCrash
	}
	s.sent = append(s.sent, list...)
	if s.lost() {
		return nil, errCrash
	}
	if !s.calm && s.r.IntN(4) == 0 && len(s.sent) > 0 { // an old answer is replayed
		list = append(list, s.sent[s.r.IntN(len(s.sent))])
	}
	return list, nil
}

// Answer is the other request.
func (s *story) Answer(_ context.Context, r wire.TaskResult) error {
	if s.child.dead || s.parent.dead || s.lost() {
		return errCrash
	}
	if _, err := s.queue.Answer("web-1", r); err != nil || s.lost() {
		return errCrash
	}
	return nil
}

// turn lets the child take its tasks, one after the other.
func (s *story) turn() {
	_ = s.worker.Turn(s.t.Context())
	s.worker.Wait()
}

// step is one thing that happens.
func (s *story) step() {
	if s.parent.dead || s.r.IntN(12) == 0 {
		s.startParent()
	}
	if s.child.dead || s.r.IntN(12) == 0 {
		s.startChild()
	}
	switch s.r.IntN(8) {
	case 0, 1: // the schedule asks, and after a crash again
		if len(s.asked) < 5 || s.r.IntN(2) == 0 {
			t := wire.Task{
				ID: wire.NewTaskID("nightly", strconv.Itoa(len(s.asked))), Kind: wire.TaskRun, For: "web-1", Node: "web-1", Command: []string{"true"}, Timeout: 60,
				Expires: s.now.Add(time.Duration(1+s.r.IntN(90)) * time.Minute), By: "father",
			}
			if s.queue.Put(t) == nil {
				s.asked = append(s.asked, t)
				s.say("%.4s is asked for", t.ID)
			}
		} else {
			_ = s.queue.Put(s.asked[s.r.IntN(len(s.asked))])
		}
	case 2:
		s.now = s.now.Add(time.Duration(s.r.IntN(40)) * time.Minute)
	case 3:
		_, _ = s.queue.Sweep(func(string) bool { return true })
	case 4:
		if len(s.asked) > 0 {
			_, _ = s.queue.Cancel("web-1", s.asked[s.r.IntN(len(s.asked))].ID)
		}
	default:
		s.turn()
	}
}

// ends lets everything come to its end, and says what is wrong.
func (s *story) ends() error {
	s.calm = true
	s.startParent()
	s.startChild()
	for range 3 {
		s.turn()
		s.now = s.now.Add(3 * time.Hour)
		if _, err := s.queue.Sweep(func(string) bool { return true }); err != nil {
			return err
		}
	}
	for _, t := range s.asked {
		got, has := s.receipts[t.ID]
		switch outcomes := s.outcomes[t.ID]; {
		case s.runs[t.ID] > 1:
			return fmt.Errorf("%.4s ran %d times", t.ID, s.runs[t.ID])
		case !has:
			return fmt.Errorf("%.4s has no receipt", t.ID)
		case got.Outcome == wire.TaskDone && s.runs[t.ID] != 1, got.Outcome == wire.TaskExpired && s.runs[t.ID] != 0:
			return fmt.Errorf("%.4s is %s, and ran %d times", t.ID, got.Outcome, s.runs[t.ID])
		case got.Outcome == wire.TaskFailed:
			return fmt.Errorf("%.4s has the result of a dead child", t.ID)
		case len(outcomes) > 1 && (len(outcomes) > 2 || outcomes[0] != wire.TaskUnknown):
			return fmt.Errorf("%.4s has the outcomes %v", t.ID, outcomes)
		}
	}
	if results, again := s.worker.Once.Unanswered(); len(results)+len(again) > 0 {
		return fmt.Errorf("%d results are not answered", len(results)+len(again))
	}
	return nil
}

// A task is carried out at most once, and has a result, at whichever step a process crashes, and whatever the network loses and
// replays. HOMESTAK_SCHEDULES is the number of schedules.
func TestExactlyOnce(t *testing.T) {
	schedules := 300
	if text := os.Getenv("HOMESTAK_SCHEDULES"); text != "" {
		var err error
		schedules, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	total := map[wire.TaskOutcome]int{}
	for seed := range schedules {
		s := &story{
			t: t, r: rand.New(rand.NewPCG(uint64(seed), 1)), now: time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC), //nolint:gosec // a schedule
			parent: memory{files: map[string]string{}}, child: memory{files: map[string]string{}},
			runs: map[string]int{}, receipts: map[string]wire.TaskResult{}, outcomes: map[string][]wire.TaskOutcome{},
		}
		s.startParent()
		s.startChild()
		for range 60 {
			s.step()
		}
		if err := s.ends(); err != nil {
			t.Fatalf("schedule %d: %v\n%s", seed, err, strings.Join(s.log, "\n"))
		}
		for _, r := range s.receipts {
			total[r.Outcome]++
		}
	}
	t.Logf("%d schedules: %v", schedules, total)
	for _, outcome := range []wire.TaskOutcome{wire.TaskDone, wire.TaskUnknown, wire.TaskExpired} {
		require.NotZero(t, total[outcome], "the schedules do not show %s", outcome)
	}
	require.Greater(t, total[wire.TaskDone], total[wire.TaskUnknown]+total[wire.TaskExpired])
}

func task(id string, expires time.Time) wire.Task {
	return wire.Task{ID: wire.NewTaskID(id), Kind: wire.TaskRun, For: "web-1", Node: "web-1", Command: []string{"true"}, Timeout: 1, Expires: expires, By: "a"}
}

// A queue is bounded, survives a restart, and one that cannot be read is set aside.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		open := func() *Queue {
			q, err := Open(Options{Dir: dir})
			require.NoError(t, err)
			return q
		}
		q, later := open(), time.Now().Add(time.Hour)
		for i := range wire.MaxTasks - 1 {
			q.nodes["web-1"] = append(q.nodes["web-1"], &entry{Task: task(strconv.Itoa(i), later)})
		}
		require.NoError(t, q.Put(task("last", later)))
		require.ErrorIs(t, q.Put(task("more", later)), errFull)
		other := task("other", later)
		other.For, other.Node = "web-2", "web-2"
		require.NoError(t, q.Put(other), "the queue of another node")
		require.Error(t, q.Put(wire.Task{ID: "x"}))

		q = open()
		require.True(t, q.News("web-1"))
		list, err := q.Take("web-1")
		require.NoError(t, err)
		require.Len(t, list, wire.MaxTasks)
		require.False(t, q.News("web-1"), "it has them")
		time.Sleep(againAfter)
		require.True(t, q.News("web-1"), "it may have lost the answer")

		known, err := q.Answer("web-2", wire.TaskResult{ID: list[0].ID, Outcome: wire.TaskDone})
		require.NoError(t, err)
		require.False(t, known, "a node cannot answer for another one")
		waited := make(chan wire.TaskResult)
		go func() {
			r, _ := q.Await(t.Context(), "web-1", list[0].ID)
			waited <- r
		}()
		synctest.Wait()
		for _, outcome := range []wire.TaskOutcome{wire.TaskDone, wire.TaskFailed} {
			known, err = q.Answer("web-1", wire.TaskResult{ID: list[0].ID, Outcome: outcome, Began: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)})
			require.NoError(t, err)
			require.True(t, known)
		}
		result := <-waited
		require.Equal(t, wire.TaskDone, result.Outcome, "the first answer counts")
		require.Equal(t, time.Now().UTC(), result.Began, "receipts after it would sort before one of the year 9999")
		_, err = q.Await(t.Context(), "web-1", "none")
		require.ErrorContains(t, err, "there is no task none")

		require.NoError(t, os.WriteFile(filepath.Join(dir, "web-2.json"), []byte("{"), 0o600))
		q, err = Open(Options{Dir: dir})
		require.ErrorContains(t, err, "is set aside")
		require.False(t, q.News("web-2"))
		require.FileExists(t, filepath.Join(dir, "web-2.json.broken"))

		time.Sleep(9 * 24 * time.Hour)
		_, err = q.Sweep(func(string) bool { return true })
		require.NoError(t, err)
		_, err = q.Sweep(func(string) bool { return true })
		require.NoError(t, err)
		names, err := folder{}.list(dir)
		require.NoError(t, err)
		require.Equal(t, []string{"web-2.json.broken"}, slices.Sorted(slices.Values(names)))
	})
}

// A task that expired is not begun, on either side, and one of a node that left is not either.
func TestExpired(t *testing.T) {
	disk, now := &memory{files: map[string]string{}, steps: -1}, time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	ended := map[string]wire.TaskResult{}
	q, err := Open(Options{Dir: "q", disk: disk, Now: func() time.Time { return now }, Ended: func(t wire.Task, r wire.TaskResult) error {
		ended[t.ID] = r
		return nil
	}})
	require.NoError(t, err)
	first, second := task("first", now.Add(time.Minute)), task("second", now.Add(time.Hour))
	require.NoError(t, q.Put(first))
	require.NoError(t, q.Put(second))
	next, err := q.Sweep(func(string) bool { return true })
	require.NoError(t, err)
	require.Equal(t, first.Expires, next)
	now = now.Add(2 * time.Minute)
	list, err := q.Take("web-1")
	require.NoError(t, err)
	require.Equal(t, []wire.Task{second}, list)
	_, err = q.Sweep(func(string) bool { return true })
	require.NoError(t, err)
	require.Equal(t, wire.TaskExpired, ended[first.ID].Outcome)
	require.NotContains(t, ended, second.ID)
	_, err = q.Sweep(func(string) bool { return false })
	require.NoError(t, err)
	require.Equal(t, wire.TaskUnknown, ended[second.ID].Outcome, "the node took it")

	once, err := openOnce("o", func() time.Time { return now }, disk)
	require.NoError(t, err)
	begins, err := once.Begin(first, false)
	require.NoError(t, err)
	require.False(t, begins)
	disk.files["o"] = "{"
	_, err = openOnce("o", func() time.Time { return now }, disk)
	require.ErrorContains(t, err, "no task is begun", "what was begun is not known")
}

// The memory of a child is bounded: it begins nothing that it could not remember.
func TestOnceIsBounded(t *testing.T) {
	now := time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	once, err := openOnce("o", func() time.Time { return now }, &memory{files: map[string]string{}, steps: -1})
	require.NoError(t, err)
	begin := func(i int) (bool, error) { return once.Begin(task(strconv.Itoa(i), now.Add(time.Minute)), false) }
	for i := range mostBegun - 1 {
		once.all = append(once.all, begun{ID: wire.NewTaskID(strconv.Itoa(i)), Expires: now.Add(time.Minute)})
	}
	begins, err := begin(mostBegun - 1)
	require.NoError(t, err)
	require.True(t, begins)
	_, err = begin(mostBegun)
	require.ErrorIs(t, err, errManyBegun)
	for i := range once.all {
		once.all[i].Answered = true
	}
	_, err = begin(mostBegun)
	require.ErrorIs(t, err, errManyBegun, "they could be asked for again")
	now = now.Add(time.Hour)
	begins, err = begin(mostBegun)
	require.NoError(t, err)
	require.True(t, begins)
}

// A task that another machine carries out goes on after a restart: that machine sees to it that it happens once.
func TestRelayedTasksGoOn(t *testing.T) {
	disk, now := &memory{files: map[string]string{}, steps: -1}, time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	open := func() *Once {
		o, err := openOnce("o", func() time.Time { return now }, disk)
		require.NoError(t, err)
		return o
	}
	asked := task("deep", now.Add(time.Minute))
	begins, err := open().Begin(asked, true)
	require.NoError(t, err)
	require.True(t, begins)
	o := open()
	results, again := o.Unanswered()
	require.Empty(t, results)
	require.Equal(t, []wire.Task{asked}, again)
	_, again = o.Unanswered()
	require.Empty(t, again, "it is under way")
}

// shell is a machine that answers.
type shell struct {
	out   guest.Output
	err   error
	takes time.Duration
	asked []string
	ended chan struct{}
}

func (s *shell) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	if c.Args[2] == ender {
		close(s.ended)
		return guest.Output{}, nil
	}
	s.asked = c.Args
	select {
	case <-time.After(s.takes):
		return s.out, s.err
	case <-s.ended:
		return guest.Output{Code: 143}, nil
	case <-ctx.Done():
		return guest.Output{}, fmt.Errorf("%w: %w", guest.ErrOutcomeLost, context.Cause(ctx))
	}
}

// The result of a command is its exit code and the end of what it wrote.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := fmt.Errorf("%w: the line is dead", guest.ErrOutcomeLost)
		long := strings.Repeat("x", wire.MaxTaskOutput) + "end\x1b[31m\n"
		for name, c := range map[string]struct {
			machine shell
			want    wire.TaskResult
		}{
			"done":     {shell{out: guest.Output{Out: "a\n", Err: "b\r\n"}}, wire.TaskResult{Outcome: wire.TaskDone, Output: "a\nb\n"}},
			"failed":   {shell{out: guest.Output{Code: 7}}, wire.TaskResult{Outcome: wire.TaskFailed, Code: 7}},
			"killed":   {shell{out: guest.Output{Signal: 9}}, wire.TaskResult{Outcome: wire.TaskFailed, Code: 137}},
			"its 124":  {shell{out: guest.Output{Code: 124}}, wire.TaskResult{Outcome: wire.TaskFailed, Code: 124}},
			"timeout":  {shell{out: guest.Output{Code: 124}, takes: time.Minute}, wire.TaskResult{Outcome: wire.TaskTimeout, Code: 124, Error: "it was ended after 1m0s"}},
			"hangs":    {shell{takes: time.Hour}, wire.TaskResult{Outcome: wire.TaskTimeout, Code: -1, Error: "it was ended after 1m0s"}},
			"lost":     {shell{err: lost}, wire.TaskResult{Outcome: wire.TaskUnknown, Code: -1, Error: lost.Error()}},
			"no login": {shell{err: errors.New("no route")}, wire.TaskResult{Outcome: wire.TaskFailed, Code: -1, Error: "no route"}},
			"long":     {shell{out: guest.Output{Out: long}}, wire.TaskResult{Outcome: wire.TaskDone, Output: long[9+mostPartial:wire.MaxTaskOutput+3] + "?[31m\n", Cut: true}},
			"lines":    {shell{out: guest.Output{Out: "token=canary\n" + long[:wire.MaxTaskOutput-8] + "\nend\n"}}, wire.TaskResult{Outcome: wire.TaskDone, Output: long[:wire.MaxTaskOutput-8] + "\nend\n", Cut: true}},
		} {
			asked := task(name, time.Now().Add(time.Minute))
			asked.Timeout = 60
			got := Run(t.Context(), &c.machine, asked)
			require.Equal(t, []string{asked.ID, "60", "true"}, c.machine.asked[4:])
			c.want.ID, c.want.Node, c.want.Began, c.want.Seconds = asked.ID, "web-1", got.Began, got.Seconds
			require.Equal(t, c.want, got, name)
			require.LessOrEqual(t, len(got.Output), wire.MaxTaskOutput)
		}
		ctx, cancel := context.WithCancel(t.Context())
		m := &shell{takes: time.Hour, ended: make(chan struct{})}
		ended := make(chan wire.TaskResult)
		go func() { ended <- Run(ctx, m, task("stopped", time.Now().Add(time.Minute))) }()
		synctest.Wait()
		began := time.Now()
		cancel()
		require.Equal(t, wire.TaskUnknown, (<-ended).Outcome)
		require.Zero(t, time.Since(began), "the command was ended on its machine")
		time.Sleep(time.Minute)
	})
}

// refusing is a parent that takes no output.
type refusing struct {
	mu    sync.Mutex
	taken []wire.TaskResult
}

func (*refusing) Tasks(context.Context) ([]wire.Task, error) { return nil, nil }

func (p *refusing) Answer(_ context.Context, r wire.TaskResult) error {
	if r.Output != "" || r.Outcome == "odd" {
		return &wire.Error{Code: wire.CodeSchema}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = append(p.taken, r)
	return nil
}

// A result that the parent refuses does not keep the others from it, nor a child from new tasks.
func TestRefusedResults(t *testing.T) {
	disk, now := &memory{files: map[string]string{}, steps: -1}, time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	once, err := openOnce("o", func() time.Time { return now }, disk)
	require.NoError(t, err)
	for _, r := range []wire.TaskResult{{Outcome: "odd"}, {Outcome: wire.TaskFailed, Code: 7, Output: "too much"}, {Outcome: wire.TaskDone}} {
		asked := task(string(r.Outcome), now.Add(time.Minute))
		_, err := once.Begin(asked, false)
		require.NoError(t, err)
		r.ID = asked.ID
		require.NoError(t, once.End(r))
	}
	p := &refusing{}
	w := Worker{Once: once, Parent: p, Note: func(error) {}}
	for range 3 {
		_ = w.Turn(t.Context()) // the first one says what was refused
	}
	require.Len(t, p.taken, 2)
	require.Equal(t, 7, p.taken[0].Code)
	require.True(t, p.taken[0].Cut)
	require.Contains(t, p.taken[0].Error, "output is missing")
	require.False(t, w.Due())
}

// Tasks that wait for their turn are not begun any more when the program ends.
func TestWaitingTasksEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		once, err := OpenOnce(filepath.Join(t.TempDir(), "o"))
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		did := 0
		w := Worker{Once: once, Parent: &refusing{}, Note: func(error) {}, Do: func(ctx context.Context, _ wire.Task) wire.TaskResult {
			did++
			<-ctx.Done()
			return wire.TaskResult{Outcome: wire.TaskUnknown}
		}}
		require.NoError(t, w.Turn(ctx))
		w.slots = make(chan struct{}, 1)
		for i := range 3 {
			asked := task(strconv.Itoa(i), time.Now().Add(time.Minute))
			_, err := once.Begin(asked, false)
			require.NoError(t, err)
			w.start(ctx, asked, false)
			synctest.Wait()
		}
		stop()
		w.Wait()
		require.Equal(t, 1, did)
	})
}
