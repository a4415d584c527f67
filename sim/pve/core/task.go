package core

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Task is a worker process. Its work has two halves: begin, when it has the
// lock file it needs, and end, when its time has passed. A failure of either
// ends it.
type Task struct {
	Job
	W     *World
	UPID  string
	Node  string
	Pid   int
	Since int64 // Its start in hundredths of a second since the node's boot.
	Start time.Time
	Who   Identity

	due     time.Time // When it will end, as far as is known.
	Stopped time.Time // When it ended; zero while it runs.
	Status  string
	Log     []string
	began   bool
	waiting []*Task // For the lock file that this one holds.

	warnings int

	Unlisted bool          // No task of PVE, but something of the node that takes the lock file, too.
	Patience time.Duration // How long it waits for the lock file; 0 for lockPatience.
}

// Job is the work of a task.
type Job struct {
	Kind string // qmcreate, …
	ID   string // Of the guest, the volume or nothing.
	// guest is the guest whose lock file it holds while it runs; nil if none.
	Guest *Guest
	Begin func(*Task) error
	End   func(*Task) error
	// abort undoes what was done so far when the task is stopped by hand; may be
	// nil, and may be called before begin.
	Abort func(*Task)
	// takes is how long it runs, if not as long as tasks do here.
	Takes time.Duration
}

// taskList are all tasks, in the order in which they were started.
type taskList struct {
	All  []*Task
	ByID map[string]*Task
}

// Message is an entry of the cluster log that is not about the start or end of a task.
type Message struct {
	At   time.Time
	Node string
	Who  Identity
	Pid  int // of the process that wrote it: a task, or the daemon
	Text string
}

// mostMessages is how many of them are kept.
const mostMessages = 200

// messages are entries of the cluster log, the oldest first.
type messages []Message

// Add writes an entry (log_msg in PVE/Cluster.pm).
func (l *messages) Add(m Message) { *l = append((*l)[max(len(*l)-mostMessages, 0):], m) }

func newTaskList() taskList { return taskList{ByID: map[string]*Task{}} }

// forkTime is the time that a new worker takes until it does anything: the moment in
// which of two clones to one id both pass the early checks.
const forkTime = 50 * time.Millisecond

// Fork starts a task and returns its UPID (fork_worker in
// PVE/RESTEnvironment.pm). Its work begins after this request is answered: with
// a task time a moment later, without one before the next request is served.
//
// Where the worker does not start, it ends the request there, as Perl's die would.
func (w *World) Fork(c *Call, node string, j Job) string {
	if c.Req.NoWorker {
		panic(ErrNoWorker)
	}
	return w.ForkAs(c.Who, node, j)
}

// ForkAs is fork for another user: the HA manager runs its own tasks as root.
func (w *World) ForkAs(who Identity, node string, j Job) string {
	t := &Task{Job: j, W: w, Node: node, Pid: w.Pid(), Start: w.Now, Who: who}
	t.due = w.Now.Add(w.Cfg.TaskTimeOf(j.Kind))
	t.Since = int64(w.Now.Sub(w.Boot) / (10 * time.Millisecond))
	t.UPID = fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:", node, t.Pid, t.Since, w.Now.Unix(), j.Kind, j.ID, who)
	w.Tasks.All = append(w.Tasks.All, t)
	w.Tasks.ByID[t.UPID] = t
	w.Count.task(t.Kind, +1)
	w.At(w.Now.Add(w.Cfg.forkTime(j.Kind)), t.Enter)
	t.doom()
	return t.UPID
}

// Recall keeps a task that another host had. Without a status it runs, and ends well after the time of a task.
func Recall(w *World, upid, status string, ended time.Time) {
	parts := strings.Split(upid, ":")
	if len(parts) < 8 {
		return
	}
	hexadecimal := func(text string) int64 { n, _ := strconv.ParseInt(text, 16, 64); return n }
	t := &Task{
		Job: Job{Kind: parts[5], ID: parts[6]}, W: w, UPID: upid, Node: parts[1], Pid: int(hexadecimal(parts[2])), Since: hexadecimal(parts[3]),
		Start: time.Unix(hexadecimal(parts[4]), 0), Status: status, began: true,
	}
	t.Who.User, t.Who.Token, _ = strings.Cut(parts[7], "!")
	w.Tasks.All = append(w.Tasks.All, t)
	w.Tasks.ByID[upid] = t
	if status != "" {
		t.Stopped = ended
		return
	}
	w.Count.task(t.Kind, +1)
	w.At(w.Now.Add(w.Cfg.TaskTimeOf(t.Kind)), func() {
		if t.Running() {
			t.Finish(nil)
		}
	})
}

// RootIdentity is the identity of the node's own services.
var RootIdentity = Identity{User: "root@pam"}

