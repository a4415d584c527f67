package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Progress reports steps on stderr: one line when a step starts and one when it ends. On a terminal
// only the ends get lines, and one live line below them shows what runs, for how long, and how long
// similar steps took in this run. Before the steps, the live line shows the current phase, if that
// takes more than a second.
//
// Its goroutine owns everything here; notify sends events to it, and close waits
// until all were reported.
type Progress struct {
	term   Terminal
	events chan apply.Event
	answer chan struct{} // answers each event, so that what notify's caller prints next comes after it
	checks chan health.Progress
	phases chan string // what is waited for without a step; answer follows
	done   chan struct{}

	phase   string
	since   time.Time // the beginning of the phase
	running []running
	took    map[work]workTime
	left    int
	drawn   bool // the live line is on the terminal
}

// work groups steps of similar duration.
type work struct {
	kind   string
	action plan.Action
}

// workTime is the time that steps of a work have taken so far.
type workTime struct {
	steps int
	time  time.Duration
}

// running is a step at work.
type running struct {
	step  plan.Step
	since time.Time
	waits string // for which check, and what that saw last
}

const (
	liveEvery = 200 * time.Millisecond // how often the live line is drawn; a person reads seconds
	patience  = time.Second            // a phase that is shorter is not shown
)

// Watch starts a progress, which ends with Close.
func (t Terminal) Watch() *Progress {
	p := &Progress{
		term: t, events: make(chan apply.Event), checks: make(chan health.Progress), phases: make(chan string), answer: make(chan struct{}), done: make(chan struct{}),
		took: map[work]workTime{},
	}
	go p.loop()
	return p
}

// Waits shows a phase while no step runs; "" ends it: then the live line is removed, and other text
// can be printed.
func (p *Progress) Waits(phase string) {
	p.phases <- phase
	<-p.answer
}

// Observing is the text of the phase before a plan.
func Observing(host string) string { return "checking host " + host }

// Notify takes an event; see apply.Options.Notify.
func (p *Progress) Notify(e apply.Event) {
	p.events <- e
	<-p.answer
}

// Checking shows a check that has not passed yet; see health.Prober. The goroutines of steps call
// it.
func (p *Progress) Checking(w health.Progress) {
	select {
	case p.checks <- w:
	case <-p.done:
	}
}

// Close ends the progress after the last event.
func (p *Progress) Close() {
	close(p.events)
	<-p.done
}

func (p *Progress) loop() {
	defer close(p.done)
	var tick <-chan time.Time // never, but on a terminal
	if p.term.Live {
		ticker := time.NewTicker(liveEvery)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case e, ok := <-p.events:
			p.erase()
			if !ok {
				return
			}
			p.phase = ""
			p.report(e)
			p.answer <- struct{}{}
		case w := <-p.checks:
			p.erase()
			p.wait(w)
		case phase := <-p.phases:
			p.erase()
			p.phase, p.since = phase, time.Now()
			p.answer <- struct{}{}
		case <-tick:
			p.erase()
		}
		p.draw(time.Now())
	}
}

func (p *Progress) report(e apply.Event) {
	p.left = e.Left
	switch e.What {
	case apply.Started:
		p.running = append(p.running, running{step: e.Step, since: time.Now()})
		if !p.term.Live {
			p.term.notef("%s: %s%s", e.Step.Address, words(e.Step.Action).doing, vmid(e.Step))
		}
	case apply.Finished:
		if e.Result.Status == apply.Done {
			p.learn(e)
		}
		p.running = slices.DeleteFunc(p.running, func(r running) bool { return r.step.Address == e.Step.Address })
		p.term.notef("%s", diag.Clean(Ended(e)))
	case apply.Waiting:
		p.term.notef("stopping: nothing new is started; waiting for %s\nCtrl-C again exits now", p.names())
	case apply.Note:
		p.term.notef("%s", diag.Clean(e.Text))
	}
}

// wait shows a check that has not passed yet. Without a live line it is reported once for each
// check.
func (p *Progress) wait(w health.Progress) {
	for i := range p.running {
		if p.running[i].step.Address == w.Step() {
			p.running[i].waits = w.String()
		}
	}
	if !p.term.Live && w.Tries == 1 {
		p.term.notef("%s", diag.Clean(w.String()))
	}
}

// learn records the duration of a successful step.
func (p *Progress) learn(e apply.Event) {
	w := work{e.Step.Address.Kind, e.Step.Action}
	s := p.took[w]
	p.took[w] = workTime{s.steps + 1, s.time + e.Result.Duration}
}

// usually returns how long a step of this work usually takes; "" if none is done yet.
func (p *Progress) usually(s plan.Step) string {
	t := p.took[work{s.Address.Kind, s.Action}]
	if t.steps == 0 {
		return ""
	}
	return fmt.Sprintf(" (usually %d s)", int((t.time / time.Duration(t.steps)).Round(time.Second).Seconds()))
}

// Ended says how a step ended.
func Ended(e apply.Event) string {
	s, res := e.Step, e.Result
	took := res.Duration.Round(100 * time.Millisecond).Seconds()
	switch res.Status {
	case apply.Done:
		return fmt.Sprintf("%s: %s%s in %.1f s", s.Address, words(s.Action).did, vmid(s), took)
	case apply.RolledBack:
		return fmt.Sprintf("%s: removed again%s", s.Address, vmid(s))
	case apply.Failed:
		return fmt.Sprintf("%s: failed after %.1f s: %v", s.Address, took, res.Err)
	default:
		return fmt.Sprintf("%s: skipped: %v", s.Address, res.Err)
	}
}

// words name what a step does while it runs, and afterwards.
func words(a plan.Action) (is struct{ doing, did string }) {
	switch a {
	case plan.Create:
		is.doing, is.did = "creating", "created"
	case plan.Update:
		is.doing, is.did = "changing", "changed"
	case plan.Replace:
		is.doing, is.did = "replacing", "replaced"
	case plan.Delete:
		is.doing, is.did = "destroying", "destroyed"
	case plan.Adopt:
		is.doing, is.did = "adopting", "adopted"
	case plan.Forget:
		is.doing, is.did = "giving up", "given up"
	default:
		is.doing, is.did = string(a), string(a)
	}
	return is
}

func vmid(s plan.Step) string {
	if s.VMID == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d)", s.VMID)
}

func (p *Progress) names() string {
	names := make([]string, 0, len(p.running))
	for _, r := range p.running {
		names = append(names, r.step.Address.String())
	}
	slices.SortFunc(names, model.CompareNames)
	return strings.Join(names, ", ")
}

// erase removes the live line, so that other text can be printed.
func (p *Progress) erase() {
	if p.drawn {
		fmt.Fprint(p.term.W, "\r\x1b[K")
		p.drawn = false
	}
}

// draw writes the live line, cut to the width of the terminal.
func (p *Progress) draw(now time.Time) {
	if !p.term.Live {
		return
	}
	text := p.live(now)
	if text == "" {
		return
	}
	line := []rune(diag.Clean(text))
	if w := p.term.Width; w > 1 && len(line) >= w {
		line = append(line[:w-2], '…')
	}
	fmt.Fprint(p.term.W, string(line))
	p.drawn = true
}

// live is the text of the live line, "" for none.
func (p *Progress) live(now time.Time) string {
	if len(p.running) == 0 {
		// With -v log lines report it, and they would break the live line.
		if waited := now.Sub(p.since); p.phase != "" && waited >= patience && !p.term.Verbose {
			return fmt.Sprintf("%s, %d s", p.phase, int(waited.Seconds()))
		}
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d running, %d waiting", len(p.running), p.left)
	for _, r := range p.running {
		if r.waits != "" {
			fmt.Fprintf(&b, " · %s", r.waits)
			continue
		}
		fmt.Fprintf(&b, " · %s %s %d s%s", r.step.Address, words(r.step.Action).doing, int(now.Sub(r.since).Seconds()), p.usually(r.step))
	}
	return b.String()
}
