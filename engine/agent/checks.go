package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

const (
	checksAtOnce = 8           // that run at the same time
	turnAfter    = 2           // runs in a row turn the state of a check
	publishAfter = time.Second // results are collected for so long
	mostCheck    = 300         // bytes of what a check saw
	mostFailing  = 1000        // checks that a restart remembers
)

// checks runs the checks of guests between passes. It learns from each pass which guests there are, and reports when the
// state of a check turns. It starts no pass, and no pass waits for it.
//
// The goroutine of run owns what is below mail. The loop never waits for it: functions for run go into mail.
type checks struct {
	prober    health.Prober
	turned    func(turnedChecks) // called by run
	published atomic.Pointer[[]CheckStatus]

	mu    sync.Mutex // of mail, for a moment only
	mail  []func()
	ready chan struct{} // of length 1: there is mail

	entries map[checkKey]*checkEntry
	kept    map[checkKey]ledger.FailingCheck // from before the start, as long as no pass said what there is
	busy    map[model.Address]bool           // guests that steps of the pass under way are about
	running int
	done    chan checkRun
	turns   []CheckStatus         // not reported yet
	failing []ledger.FailingCheck // that were reported
	stale   bool                  // what is published
}

type checkKey struct {
	address model.Address
	check   string
}

// checkEntry is one check of one guest.
type checkEntry struct {
	key    checkKey
	probe  *engine.Probe
	check  model.Check
	status CheckStatus
	vmid   int
	other  int       // runs in a row with a result that is not that of the state
	first  time.Time // of these
	next   time.Time
	run    int  // number of the last run; a result of an earlier one does not count
	runs   bool // it runs now
	asked  []*checkAsk
}

// checkRun is a run that has ended.
type checkRun struct {
	entry  *checkEntry
	run    int
	began  time.Time
	result health.Result
}

// checkAsk is a request to run checks now.
type checkAsk struct {
	at    time.Time
	rows  []engine.CheckRun
	left  int
	show  func()                 // publishes the results
	reply chan []engine.CheckRun // of length 1; closed if no pass has seen the guests yet
}

func newChecks(prober health.Prober, kept []ledger.FailingCheck, turned func(turnedChecks)) *checks {
	prober.Notify = nil
	c := &checks{
		prober: prober, turned: turned, ready: make(chan struct{}, 1), entries: map[checkKey]*checkEntry{},
		kept: map[checkKey]ledger.FailingCheck{}, busy: map[model.Address]bool{}, done: make(chan checkRun, checksAtOnce),
	}
	for _, f := range kept {
		if addr, err := model.ParseAddress(f.Address); err == nil {
			c.kept[checkKey{addr, f.Check}] = f
		}
	}
	c.failing = kept
	c.publish()
	return c
}

// list returns the state of all checks, sorted. It must not be changed.
func (c *checks) list() []CheckStatus { return *c.published.Load() }

// post lets run call a function.
func (c *checks) post(f func()) {
	c.mu.Lock()
	c.mail = append(c.mail, f)
	c.mu.Unlock()
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// run runs checks until ctx ends.
func (c *checks) run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var publish <-chan time.Time
	for {
		timer.Reset(c.start(ctx, &group))
		if c.stale && publish == nil {
			publish = time.After(publishAfter)
		}
		select {
		case <-timer.C:
		case <-c.ready:
			c.mu.Lock()
			mail := c.mail
			c.mail = nil
			c.mu.Unlock()
			for _, f := range mail {
				f()
			}
		case r := <-c.done:
			c.ended(r)
		case <-publish:
			publish, c.stale = nil, false
			c.publish()
			c.report()
		case <-ctx.Done():
			return
		}
	}
}

// farAway is a time that waits for something else.
const farAway = time.Hour

// start starts what is due, as far as there is room, and returns the time until more is.
func (c *checks) start(ctx context.Context, group *sync.WaitGroup) time.Duration {
	now := time.Now()
	for {
		var first *checkEntry
		for _, e := range c.entries {
			if c.runnable(e) && (first == nil || e.before(first)) {
				first = e
			}
		}
		switch {
		case first == nil || c.running == checksAtOnce:
			return farAway
		case first.next.After(now):
			return first.next.Sub(now)
		}
		c.begin(ctx, group, first, now)
	}
}

