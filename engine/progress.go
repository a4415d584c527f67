package engine

import (
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// How long the agent may be at one thing before it counts as stuck. What bounds
// itself (a question to the repository, a step) gets that and grace; what does not
// (reading a site, asking rules, observing a host) gets lookTime for each.
const (
	fetchTime = 30 * time.Minute // two downloads, of which each may take ten times as long as an answer
	lookTime  = 10 * time.Minute
	grace     = 2 * time.Minute // between the end of a step's time and its answer
)

// progress is how far a pass is. It stands on the desk.
type progress struct {
	commit string
	since  time.Time
	width  int
	steps  []stepProgress
	index  map[model.Address]int
	now    []running // in the order in which they were begun
	any    bool      // a step was begun
}

// stepProgress is a step of the plan.
type stepProgress struct {
	address string
	usual   time.Duration // what such a step usually takes, 0 if not known
	over    bool          // begun, or skipped
	done    bool
	removes bool // takes a guest away, and has not yet
}

// running is a step that runs.
type running struct {
	StepNow
	address model.Address
	until   time.Time // when its time is over
}

// planned takes in the steps, and how long each usually takes.
func (p *progress) planned(steps []plan.Step, usual []time.Duration) {
	p.index = make(map[model.Address]int, len(steps))
	p.steps = make([]stepProgress, len(steps))
	for i := range steps {
		p.index[steps[i].Address] = i
		p.steps[i] = stepProgress{address: steps[i].Address.String(), usual: usual[i], removes: removes(&steps[i])}
	}
}

func (p *progress) begun() bool { return p.any }

// event takes in what happened to a step that may take as long as limit. It reports
// whether that took a guest away; rolling back a creation does not.
func (p *progress) event(e apply.Event, now time.Time, limit time.Duration) (removed bool) {
	i, ok := p.index[e.Step.Address]
	if !ok {
		return false // of no step
	}
	step := &p.steps[i]
	switch e.What {
	case apply.Started:
		p.any = true
		n := running{StepNow{Address: step.address, Action: e.Step.Action, Since: now.UTC()}, e.Step.Address, now.Add(limit)}
		if !step.over { // else it is rolled back, which nobody has measured
			n.Usually = seconds(step.usual)
		}
		step.over = true
		p.now = append(p.now, n)
	case apply.Finished:
		step.over, step.done = true, e.Result.Status == apply.Done
		removed = step.removes && step.done
		step.removes = step.removes && !removed
		p.now = slices.DeleteFunc(p.now, func(n running) bool { return n.address == e.Step.Address })
	default:
	}
	return removed
}

// due is when the pass must have come on: when the first step that runs has
// outlived its time.
func (p *progress) due(now time.Time) time.Time {
	if len(p.now) == 0 {
		return now.Add(lookTime + grace)
	}
	first := p.now[0].until
	for _, n := range p.now[1:] {
		if n.until.Before(first) {
			first = n.until
		}
	}
	return first.Add(grace)
}

// status tells it, with an estimate of what is left: as long as the work of all
// steps takes side by side, but no less than the longest of them.
func (p *progress) status(now time.Time) *Running {
	out := &Running{Commit: p.commit, Since: p.since, Steps: len(p.steps), Now: make([]StepNow, len(p.now)), Next: []string{}}
	var work, longest time.Duration
	known := true
	add := func(usual, spent time.Duration) {
		known = known && usual > 0
		left := max(usual-spent, 0)
		work, longest = work+left, max(longest, left)
	}
	for i, n := range p.now {
		out.Now[i] = n.StepNow
		add(time.Duration(n.Usually*float64(time.Second)), now.Sub(n.Since))
	}
	for _, s := range p.steps {
		switch {
		case s.done:
			out.Done++
		case !s.over:
			out.Next = append(out.Next, s.address)
			add(s.usual, 0)
		}
	}
	if known {
		out.Seconds = seconds(max(work/time.Duration(max(p.width, 1)), longest))
	}
	return out
}

// enter says what the agent does now, and how long it may: 0 is as long as others like.
func (a *Agent) enter(s State, limit time.Duration) {
	a.edit(func(d *desk) {
		d.status.State, d.due = s, time.Time{}
		if limit > 0 {
			d.due = time.Now().Add(limit + grace)
		}
	})
	a.tell()
}

// moved says that the agent has begun something new that nothing else bounds. What a
// step begins is bounded by the time of the step.
func (a *Agent) moved() {
	a.edit(func(d *desk) {
		d.due = time.Now().Add(lookTime + grace)
		if d.running != nil && len(d.running.now) > 0 {
			d.due = d.running.due(time.Now())
		}
	})
}

func (a *Agent) tell() {
	if a.o.Tell != nil {
		a.o.Tell(a.Status())
	}
}

// Stuck says since when the agent should have come on and did not; zero while all is
// well. A watchdog is fed as long as it is zero. The agent should have come on:
//
//   - while it waits for its next look or check, when that begins;
//   - 30 minutes after it asked the repository (which bounds itself);
//   - 10 minutes after it began to load a site, to open or observe a host, to ask the
//     rules, to write down a pass, or to become the one writer without being told
//     who is in the way;
//   - when the first of the steps that run has outlived the time that its manifest
//     gives it, or 10 minutes after the last one ended;
//
// each with two minutes of grace. While somebody else is the one writer it is
// never stuck, nor before Run or after it.
func (a *Agent) Stuck() (since time.Time) {
	a.edit(func(d *desk) {
		if !d.due.IsZero() && time.Now().After(d.due) {
			since = d.due
		}
	})
	return since
}
