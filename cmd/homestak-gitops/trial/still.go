package trial

import (
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/service"
)

const defaultPatience = 45 * time.Second

// stillness counts how long a tree has not changed. It counts the ticks that came, not the time between them: a process that
// gets no processor waits for that, not for its tree.
type stillness struct {
	limit     time.Duration
	idle, all time.Duration // since the last change: while no agent worked, and in all
}

// tick reports whether the tree counts as stuck: nothing changed within the limit while no agent worked, or within
// twelve times the limit while some did.
func (s *stillness) tick(changed, working bool) bool {
	if changed {
		s.idle, s.all = 0, 0
		return false
	}
	s.all += every
	if !working {
		s.idle += every
	}
	return s.idle > s.limit || s.all > 12*s.limit
}

// working reports whether an agent of the tree makes a pass, and does not only wait in it.
func (g *growing) working() bool {
	return slices.ContainsFunc(g.agents(), func(s *service.Service) bool {
		running := s.Status().Running
		return running != nil && (len(running.Now) == 0 || slices.ContainsFunc(running.Now, func(n agent.StepNow) bool { return n.Waits == "" }))
	})
}