func (c *checks) runnable(e *checkEntry) bool {
	return !e.runs && e.status.Idle == "" && !c.busy[e.key.address] && (e.check.Period() > 0 || len(e.asked) > 0)
}

// before reports whether a check is to run before another: people wait for one that was asked for, also while many are late.
func (e *checkEntry) before(o *checkEntry) bool {
	if asked := len(e.asked) > 0; asked != (len(o.asked) > 0) {
		return asked
	}
	return e.next.Before(o.next)
}

// begin starts one run.
func (c *checks) begin(ctx context.Context, group *sync.WaitGroup, e *checkEntry, now time.Time) {
	if every := e.check.Period(); every > 0 {
		if e.next = e.next.Add(every); !e.next.After(now) {
			e.next = now.Add(every)
		}
	}
	e.run++
	e.runs = true
	c.running++
	run, probe := checkRun{entry: e, run: e.run, began: now}, e.probe
	check, prober := e.check, c.prober
	group.Go(func() {
		defer func() {
			if v := recover(); v != nil {
				run.result = health.Result{Detail: fmt.Sprintf("the program is at fault: panic in a check: %v", v)}
			}
			c.done <- run // it has room for all that run
		}()
		run.result = probe.Check(ctx, prober, check)
	})
}

// ended takes in the result of a run.
func (c *checks) ended(r checkRun) {
	e := r.entry
	c.running--
	e.runs = false
	if e.run != r.run || c.entries[e.key] != e {
		return // the guest is not the same any more
	}
	took := time.Since(r.began)
	if e.take(r.result, time.Now()) {
		c.turns = append(c.turns, e.status)
	}
	c.stale = true
	e.asked = slices.DeleteFunc(e.asked, func(a *checkAsk) bool {
		if r.began.Before(a.at) {
			e.next = time.Now() // once more: it began before it was asked for
			return false
		}
		a.add(e.probe.Ran(r.result, took))
		return true
	})
}

// take takes in a result, and reports whether that turned the state so that people should know.
func (e *checkEntry) take(r health.Result, now time.Time) bool {
	s := &e.status
	at := now.UTC()
	s.Ran, s.Error = &at, ""
	is := CheckPassing
	if !r.OK {
		is, s.Error = CheckFailing, diag.ShortLine(r.Detail, mostCheck)
	}
	if is == s.State {
		e.other = 0
		return false
	}
	if is == CheckPassing && s.State == CheckUnknown {
		s.State, s.Since, e.other = is, at, 0
		return false // as it should be
	}
	if e.other == 0 {
		e.first = at
	}
	if e.other++; e.other < turnAfter {
		return false
	}
	s.State, s.Since, e.other = is, e.first, 0
	return true
}

// add adds a row.
func (a *checkAsk) add(row engine.CheckRun) {
	a.rows = append(a.rows, row)
	a.end()
}

// end answers if nothing more is to come.
func (a *checkAsk) end() {
	if a.left--; a.left > 0 {
		return
	}
	a.show() // before the answer, for those who look then
	engine.SortRuns(a.rows)
	a.reply <- a.rows
}

// ask requests a run of the checks that match. The reply comes once all have ended. It is closed without one before a pass
// has seen which guests there are.
func (c *checks) ask(match func(*engine.Probe) bool) <-chan []engine.CheckRun {
	a := &checkAsk{show: c.publish, reply: make(chan []engine.CheckRun, 1)}
	c.post(func() {
		if c.kept != nil {
			close(a.reply)
			return
		}
		a.at, a.left = time.Now(), 1
		for _, e := range c.entries {
			if !match(e.probe) {
				continue
			}
			a.left++
			e.asked, e.next = append(e.asked, a), a.at
			c.skip(e)
		}
		a.end()
	})
	return a.reply
}

// skip answers those who asked for a check that is not run now.
func (c *checks) skip(e *checkEntry) {
	why := e.status.Idle
	switch {
	case c.busy[e.key.address]:
		why = "a step changes its guest"
	case why == "":
		return
	}
	for _, a := range e.asked {
		a.add(e.probe.Skipped(e.key.check, why))
	}
	e.asked = nil
}

