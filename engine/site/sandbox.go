package site

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
)

// Sandbox evaluates the content of a repository in child processes of this program, with limits. Calls into the
// library of the language and into OPA cannot be interrupted, so only the end of a process bounds them.
//
// A tree is tried once: the child loads it with the same inputs, compiles its policies, and evaluates them on its
// site. If it passes, this process loads it again, at the same cost, and takes the result of the policies. Later
// evaluations of the site's own rules are made by a child, too, since their input differs from pass to pass.
//
// A child that accepted a tree, or answered, waits for the next tree or question, and keeps what it parsed and compiled; it
// exits when it is idle for a while. What it keeps takes memory, and the kernel may have ended it while it waited. So if it
// fails, a new child decides, unless the request itself took too much processor time.
//
// A Sandbox is safe for concurrent use by any number of loaders.
type Sandbox struct {
	Command []string // the child: a file, its name, and arguments that make it call RunSandbox
	Limits  limits

	once      sync.Once
	loads     chan struct{} // one for each child that loads
	questions chan struct{} // of the only one that answers
	waiting   struct {
		mutex  sync.Mutex
		child  *child // nil: none
		idle   *time.Timer
		closed bool // none waits any more
	}
}

// limits are those of one child and one request.
type limits struct {
	CPU    time.Duration // of processors; 0: 5 s, and 8 s more for each MiB that it reads of a site, without its rules
	Memory int64         // in bytes; 0: 96 MiB, and 128 bytes more for each such byte, at most 512 MiB
}

// An evaluation of rules has limits of its own, which name the rule; see package policy. Those of the
// process are wider, for what does not notice that it was stopped.
const (
	rulesCPU    = 5 * time.Second
	rulesMemory = 256 << 20
	mostProcess = 768 << 20 // bytes of a child that evaluates rules
)

// ofRules are the limits of one evaluation of rules: at most the usual ones.
func (l limits) ofRules() limits {
	r := limits{rulesCPU, rulesMemory}
	if l.CPU > 0 {
		r.CPU = min(r.CPU, l.CPU)
	}
	if l.Memory > 0 {
		r.Memory = min(r.Memory, l.Memory)
	}
	return r
}

// aroundRules are those of a process that evaluates rules on what it has.
func (l limits) aroundRules(read int64) (cpu time.Duration, memory int64) {
	_, memory = l.of(read)
	r := l.ofRules()
	return r.CPU + r.CPU/2, min(memory+r.Memory+r.Memory/2, mostProcess)
}

// The limits of a child.
const (
	sandboxCPU    = 5 * time.Second
	cpuPerMiB     = 8 * time.Second
	sandboxMemory = 96 << 20
	memoryPerByte = 128
	mostMemory    = 512 << 20

	patience   = 60               // times the processor time, by the clock on the wall: other processes may need the processors
	leastWall  = time.Minute      // by that clock, however short the processor time is
	mostLoads  = 2                // children that load at once
	idleFor    = 10 * time.Minute // that a child waits: longer than between two full checks
	checkEvery = 10 * time.Millisecond
)

// of says what a child may take that was given so many bytes of files.
func (l limits) of(read int64) (cpu time.Duration, memory int64) {
	cpu, memory = l.CPU, l.Memory
	if cpu == 0 {
		cpu = sandboxCPU + time.Duration(read)*cpuPerMiB/(1<<20)
	}
	if memory == 0 {
		memory = min(sandboxMemory+read*memoryPerByte, mostMemory)
	}
	return cpu, memory
}

// harmError is why a child was ended, or ended itself: what it evaluated takes too much.
type harmError struct {
	Why     string
	At      diag.Range // where it was; zero if that is unknown
	Lasting bool       // it would be the same another time, on any machine
	Time    bool       // it took too much processor time, which is counted for each request
}

// Error says it in one line, without the position.
func (e *harmError) Error() string { return e.Why }

// Position returns the position of the evaluation.
func (e *harmError) Position() diag.Range { return e.At }

// finding is the reason as a finding about the site.
func (e *harmError) finding() diag.Finding {
	return diag.Errorf(e.At, "the site takes too much to evaluate: "+e.Why, "Make this expression or rule smaller. docs/security.md says what a site may take.")
}

func (s *Sandbox) init() {
	s.once.Do(func() { s.loads, s.questions = make(chan struct{}, mostLoads), make(chan struct{}, 1) })
}

// trial is the result of a tree in a child.
type trial struct {
	refused diag.List     // what is wrong with it
	rules   policy.Answer // about its site, if nothing is wrong
	harmful bool          // its rules were stopped
	whole   bool          // all of it could be read
}

// try loads a tree in a child. It returns an error if that did not end within the limits.
func (s *Sandbox) try(ctx context.Context, tree fs.FS, in Input) (trial, error) {
	a, whole, err := s.do(ctx, tree, request{Load: &loadRequest{
		Commit: in.Commit, Tree: in.Tree, Secrets: in.Secrets, Local: in.Local, Vars: in.Vars, Mode: in.Mode, Unattended: in.Unattended, Now: in.now(),
	}})
	return trial{a.Refused, a.Answer, a.Harmful, whole}, err
}

// Ask implements policy.Apart.
func (s *Sandbox) Ask(ctx context.Context, q policy.Question) (policy.Answer, error) {
	a, _, err := s.do(ctx, nil, request{Ask: &q})
	return a.Answer, err
}

// do has a child reply to a request about a tree, or to a question, and reports whether all of the tree could be read.
// Questions come one after another, so that one child has the rules, and loads do not delay them.
func (s *Sandbox) do(ctx context.Context, tree fs.FS, r request) (a reply, whole bool, err error) {
	s.init()
	slots := s.loads
	if tree == nil {
		slots = s.questions
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return reply{}, false, context.Cause(ctx)
	}
	c := s.take()
	if c != nil {
		a, whole, err = c.call(ctx, s.Limits, tree, r)
	}
	harm, ok := errors.AsType[*harmError](err)
	if slow := ok && harm.Time; c == nil || err != nil && ctx.Err() == nil && !slow {
		if c != nil {
			c.end()
		}
		if c, err = s.start(); err != nil {
			return reply{}, false, err
		}
		a, whole, err = c.call(ctx, s.Limits, tree, r)
	}
	if err != nil || a.Last {
		c.end()
		return a, whole, err
	}
	s.keep(c)
	return a, whole, nil
}

// take returns the child that waits; nil: none does.
func (s *Sandbox) take() *child {
	w := &s.waiting
	w.mutex.Lock()
	defer w.mutex.Unlock()
	c := w.child
	w.child = nil
	if c == nil || !w.idle.Stop() {
		return nil
	}
	return c
}

// keep makes a child wait, in place of one that waits already. After Close it ends the child.
func (s *Sandbox) keep(c *child) {
	w := &s.waiting
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.closed {
		c.end()
		return
	}
	if w.child != nil && w.idle.Stop() {
		w.child.end()
	}
	w.child, w.idle = c, time.AfterFunc(idleFor, c.end)
}

// Close ends the child that waits, and has every other one end with its request.
func (s *Sandbox) Close() {
	s.waiting.mutex.Lock()
	s.waiting.closed = true
	s.waiting.mutex.Unlock()
	if c := s.take(); c != nil {
		c.end()
	}
}

// harmOf is the finding of a tree that could not be tried, and whether it is to be remembered.
func harmOf(err error) (found diag.Finding, lasting bool) {
	if harm, ok := errors.AsType[*harmError](err); ok {
		return harm.finding(), harm.Lasting
	}
	return diag.Errorf(diag.Range{}, "the site could not be evaluated", "%s", fmt.Sprintf("A process of its own is needed for that: %v.", err)), false
}

// loadRequest has everything that a load depends on, beside the files.
type loadRequest struct {
	Commit     model.Commit
	Tree       string
	Secrets    *model.Secrets
	Local      *model.LocalHost
	Vars       map[string]string
	Mode       string
	Unattended bool
	Now        time.Time
}
