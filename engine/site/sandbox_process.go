package site

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// child is a child process of a Sandbox.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr tail
	waited sync.Once
}

// start starts a child. It is the leader of a process group, and has nothing of this process but
// three pipes.
func (s *Sandbox) start() (*child, error) {
	if len(s.Command) < 2 {
		return nil, errors.New("start a process: no program is named")
	}
	c := &child{cmd: exec.Command(s.Command[0])} //nolint:noctx // who asks ends it, and it may outlive one question
	c.cmd.Args = s.Command[1:]
	c.cmd.Env = []string{"LC_ALL=C.UTF-8", "TZ=UTC"}
	c.cmd.Dir = "/"
	c.cmd.Stderr = &c.stderr
	c.cmd.SysProcAttr = ownGroup()
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	c.in, c.out = in, bufio.NewReader(out)
	if err := startBound(c.cmd); err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	return c, nil
}

// end kills the group of the child, and waits for it. It may be called again.
func (c *child) end() {
	c.waited.Do(func() {
		killGroup(c.cmd.Process.Pid)
		_ = c.cmd.Wait()
	})
}

// call sends a request, and serves the child files until it replies; whole reports whether all of the tree could be
// read. After an error the child is of no use any more. An error of type *harmError is the fault of what is evaluated.
func (c *child) call(ctx context.Context, l limits, tree fs.FS, r request) (answer reply, whole bool, err error) {
	w := &watch{pid: c.cmd.Process.Pid, limits: l, quit: make(chan struct{}), done: make(chan struct{})}
	w.began, w.base = time.Now(), cpuOf(w.pid)
	r.Rules = l.ofRules()
	w.rules = r.Load == nil
	if r.Ask != nil {
		w.read = int64(len(r.Ask.Input))
	}
	_, r.Most = l.aroundRules(w.read)
	if r.Memory = r.Most; r.Load != nil {
		_, r.Memory = l.of(0)
		w.known = r.Memory
	}
	go w.run(ctx)
	answer, err = c.converse(w, tree, r)
	close(w.quit)
	<-w.done
	if err == nil {
		if answer.Error != "" {
			return reply{}, false, errors.New(answer.Error)
		}
		return answer, !w.unread, nil
	}
	c.end()
	if w.why == nil {
		w.why = c.crashed(err)
	}
	if harm, ok := errors.AsType[*harmError](w.why); ok {
		harm.At = w.at
	}
	return reply{}, false, w.why
}

func (c *child) converse(w *watch, tree fs.FS, r request) (reply, error) {
	if err := writeDocument(c.in, r); err != nil {
		return reply{}, err
	}
	known := map[string]bool{}
	for {
		var m message
		if err := readDocument(c.out, mostFromChild, &m); err != nil {
			return reply{}, err
		}
		switch {
		case m.Reply != nil:
			return *m.Reply, nil
		case m.At != nil:
			w.at = *m.At
		case m.Rules:
			w.ask()
		case m.File != nil && tree != nil:
			a := answerFile(tree, *m.File)
			w.unread = w.unread || a.failed
			if !known[m.File.Name] && a.Data != nil && !strings.HasSuffix(m.File.Name, ".rego") {
				known[m.File.Name] = true
				a.Memory = w.add(int64(len(a.Data)))
			}
			if err := writeDocument(c.in, fromParent{File: &a}); err != nil {
				return reply{}, err
			}
		default:
			return reply{}, errors.New("the child asks for a function that does not exist")
		}
	}
}

