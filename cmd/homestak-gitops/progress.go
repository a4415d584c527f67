package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// progress tells on stderr what steps do: a line when one begins and one when it
// ends. On a terminal only the ends get lines, and one live line below them shows
// what runs and for how long.
//
// Its goroutine owns everything here; notify sends events to it, and close waits
// until all were told.
type progress struct {
	ui     *ui
	events chan apply.Event
	told   chan struct{} // answers each event, so that what notify's caller prints next comes after it
	done   chan struct{}

	running []running
	left    int
	drawn   bool // the live line stands on the terminal
}

// running is a step at work.
type running struct {
	step  plan.Step
	since time.Time
}

// liveEvery is how often the live line is drawn; a person reads seconds.
const liveEvery = 200 * time.Millisecond

func (u *ui) watch() *progress {
	p := &progress{ui: u, events: make(chan apply.Event), told: make(chan struct{}), done: make(chan struct{})}
	go p.loop()
	return p
}

// notify takes an event; see apply.Options.Notify.
func (p *progress) notify(e apply.Event) {
	p.events <- e
	<-p.told
}

// close ends the progress after the last event.
func (p *progress) close() {
	close(p.events)
	<-p.done
}

func (p *progress) loop() {
	defer close(p.done)
	var tick <-chan time.Time // never, but on a terminal
	if p.ui.errTerminal {
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
			p.tell(e)
			p.told <- struct{}{}
		case <-tick:
			p.erase()
		}
		p.draw(time.Now())
	}
}

func (p *progress) tell(e apply.Event) {
	p.left = e.Left
	switch e.What {
	case apply.Started:
		p.running = append(p.running, running{e.Step, time.Now()})
		if !p.ui.errTerminal {
			p.ui.notef("%s: %s%s", e.Step.Address, doing(e.Step.Action), vmid(e.Step))
		}
	case apply.Finished:
		p.running = slices.DeleteFunc(p.running, func(r running) bool { return r.step.Address == e.Step.Address })
		p.ui.notef("%s", printable(ended(e)))
	case apply.Waiting:
		p.ui.notef("stopping: nothing new is started; waiting for %s\nCtrl-C again leaves now", p.names())
	case apply.Note:
		p.ui.notef("%s", printable(e.Text))
	}
}

// ended says how a step ended.
func ended(e apply.Event) string {
	s, res := e.Step, e.Result
	took := res.Duration.Round(100 * time.Millisecond).Seconds()
	switch res.Status {
	case apply.Done:
		return fmt.Sprintf("%s: %s%s in %.1f s", s.Address, did(s.Action), vmid(s), took)
	case apply.RolledBack:
		return fmt.Sprintf("%s: removed again%s", s.Address, vmid(s))
	case apply.Failed:
		return fmt.Sprintf("%s: failed after %.1f s: %v", s.Address, took, res.Err)
	default:
		return fmt.Sprintf("%s: skipped: %v", s.Address, res.Err)
	}
}

func doing(a plan.Action) string {
	switch a {
	case plan.Create:
		return "creating"
	case plan.Update:
		return "changing"
	case plan.Replace:
		return "replacing"
	case plan.Delete:
		return "destroying"
	case plan.Adopt:
		return "adopting"
	default:
		return string(a)
	}
}

func did(a plan.Action) string {
	switch a {
	case plan.Create:
		return "created"
	case plan.Update:
		return "changed"
	case plan.Replace:
		return "replaced"
	case plan.Delete:
		return "destroyed"
	case plan.Adopt:
		return "adopted"
	default:
		return string(a)
	}
}

func vmid(s plan.Step) string {
	if s.VMID == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d)", s.VMID)
}

func (p *progress) names() string {
	names := make([]string, 0, len(p.running))
	for _, r := range p.running {
		names = append(names, r.step.Address.String())
	}
	slices.SortFunc(names, model.CompareNames)
	return strings.Join(names, ", ")
}

// erase takes the live line away, so that other text can stand there.
func (p *progress) erase() {
	if p.drawn {
		fmt.Fprint(p.ui.stderr, "\r\x1b[K")
		p.drawn = false
	}
}

// draw writes the live line, cut to the width of the terminal.
func (p *progress) draw(now time.Time) {
	if !p.ui.errTerminal || len(p.running) == 0 {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d running, %d to come", len(p.running), p.left)
	for _, r := range p.running {
		fmt.Fprintf(&b, " · %s %s %d s", r.step.Address, doing(r.step.Action), int(now.Sub(r.since).Seconds()))
	}
	line := []rune(printable(b.String()))
	if w := p.ui.width; w > 1 && len(line) >= w {
		line = append(line[:w-2], '…')
	}
	fmt.Fprint(p.ui.stderr, string(line))
	p.drawn = true
}