// changing notes that steps are about to change guests: what is seen of them meanwhile does not count.
func (c *checks) changing(steps []plan.Step) {
	guests := map[model.Address]bool{}
	for i := range steps {
		addr := steps[i].Address
		if steps[i].Inside != nil && steps[i].Want != nil {
			addr = steps[i].Want.Inside
		}
		guests[addr] = true
	}
	c.post(func() {
		c.busy = guests
		for _, e := range c.entries {
			if guests[e.key.address] {
				e.run++
				c.skip(e)
			}
		}
	})
}

// passed takes in the guests that a pass left. Without any that it knows of, those before stay. While everything is suspended
// no check is run.
func (c *checks) passed(r *engine.Report, suspendedAll bool) {
	probes, only, suspended := r.Probes, r.Have.Only, map[string]bool{}
	if r.Want != nil {
		suspended = r.Want.Suspended
	}
	c.post(func() {
		c.busy, c.stale = map[model.Address]bool{}, true
		if probes == nil {
			for _, e := range c.entries {
				if suspendedAll {
					c.pause(e, "everything is suspended")
				}
			}
			return
		}
		seen := map[checkKey]bool{}
		for i := range probes {
			for _, check := range probes[i].Checks {
				e := c.entry(&probes[i], check)
				seen[e.key] = true
			}
		}
		for key, e := range c.entries {
			switch {
			case seen[key]:
			case suspended[e.probe.Manifest]:
				c.pause(e, "manifest "+e.probe.Manifest+" is suspended")
			case !only:
				c.pause(e, "it is not declared any more")
				delete(c.entries, key)
			}
		}
		if !only {
			c.kept = nil
		}
	})
}

// pause keeps a check from being run.
func (c *checks) pause(e *checkEntry, why string) {
	if e.status.Idle = why; why != "" {
		e.run++
		e.other = 0
		c.skip(e)
	}
}

// entry returns the entry of a check as a pass left its guest. For another guest than before it is a new one.
func (c *checks) entry(p *engine.Probe, check model.Check) *checkEntry {
	key := checkKey{p.Subject.Address, check.Name}
	e := c.entries[key]
	switch {
	case e != nil && (p.New || p.Idle == "" && e.vmid != 0 && e.vmid != p.Guest.VMID || e.check != check):
		c.pause(e, "its guest or the check was changed")
		e = nil
	case e != nil:
		p.Keep(e.probe)
	}
	if e == nil {
		now := time.Now()
		e = &checkEntry{key: key, next: now.Add(offset(key, check.Period())), status: CheckStatus{
			Address: key.address.String(), Check: key.check, State: CheckUnknown, Since: now.UTC(),
		}}
		if was, failed := c.kept[key]; failed && !p.New && (p.Idle != "" || was.VMID == p.Guest.VMID) {
			e.status.State, e.status.Since, e.status.Error = CheckFailing, was.Since, was.Error
		}
		c.entries[key] = e
	}
	e.probe, e.check = p, check
	if p.Idle == "" {
		e.vmid = p.Guest.VMID
	}
	if c.pause(e, p.Idle); p.Off && e.status.State != CheckUnknown { // as it may be, so it does not fail
		e.status.State, e.status.Since, e.status.Error = CheckUnknown, time.Now().UTC(), ""
	}
	return e
}

// offset spreads the checks over the time between two runs, in the same way after each start.
func offset(key checkKey, every time.Duration) time.Duration {
	if every <= 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(key.address.String() + " " + key.check))
	return time.Duration(h.Sum64() % uint64(every)) //nolint:gosec // it is positive
}

// publish makes the present state visible to readers.
func (c *checks) publish() {
	out := make([]CheckStatus, 0, len(c.entries))
	for _, e := range c.entries {
		out = append(out, e.status)
	}
	for key, f := range c.kept {
		if c.entries[key] == nil {
			out = append(out, CheckStatus{Address: f.Address, Check: f.Check, State: CheckFailing, Since: f.Since, Error: f.Error, Idle: "no pass has seen its guest yet"})
		}
	}
	sort.Slice(out, func(i, j int) bool {
		return cmp.Or(cmp.Compare(out[i].Address, out[j].Address), cmp.Compare(out[i].Check, out[j].Check)) < 0
	})
	c.published.Store(&out)
}