// RootCall stands for a request in what a service of the node does.
func (w *World) RootCall() *Call {
	return &Call{W: w, Who: RootIdentity, Req: &Request{Begun: w.Now}, In: map[string]string{}, Values: map[string]any{}}
}

// TaskTimeOf returns the duration of a task of a type.
func (c Config) TaskTimeOf(kind string) time.Duration {
	if own, ok := c.TaskTimes[kind]; ok {
		return own
	}
	return c.TaskTime
}

func (c Config) forkTime(kind string) time.Duration { return min(forkTime, c.TaskTimeOf(kind)/2) }

func (c *counters) task(kind string, by int) {
	for _, key := range []string{"", kind} {
		c.running[key] += by
		c.PeakTasks[key] = max(c.PeakTasks[key], c.running[key])
	}
}

// Running says whether a task is not over.
func (t *Task) Running() bool { return t.Stopped.IsZero() }

// Logf adds lines to the log of a task.
func (t *Task) Logf(format string, args ...any) {
	t.Log = append(t.Log, strings.Split(fmt.Sprintf(format, args...), "\n")...)
}

// Warn logs a warning (log_warn in PVE/RESTEnvironment.pm). A task that warned
// ends well, and says so.
func (t *Task) Warn(text string) {
	t.Logf("WARN: %s", text)
	t.warnings++
}

// Enter takes the lock file, or waits for it.
func (t *Task) Enter() {
	if !t.Running() {
		return
	}
	if t.Guest != nil {
		if holder := t.Guest.File; holder != nil && holder != t {
			t.Logf("trying to acquire lock...")
			holder.waiting = append(holder.waiting, t)
			t.due = t.W.Now.Add(cmp.Or(t.Patience, lockPatience))
			t.W.At(t.due, func() {
				if !t.began && t.Running() {
					t.Finish(perl.Fail("can't lock file '%s' - got timeout", lockName(t.Guest)))
				}
			})
			return
		}
		t.Guest.File = t
	}
	t.work()
}

// work does the first half, and plans the second. The guest may be gone since
// the task was asked for.
func (t *Task) work() {
	t.began = true
	if g := t.Guest; g != nil && t.W.Guests[g.Vmid] != g {
		t.Finish(Missing(g.Node, g.Kind, g.Vmid))
		return
	}
	if t.Guest != nil && writingTasks[t.Kind] {
		if err := t.W.NeedWritable(t.Guest); err != nil {
			t.Finish(err)
			return
		}
	}
	takes := t.W.Cfg.TaskTimeOf(t.Kind) - t.W.Cfg.forkTime(t.Kind)
	if t.Begin != nil {
		if err := t.Begin(t); err != nil {
			t.Finish(err)
			return
		}
	}
	if t.Takes > 0 {
		takes = t.Takes
	}
	t.due = t.W.Now.Add(takes)
	t.W.At(t.due, func() {
		if !t.Running() {
			return
		}
		var err error
		if t.End != nil {
			err = t.End(t)
		}
		t.Finish(err)
	})
}

// Finish ends a task, with PVE's last line of its log.
func (t *Task) Finish(err error) {
	switch {
	case err == nil && t.warnings > 0:
		t.Status = fmt.Sprintf("WARNINGS: %d", t.warnings)
		t.Logf("TASK %s", t.Status)
	case err == nil:
		t.Status = "OK"
		t.Logf("TASK OK")
	default:
		text := strings.TrimRight(TaskText(err), "\n")
		t.Logf("TASK ERROR: %s", text)
		t.Status = strings.ReplaceAll(text, "\n", " ")
	}
	t.close()
}

// TaskText is a failure as a task tells it, without what only HTTP needs.
func TaskText(err error) string {
	if e, ok := errors.AsType[*perl.APIError](err); ok {
		for _, name := range slices.Sorted(maps.Keys(e.Errors)) {
			return fmt.Sprintf("400 Parameter verification failed.\n%s: %s", name, e.Errors[name])
		}
		if e.Status == http.StatusForbidden { // An exception with a code tells it (stringify in PVE/Exception.pm).
			return "403 " + err.Error()
		}
	}
	return err.Error()
}

// close releases what a task held, and lets the next one have the lock file.
func (t *Task) close() {
	t.Stopped = t.W.Now
	t.Begin, t.End, t.Abort = nil, nil, nil // The list of tasks is long, and these hold the whole request.
	if !t.Unlisted {
		t.W.Count.task(t.Kind, -1)
	}
	if t.W.Cfg.KeepTasks > 0 {
		t.W.At(t.Stopped, func() { t.W.Tasks.rotate(t.W.Cfg.KeepTasks) }) // Not now: the list may be in use.
	}
	if t.Guest == nil || t.Guest.File != t {
		return
	}
	t.Guest.File = nil
	for len(t.waiting) > 0 {
		next := t.waiting[0]
		t.waiting = t.waiting[1:]
		if !next.Running() || next.began {
			continue
		}
		next.waiting = t.waiting
		next.Guest.File = next
		next.Logf(" OK")
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

// Kill stops a task by hand. Its work hears of that as of any other failure (fork_worker
// in PVE/RESTEnvironment.pm). One that is waiting for the guest agent takes it for the
// agent's failure, goes on, and is killed: its log ends without a verdict, which readers
// of the status call an unexpected one.
func (t *Task) Kill() {
	if !t.Running() {
		return
	}
	if t.Abort != nil {
		t.Abort(t)
	}
	if g := t.Guest; t.Kind == "qmshutdown" && g != nil && g.Run != nil && g.AgentEnabled() && t.W.Now.Before(g.Run.Booted) {
		t.Logf("QEMU Guest Agent is not running - received interrupt")
		t.Crash()
		return
	}
	text, special := interrupted[t.Kind]
	if !special {
		text = "received interrupt"
	}
	t.Finish(perl.Fail("%s", strings.ReplaceAll(text, "%s", t.ID)))
}

// Crash ends a task without a verdict and without cleaning up, as when its worker is
// killed.
func (t *Task) Crash() {
	t.Status = "unexpected status"
	t.close()
}

// Lose lets a task vanish with its log, as it was seen of creates on a host under load: without clean-up, the list
// says that its log cannot be read, and a request by name says that it does not exist.
func (t *Task) Lose() {
	t.Status = "unable to open file - No such file or directory"
	delete(t.W.Tasks.ByID, t.UPID)
	t.close()
}

// StatusIsError says whether a status counts as an error (upid_status_is_error).
func StatusIsError(status string) bool {
	return status != "OK" && !strings.HasPrefix(status, "WARNINGS: ")
}

// Await is for calls that start a task and wait for its end, for as long as
// background_delay or delay say: nothing if it went well, its status if not, and
// the UPID if it still runs. The call is served again while it waits, so a
// handler that uses it begins by looking at request.forked.
func (c *Call) Await(prefix string) (any, error) {
	t := c.Req.Forked
	patience := perl.Atoi(perl.Text(c.Values["background_delay"])) + perl.Atoi(perl.Text(c.Values["delay"])) // No call knows both.
	giveUp := c.Req.Begun.Add(time.Duration(patience) * time.Second)
	switch {
	case !t.Running() && StatusIsError(t.Status):
		return nil, perl.Fail("%s%s", prefix, t.Status)
	case !t.Running():
		return nil, nil
	case !c.W.Now.Before(giveUp):
		return t.UPID, nil
	case t.due.Before(giveUp):
		return nil, &perl.LockedError{Until: t.due}
	default:
		return nil, &perl.LockedError{Until: giveUp}
	}
}

// ErrNoWorker is the error of fork_worker when the new process does not report its
// task (PVE/RESTEnvironment.pm). Nothing of the task's own work has begun then: the
// process waits for its parent, which gives up.
var ErrNoWorker = perl.Fail("got no worker upid - start worker failed")

// Death says how a worker process dies in the middle of its task, as happens on a host
// under load or when a node crashes. Nothing is cleaned up: a lock that the task set
// stays, and so does what it made so far.
type Death struct {
	Type string // Of the task: "qmcreate", "qmclone", "vzdump", …
	// Nth is which task of the type dies, counted from 1; 0 is each of them.
	Nth int
	// Silent lets the task vanish with its log: its status call is a 400, and the
	// list of tasks says that its file cannot be opened. Otherwise its log ends
	// without a verdict, which reads as "unexpected status".
	Silent bool
}

// doom lets a new task die half-way, if its turn is in the configuration.
func (t *Task) doom() {
	w := t.W
	w.Count.begun[t.Kind]++
	for _, d := range w.Cfg.Deaths {
		if d.Type != t.Kind || d.Nth != 0 && d.Nth != w.Count.begun[t.Kind] {
			continue
		}
		half := w.Cfg.forkTime(t.Kind) + (w.Cfg.TaskTimeOf(t.Kind)-w.Cfg.forkTime(t.Kind))/2
		w.At(t.Start.Add(half), func() { // Behind its first half, which was planned before.
			switch {
			case !t.Running():
			case d.Silent:
				t.Lose()
			default:
				t.Crash()
			}
		})
	}
}

// rotate forgets the oldest tasks that are over, beyond those that the node keeps: PVE
// rotates its index of tasks and removes the logs with it.
func (l *taskList) rotate(keep int) {
	over := 0
	for _, t := range l.All {
		over += perl.BoolInt(!t.Running())
	}
	kept := l.All[:0]
	for _, t := range l.All {
		if !t.Running() && over > keep {
			over--
			delete(l.ByID, t.UPID)
			continue
		}
		kept = append(kept, t)
	}
	clear(l.All[len(kept):])
	l.All = kept
}
