package pvesim

// Death is how a worker process dies in the middle of its task, as happens on a host
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
func (w *world) doom(t *task) {
	w.count.begun[t.kind]++
	for _, d := range w.cfg.Deaths {
		if d.Type != t.kind || d.Nth != 0 && d.Nth != w.count.begun[t.kind] {
			continue
		}
		half := w.forkTime(t.kind) + (w.taskTime(t.kind)-w.forkTime(t.kind))/2
		w.at(t.start.Add(half), func() { // Behind its first half, which was planned before.
			switch {
			case !t.running():
			case d.Silent:
				t.lose()
			default:
				t.crash()
			}
		})
	}
}

// rotate forgets the oldest tasks that are over, beyond those that the node keeps: PVE
// rotates its index of tasks and removes the logs with it.
func (w *world) rotate() {
	over := 0
	for _, t := range w.tasks.all {
		over += boolInt(!t.running())
	}
	kept := w.tasks.all[:0]
	for _, t := range w.tasks.all {
		if !t.running() && over > w.cfg.KeepTasks {
			over--
			delete(w.tasks.byID, t.upid)
			continue
		}
		kept = append(kept, t)
	}
	clear(w.tasks.all[len(kept):])
	w.tasks.all = kept
}
