package apply

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// manifest is the state of a deployment in this run. The one without a name is that of the objects
// beside the manifests; it never fails as a whole.
type manifest struct {
	name     string
	running  int
	aside    int   // of these, those whose end matters to no other; see YieldForever
	failed   *task // the step that made it stop; nil as long as it goes on
	rollback bool  // is to be rolled back as soon as nothing of it runs
}

// take records the answer of a worker.
func (r *run) take(a answer) {
	t, m := a.task, r.manifests[a.task.step.Manifest]
	t.state = over
	r.running--
	m.running--
	if t.yielded {
		r.resume(t)
	}
	t.tasks = a.tasks
	switch {
	case t.undo:
		r.undone(t, a.err)
	case errors.As(a.err, new(*NotYetError)):
		t.started = time.Time{}
		r.end(t, Skipped, a.err)
		for _, n := range t.then {
			r.skip(n, fmt.Errorf("it depends on %s, which was not done", t.step.Address))
		}
	case a.err != nil:
		r.fail(t, a.err)
	default:
		r.end(t, Done, nil)
		for _, n := range t.then {
			r.free(n)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.manifests)) {
		if f := r.manifests[name]; f.rollback && f.running == 0 {
			f.rollback = false
			r.rollBack(f)
		}
	}
}

// free counts a predecessor off.
func (r *run) free(t *task) {
	t.waits--
	if t.waits == 0 && t.state == waiting {
		r.ready = append(r.ready, t)
	}
}

// end writes the result of a step and reports it.
func (r *run) end(t *task, s Status, err error) {
	res := Result{Step: t.step, Status: s, Err: err, Started: t.started, Tasks: t.tasks}
	if !t.started.IsZero() {
		res.Duration = time.Since(t.started)
	}
	r.results[t.index] = res
	r.notify(Event{What: Finished, Step: t.step, Result: res})
}

// skip records a step that is not started, and all that depend on it.
func (r *run) skip(t *task, why error) {
	if t.state != waiting {
		return
	}
	t.state = over
	if t.undo {
		r.notify(Event{What: Note, Text: fmt.Sprintf("%s stays: %v", t.step.Address, why)})
	} else {
		r.left--
		r.end(t, Skipped, why)
	}
	for _, n := range t.then {
		r.skip(n, fmt.Errorf("it depends on %s, which was not done", t.step.Address))
	}
}

// fail records a failure, and applies the on_error policy of the manifest. The failure of an object
// outside the manifests counts for each manifest that depends on it.
func (r *run) fail(t *task, err error) {
	r.end(t, Failed, err)
	hit := map[string]bool{t.step.Manifest: true}
	if t.step.Manifest == "" {
		t.dependants(hit)
	}
	for _, n := range t.then {
		r.skip(n, fmt.Errorf("it depends on %s, which failed", t.step.Address))
	}
	delete(hit, "")
	if r.closed != nil {
		return // nothing starts any more, and the removal may be unwanted now
	}
	for _, name := range slices.Sorted(maps.Keys(hit)) {
		m := r.manifests[name]
		policy := r.policy(name)
		if policy == onErrorContinue || m.failed != nil {
			continue
		}
		m.failed, m.rollback = t, policy == onErrorRollback
		for _, n := range r.tasks {
			if n.step.Manifest == name {
				r.skip(n, fmt.Errorf("manifest %s stopped when %s failed", name, t.step.Address))
			}
		}
	}
}

// dependants adds the manifests of all that depend on a task, directly or not.
func (t *task) dependants(hit map[string]bool) {
	seen := map[*task]bool{}
	todo := slices.Clone(t.then)
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if !seen[n] {
			seen[n] = true
			hit[n.step.Manifest] = true
			todo = append(todo, n.then...)
		}
	}
}

// rollBack starts the removal of what this run created for a manifest, children first; the failed step may have
// left something incomplete, so it is removed as well. Dependencies of other manifests stay.
func (r *run) rollBack(m *manifest) {
	if r.closed != nil {
		r.notify(Event{What: Note, Text: fmt.Sprintf("manifest %s is not rolled back: %v", m.name, r.closed)})
		return
	}
	made := map[*task]bool{}
	for _, t := range r.tasks {
		if !t.undo && t.step.Manifest == m.name && t.step.Action == plan.Create && t.state == over && r.results[t.index].Status != Skipped {
			made[t] = true
		}
	}
	r.keep(m, made)
	undo := make(map[*task]*task, len(made))
	var undos []*task
	for _, t := range slices.Backward(r.tasks) {
		if !made[t] {
			continue
		}
		u := &task{step: undoing(t.step, m.failed.step.Address), index: t.index, undo: true}
		undo[t], undos = u, append(undos, u)
	}
	for _, t := range r.tasks {
		for _, n := range t.then {
			switch {
			case !made[t]:
			case made[n]:
				undo[n].then = append(undo[n].then, undo[t])
				undo[t].waits++
			default:
				r.skip(n, fmt.Errorf("it depends on %s, which is rolled back", t.step.Address))
			}
		}
	}
	r.notify(Event{What: Note, Text: fmt.Sprintf("%s failed: rolling back manifest %s, %d created by this run to remove", m.failed.step.Address, m.name, len(undos))})
	for _, u := range undos {
		r.tasks = append(r.tasks, u)
		if u.waits == 0 {
			r.ready = append(r.ready, u)
		}
	}
}

// keep excludes from the removal everything that something else depends on.
func (r *run) keep(m *manifest, made map[*task]bool) {
	todo := slices.Clone(r.tasks)
	for len(todo) > 0 {
		user := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		lives := user.state == inWork || user.state == over && r.results[user.index].Status == Done
		if user.undo || !lives || made[user] {
			continue
		}
		for _, t := range user.before {
			if made[t] {
				delete(made, t)
				todo = append(todo, t)
				r.notify(Event{What: Note, Text: fmt.Sprintf("%s of manifest %s stays: %s lives on it", t.step.Address, m.name, user.step.Address)})
			}
		}
	}
}

// undoing is the step that removes what another created.
func undoing(s plan.Step, failed model.Address) plan.Step {
	return plan.Step{
		Address: s.Address, Node: s.Node, Manifest: s.Manifest, VMID: s.VMID, At: s.At, Have: s.Want,
		Action: plan.Delete, Class: model.ClassNone, Reason: fmt.Sprintf("%s failed, and manifest %s is rolled back", failed, s.Manifest),
		Changes: []plan.Change{}, After: []model.Address{},
	}
}

// undone records the answer to a removal. A failed step stays failed, even if it left nothing
// behind. The event reports the removal itself.
func (r *run) undone(t *task, err error) {
	res := &r.results[t.index]
	res.Tasks = slices.Concat(res.Tasks, t.tasks)
	event := Result{Step: t.step, Status: RolledBack, Started: t.started, Duration: time.Since(t.started), Tasks: t.tasks}
	switch {
	case err != nil:
		err = fmt.Errorf("roll back %s: %w", t.step.Address, err)
		res.Status, res.Err = Failed, errors.Join(res.Err, err)
		event.Status, event.Err = Failed, err
	case res.Status == Done:
		res.Status = RolledBack
	}
	r.notify(Event{What: Finished, Step: t.step, Result: event})
	for _, n := range t.then {
		if err != nil {
			r.skip(n, fmt.Errorf("%s could not be removed", t.step.Address))
			continue
		}
		r.free(n)
	}
}