// report reports which checks fail, if those are others than before.
func (c *checks) report() {
	if c.kept != nil {
		return // not all are known yet
	}
	list := []ledger.FailingCheck{}
	for key, e := range c.entries {
		if s := e.status; s.State == CheckFailing {
			list = append(list, ledger.FailingCheck{Address: s.Address, VMID: e.vmid, Check: key.check, Since: s.Since, Error: s.Error})
		}
	}
	sort.Slice(list, func(i, j int) bool {
		return cmp.Or(cmp.Compare(list[i].Address, list[j].Address), cmp.Compare(list[i].Check, list[j].Check)) < 0
	})
	list = list[:min(len(list), mostFailing)]
	same := func(a, b ledger.FailingCheck) bool {
		return a.Address == b.Address && a.Check == b.Check && a.VMID == b.VMID && a.Since.Equal(b.Since)
	}
	if len(c.turns) == 0 && slices.EqualFunc(list, c.failing, same) {
		return
	}
	turns := c.turns
	c.turns, c.failing = nil, list
	c.turned(turnedChecks{turns, list})
}

// turnedChecks reports checks whose state turned, and all that fail.
type turnedChecks struct {
	turns   []CheckStatus
	failing []ledger.FailingCheck
}

// mostLogged is the number of checks that are logged one by one when they turn together.
const mostLogged = 20

func (t turnedChecks) serve(l *loop) {
	for _, s := range t.turns[:min(len(t.turns), mostLogged)] {
		if s.State == CheckFailing {
			l.o.Log.Warn("check fails", "address", s.Address, "check", s.Check, "saw", s.Error)
		} else {
			l.o.Log.Info("check passes again", "address", s.Address, "check", s.Check)
		}
	}
	if more := len(t.turns) - mostLogged; more > 0 {
		l.o.Log.Warn("more checks fail or pass again", "number", more)
	}
	l.memory.FailingChecks = t.failing
	relive(l, slices.Clone(l.status.Nodes))
	l.memory.persist()
	l.notify()
}

// ErrNotSeen says that no pass has seen the guests of the host since the agent started.
var ErrNotSeen = errors.New("no pass has seen the host since the agent started")

// VerifyNodes runs the checks of guests now, those that match, and waits for the results. The ledger keeps a receipt, with who asked
// for it. It returns ErrInterrupted if the agent ends first, or does not run, and ErrNotSeen before its first pass.
func (a *Agent) VerifyNodes(ctx context.Context, by string, match func(*engine.Probe) bool) (engine.Verified, error) {
	began := time.Now()
	out := engine.Verified{Host: a.Status().Identity}
	select {
	case rows, seen := <-a.checks.ask(match):
		if out.Checks = rows; !seen {
			return out, ErrNotSeen
		}
	case <-ctx.Done():
		return out, context.Cause(ctx)
	case <-a.ended:
		return out, engine.ErrInterrupted
	}
	if s := a.Status(); s.InForce != nil {
		out.Commit = s.InForce.ID
	}
	if len(out.Checks) > 0 {
		a.send(&verified{receiptOf(&out, by, began)})
	}
	return out, nil
}

// verified asks the loop to keep a receipt.
type verified struct{ receipt ledger.Receipt }

func (v *verified) serve(l *loop) {
	if _, err := l.o.Ledger.Write(v.receipt); err != nil {
		l.o.Log.Warn("the receipt was not saved", "error", err)
	}
}

// receiptOf returns the receipt of checks: a step for each.
func receiptOf(v *engine.Verified, by string, began time.Time) ledger.Receipt {
	out := ledger.Receipt{
		Verb: ledger.VerbVerify, By: by, Host: v.Host, Commit: v.Commit, Began: began.UTC(), Seconds: seconds(time.Since(began)),
		Outcome: string(engine.Done), Steps: make([]ledger.Step, len(v.Checks)), Findings: diag.List{},
	}
	for i, c := range v.Checks {
		out.Steps[i] = ledger.Step{Address: c.Address, Action: ledger.VerbVerify, Reason: "check " + c.Check, Status: string(c.Status), Began: out.Began, Seconds: c.Seconds}
		if c.Status == engine.RunFailed {
			out.Steps[i].Error, out.Outcome = diag.ShortLine(c.Detail, mostCheck), string(engine.Failed)
		}
	}
	return out
}
