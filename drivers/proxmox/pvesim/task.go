package pvesim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// task is a worker process. Its work has two halves: begin, when it has the
// lock file it needs, and end, when its time has passed. A failure of either
// ends it.
type task struct {
	job
	w     *world
	upid  string
	node  string
	pid   int
	since int64 // Its start in hundredths of a second since the node's boot.
	start time.Time
	who   identity

	due     time.Time // When it will end, as far as is known.
	stopped time.Time // When it ended; zero while it runs.
	status  string
	log     []string
	began   bool
	waiting []*task // For the lock file that this one holds.

	warnings int

	unlisted bool          // No task of PVE, but something of the node that takes the lock file, too.
	patience time.Duration // How long it waits for the lock file; 0 for lockPatience.
}

// job is what a task is to do.
type job struct {
	kind string // qmcreate, …
	id   string // Of the guest, the volume or nothing.
	// guest is the guest whose lock file it holds while it runs; nil if none.
	guest *guest
	begin func(*task) error
	end   func(*task) error
	// abort undoes what was done so far when the task is stopped by hand; may be
	// nil, and may be called before begin.
	abort func(*task)
	// held says, when its time has passed, that it goes on: somebody else will end it.
	held func() bool
	// takes is how long it runs, if not as long as tasks do here.
	takes time.Duration
}

// taskList are all tasks, in the order in which they were started.
type taskList struct {
	all  []*task
	byID map[string]*task
}

func newTaskList() taskList { return taskList{byID: map[string]*task{}} }

// forkTime is how long a new worker takes until it does anything: the moment in
// which of two clones to one id both pass the early checks.
const forkTime = 50 * time.Millisecond

// fork starts a task and returns its UPID (fork_worker in
// PVE/RESTEnvironment.pm). Its work begins after this request is answered: with
// a task time a moment later, without one before the next request is served.
//
// Where the worker does not start, it ends the request there, as Perl's die would.
func (w *world) fork(c *call, node string, j job) string {
	if c.req.noWorker {
		panic(errNoWorker)
	}
	return w.forkAs(c.who, node, j)
}

// forkAs is fork for somebody: what nobody asked for, the HA manager does as root.
func (w *world) forkAs(who identity, node string, j job) string {
	t := &task{job: j, w: w, node: node, pid: w.pid(), start: w.now, who: who}
	t.due = w.now.Add(w.taskTime(j.kind))
	t.since = int64(w.now.Sub(w.boot) / (10 * time.Millisecond))
	t.upid = fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:", node, t.pid, t.since, w.now.Unix(), j.kind, j.id, who)
	w.tasks.all = append(w.tasks.all, t)
	w.tasks.byID[t.upid] = t
	w.countTask(t.kind, +1)
	w.at(w.now.Add(w.forkTime(j.kind)), t.enter)
	w.doom(t)
	return t.upid
}

// rootIdentity is who the node's own services are.
var rootIdentity = identity{user: "root@pam"}

// rootCall stands for a request in what a service of the node does.
func (w *world) rootCall() *call {
	return &call{w: w, who: rootIdentity, req: &request{begun: w.now}, in: map[string]string{}, values: map[string]any{}}
}

// taskTime is how long a task of a type takes in all.
func (w *world) taskTime(kind string) time.Duration {
	if own, ok := w.cfg.TaskTimes[kind]; ok {
		return own
	}
	return w.cfg.TaskTime
}

func (w *world) forkTime(kind string) time.Duration { return min(forkTime, w.taskTime(kind)/2) }

func (w *world) countTask(kind string, by int) {
	for _, key := range []string{"", kind} {
		w.count.running[key] += by
		w.count.peakTasks[key] = max(w.count.peakTasks[key], w.count.running[key])
	}
}

// running says whether a task is not over.
func (t *task) running() bool { return t.stopped.IsZero() }

func (t *task) logf(format string, args ...any) {
	t.log = append(t.log, strings.Split(fmt.Sprintf(format, args...), "\n")...)
}

// warn logs a warning (log_warn in PVE/RESTEnvironment.pm). A task that warned
// ends well, and says so.
func (t *task) warn(text string) {
	t.logf("WARN: %s", text)
	t.warnings++
}

// enter takes the lock file, or waits for it.
func (t *task) enter() {
	if !t.running() {
		return
	}
	if t.guest != nil {
		if holder := t.guest.file; holder != nil && holder != t {
			t.logf("trying to acquire lock...")
			holder.waiting = append(holder.waiting, t)
			t.due = t.w.now.Add(cmp.Or(t.patience, lockPatience))
			t.w.at(t.due, func() {
				if !t.began && t.running() {
					t.finish(fail("can't lock file '%s' - got timeout", lockName(t.guest)))
				}
			})
			return
		}
		t.guest.file = t
	}
	t.work()
}

// work does the first half, and plans the second. The guest may be gone since
// the task was asked for.
func (t *task) work() {
	t.began = true
	if g := t.guest; g != nil && t.w.guests[g.vmid] != g {
		t.finish(missing(g.node, g.kind, g.vmid))
		return
	}
	if t.guest != nil && writingTasks[t.kind] {
		if err := t.w.needWritable(t.guest); err != nil {
			t.finish(err)
			return
		}
	}
	takes := t.w.taskTime(t.kind) - t.w.forkTime(t.kind)
	if t.begin != nil {
		if err := t.begin(t); err != nil {
			t.finish(err)
			return
		}
	}
	if t.takes > 0 {
		takes = t.takes
	}
	t.due = t.w.now.Add(takes)
	t.w.at(t.due, func() {
		if !t.running() || t.held != nil && t.held() {
			return
		}
		var err error
		if t.end != nil {
			err = t.end(t)
		}
		t.finish(err)
	})
}

// finish ends a task, with PVE's last line of its log.
func (t *task) finish(err error) {
	switch {
	case err == nil && t.warnings > 0:
		t.status = fmt.Sprintf("WARNINGS: %d", t.warnings)
		t.logf("TASK %s", t.status)
	case err == nil:
		t.status = "OK"
		t.logf("TASK OK")
	default:
		text := strings.TrimRight(taskText(err), "\n")
		t.logf("TASK ERROR: %s", text)
		t.status = strings.ReplaceAll(text, "\n", " ")
	}
	t.close()
}

// taskText is a failure as a task tells it, without what only HTTP needs.
func taskText(err error) string {
	if e, ok := errors.AsType[*apiError](err); ok {
		for _, name := range slices.Sorted(maps.Keys(e.errors)) {
			return fmt.Sprintf("400 Parameter verification failed.\n%s: %s", name, e.errors[name])
		}
		if e.status == http.StatusForbidden { // An exception with a code tells it (stringify in PVE/Exception.pm).
			return "403 " + err.Error()
		}
	}
	return err.Error()
}

// close releases what a task held, and lets the next one have the lock file.
func (t *task) close() {
	t.stopped = t.w.now
	t.begin, t.end, t.abort, t.held = nil, nil, nil, nil // The list of tasks is long, and these hold the whole request.
	if !t.unlisted {
		t.w.countTask(t.kind, -1)
	}
	if t.w.cfg.KeepTasks > 0 {
		t.w.at(t.stopped, t.w.rotate) // Not now: somebody may be going through the list.
	}
	if t.guest == nil || t.guest.file != t {
		return
	}
	t.guest.file = nil
	for len(t.waiting) > 0 {
		next := t.waiting[0]
		t.waiting = t.waiting[1:]
		if !next.running() || next.began {
			continue
		}
		next.waiting = t.waiting
		next.guest.file = next
		next.logf(" OK")
		next.work()
		return
	}
}

// interrupted is how the work of a task says that it was stopped, where it says so in its
// own way; %s is the guest.
var interrupted = map[string]string{
	"qmcreate": "unable to create VM %s - received interrupt", "qmrestore": "unable to restore VM %s - received interrupt",
	"vzcreate": "unable to create CT %s - received interrupt", "vzrestore": "unable to restore CT %s - received interrupt",
	"qmclone": "clone failed: interrupted by signal", "vzclone": "clone failed: interrupted by signal",
	"vzdump": "interrupted by signal", "qmmove": "storage migration failed: interrupted by signal",
}

// kill stops a task by hand. Its work hears of that as of any other failure (fork_worker
// in PVE/RESTEnvironment.pm). One that is waiting for the guest agent takes it for the
// agent's failure, goes on, and is killed: its log ends without a verdict, which readers
// of the status call an unexpected one.
func (t *task) kill() {
	if !t.running() {
		return
	}
	if t.abort != nil {
		t.abort(t)
	}
	if g := t.guest; t.kind == "qmshutdown" && g != nil && g.run != nil && agentEnabled(g) && t.w.now.Before(g.run.booted) {
		t.logf("QEMU Guest Agent is not running - received interrupt")
		t.crash()
		return
	}
	text, special := interrupted[t.kind]
	if !special {
		text = "received interrupt"
	}
	t.finish(fail("%s", strings.ReplaceAll(text, "%s", t.id)))
}

// crash ends a task without a verdict and without cleaning up, as when its worker is
// killed.
func (t *task) crash() {
	t.status = "unexpected status"
	t.close()
}

// lose lets a task vanish with its log, as it was seen of creates on a host
// under load: nobody cleans up, the list says that its log cannot be read, and
// whoever asks for it by name hears that there is none.
func (t *task) lose() {
	t.status = "unable to open file - No such file or directory"
	delete(t.w.tasks.byID, t.upid)
	t.close()
}

// statusIsError says whether a status counts as an error (upid_status_is_error).
func statusIsError(status string) bool {
	return status != "OK" && !strings.HasPrefix(status, "WARNINGS: ")
}

// await is for calls that start a task and wait for its end, for as long as
// background_delay or delay say: nothing if it went well, its status if not, and
// the UPID if it still runs. The call is served again while it waits, so a
// handler that uses it begins by looking at request.forked.
func (c *call) await(prefix string) (any, error) {
	t := c.req.forked
	patience := atoi(text(c.values["background_delay"])) + atoi(text(c.values["delay"])) // No call knows both.
	giveUp := c.req.begun.Add(time.Duration(patience) * time.Second)
	switch {
	case !t.running() && statusIsError(t.status):
		return nil, fail("%s%s", prefix, t.status)
	case !t.running():
		return nil, nil
	case !c.w.now.Before(giveUp):
		return t.upid, nil
	case t.due.Before(giveUp):
		return nil, &lockedError{until: t.due}
	default:
		return nil, &lockedError{until: giveUp}
	}
}

// errNoWorker is what fork_worker dies with when the new process does not report its
// task (PVE/RESTEnvironment.pm). Nothing of the task's own work has begun then: the
// process waits for its parent, which gives up.
var errNoWorker = fail("got no worker upid - start worker failed")