// crashed says why a child exited unexpectedly.
func (c *child) crashed(err error) error {
	text := c.stderr.String()
	switch {
	case strings.Contains(text, "stack overflow"), strings.Contains(text, "stack exceeds"):
		return &harmError{Why: "it is nested too deeply", Lasting: true}
	case strings.Contains(text, "out of memory"), strings.Contains(text, "cannot allocate memory"):
		return &harmError{Why: "it takes too much memory", Lasting: true}
	case c.cmd.ProcessState != nil && c.cmd.ProcessState.ExitCode() == 2:
		first, _, _ := strings.Cut(text, "\n")
		return &harmError{Why: "its evaluation crashes: " + first, Lasting: true}
	case c.cmd.ProcessState != nil:
		return &harmError{Why: fmt.Sprintf("the process that evaluates it ended: %s", c.cmd.ProcessState)}
	default:
		return err
	}
}

// tail keeps the beginning of what a child writes to its standard error.
type tail struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	const most = 4 << 10
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.text.Write(b[:min(len(b), most-min(t.text.Len(), most))])
	return len(b), nil
}

// String gives it.
func (t *tail) String() string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.text.String()
}

// watch ends a child that takes too much.
type watch struct {
	pid    int
	limits limits

	mutex sync.Mutex
	read  int64 // bytes of files that it was given
	known int64 // the limit of memory that it has been sent
	rules bool  // it evaluates rules

	began time.Time     // this part of the work
	base  time.Duration // processor time that it had used by then

	at     diag.Range // where it was; of the one who reads
	unread bool       // something of the tree could not be read; as at

	why  error // why it was ended; after done
	quit chan struct{}
	done chan struct{}
}

// add counts bytes, and returns the limit of memory if that is much more than the child knows: to set it stops the child for a moment.
func (w *watch) add(bytes int64) int64 {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.read += bytes
	const much = 8 << 20
	_, memory := w.limits.of(w.read)
	if memory < w.known+much {
		return 0
	}
	w.known = memory
	return memory
}

// ask begins the part of the work in which rules are evaluated.
func (w *watch) ask() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if !w.rules {
		w.rules, w.began, w.base = true, time.Now(), cpuOf(w.pid)
	}
}

func (w *watch) run(ctx context.Context) {
	defer close(w.done)
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.quit:
			return
		case <-ctx.Done():
			w.why = context.Cause(ctx)
		case <-tick.C:
			_ = syscall.Kill(w.pid, syscall.SIGCONT) // a child that somebody stopped would use up its time by the clock
			if harm := w.exceeded(); harm != nil {
				w.why = harm
			}
		}
		if w.why != nil {
			killGroup(w.pid)
			return
		}
	}
}

func (w *watch) exceeded() *harmError {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	cpu, memory := w.limits.of(w.read)
	if w.rules {
		cpu, memory = w.limits.aroundRules(w.read)
	}
	wall := max(patience*cpu, leastWall)
	switch used := cpuOf(w.pid) - w.base; {
	case used > cpu:
		return overCPU(cpu)
	case time.Since(w.began) > wall:
		return &harmError{Why: fmt.Sprintf("it did not finish within %s", wall.Round(time.Second))}
	case memoryOf(w.pid) > memory:
		return overMemory(memory)
	default:
		return nil
	}
}

func overCPU(limit time.Duration) *harmError {
	return &harmError{Why: fmt.Sprintf("it did not finish within %s of processor time", limit.Round(time.Second/10)), Lasting: true, Time: true}
}

func overMemory(limit int64) *harmError {
	return &harmError{Why: fmt.Sprintf("it took more than %d MiB of memory", limit>>20), Lasting: true}
}

// cpuOf is the processor time that a process has used; 0 if that is not known.
func cpuOf(pid int) time.Duration {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The name of the program may hold anything, and ends with the last bracket.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const user, system, perSecond = 11, 12, 100 // of proc_pid_stat(5), from the state on; USER_HZ
	if len(fields) <= system {
		return 0
	}
	a, _ := strconv.ParseInt(fields[user], 10, 64)
	b, _ := strconv.ParseInt(fields[system], 10, 64)
	return time.Duration(a+b) * time.Second / perSecond
}

// memoryOf returns the memory of a process without files, in bytes; 0 if that is not known.
func memoryOf(pid int) int64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}
