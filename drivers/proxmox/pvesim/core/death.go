package core

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

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
