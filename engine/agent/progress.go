package agent

import (
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// progress is the progress of a pass.
type progress struct {
	commit  string
	since   time.Time
	width   int
	steps   []stepProgress
	index   map[model.Address]int
	running []runningStep // in the order in which they were begun
	begun   bool          // a step was begun
	shown   *running      // what is published of it; nil: it changed since
}

// stepProgress is a step of the plan.
type stepProgress struct {
	address string
	usual   time.Duration // what such a step usually takes, 0 if not known
	over    bool          // begun, or skipped
	done    bool
	vmid    int  // of its guest; 0 for none
	removes bool // deletes a guest, and has not yet
}

// runningStep is a step that runs.
type runningStep struct {
	StepNow
	address model.Address
	until   time.Time // when its time is over
	inside  bool      // it works inside a guest, and may end between two parts of its work
}

// yields reports whether the pass ends earlier if nothing new is started. One that has begun nothing does not yield.
func (p *progress) yields() bool {
	return p.begun && (slices.ContainsFunc(p.steps, func(s stepProgress) bool { return !s.over }) ||
		slices.ContainsFunc(p.running, func(n runningStep) bool { return n.inside }))
}

// planned takes in the steps, and how long each usually takes.
func (p *progress) planned(steps []plan.Step, usual []time.Duration) {
	p.shown = nil
	p.index = make(map[model.Address]int, len(steps))
	p.steps = make([]stepProgress, len(steps))
	for i := range steps {
		p.index[steps[i].Address] = i
		p.steps[i] = stepProgress{address: steps[i].Address.String(), usual: usual[i], removes: removes(&steps[i]), vmid: steps[i].VMID}
	}
}

// removes reports whether a step deletes a guest.
func removes(s *plan.Step) bool {
	return (s.Action == plan.Delete || s.Action == plan.Replace) && s.Have != nil && s.Have.Guest != nil
}

// event takes in what happened to a step. It reports whether that deleted a guest;
// rolling back a creation does not count.
func (p *progress) event(e *apply.Event, now time.Time) (removed bool) {
	i, ok := p.index[e.Step.Address]
	if !ok {
		return false // of no step
	}
	p.shown = nil
	step := &p.steps[i]
	switch e.What {
	case apply.Started:
		p.begun = true
		n := runningStep{StepNow{Address: step.address, Action: e.Step.Action, Since: now.UTC()}, e.Step.Address, now.Add(e.Limit), e.Step.Inside != nil}
		if !step.over { // else it is rolled back, which has no measured time
			n.Usually = seconds(step.usual)
		}
		step.over = true
		p.running = append(p.running, n)
	case apply.Finished:
		step.over, step.done = true, e.Result.Status == apply.Done
		removed = step.removes && step.done
		step.removes = step.removes && !removed
		p.running = slices.DeleteFunc(p.running, func(n runningStep) bool { return n.address == e.Step.Address })
	default:
	}
	return removed
}

// check takes in that a step waits for a check, or no longer does.
func (p *progress) check(w *health.Progress) {
	p.shown = nil
	for i := range p.running {
		if p.running[i].address == w.Step() {
			p.running[i].Waits = w.String()
		}
	}
}

// due returns the time at which the pass must have made progress: when the first step that runs has
// outlived its time.
func (p *progress) due(now time.Time) time.Time {
	if len(p.running) == 0 {
		return now.Add(phaseTime + grace)
	}
	first := p.running[0].until
	for _, n := range p.running[1:] {
		if n.until.Before(first) {
			first = n.until
		}
	}
	return first.Add(grace)
}

// running is the published state of the current pass. It is immutable.
type running struct {
	Running
	width         int
	known         bool          // how long each of the steps usually takes
	work, longest time.Duration // of those that were not begun
}

// view makes what is published.
func (p *progress) view() *running {
	if p == nil {
		return nil
	}
	if p.shown != nil {
		return p.shown
	}
	r := &running{
		Running: Running{Commit: p.commit, Since: p.since, Steps: len(p.steps), Now: make([]StepNow, len(p.running)), Next: []string{}},
		width:   max(p.width, 1), known: true,
	}
	for i, n := range p.running {
		r.Now[i] = n.StepNow
	}
	for _, s := range p.steps {
		switch {
		case s.done:
			r.Done++
		case !s.over:
			r.Next = append(r.Next, s.address)
			r.add(s.usual, 0)
		}
	}
	p.shown = r
	return r
}

func (r *running) add(usual, took time.Duration) {
	r.known = r.known && usual > 0
	left := max(usual-took, 0)
	r.work, r.longest = r.work+left, max(r.longest, left)
}

// at adds an estimate of what is left: as long as the work of all steps takes side by
// side, but no less than the longest of them.
func (r *running) at(now time.Time) *Running {
	all := *r
	for _, n := range r.Now {
		all.add(time.Duration(n.Usually*float64(time.Second)), now.Sub(n.Since))
	}
	if all.known {
		all.Seconds = seconds(max(all.work/time.Duration(all.width), all.longest))
	}
	return &all.Running
}

// seconds rounds to milliseconds.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }
