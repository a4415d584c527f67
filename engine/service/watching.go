package service

import (
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// observed keeps what an observation of the host saw, for those who ask and for the watcher.
func (s *Service) observed(have model.Observed) {
	s.facts.Observed(have)
	s.carrier.observed(have)
	if s.watch == nil || have.NothingSeen() {
		return
	}
	managed := map[int]bool{}
	for _, r := range have.State {
		if r.Guest != nil {
			managed[r.Guest.VMID] = true
		}
	}
	var ignored []int
	for id := range have.Taken {
		if !managed[id] {
			ignored = append(ignored, id)
		}
	}
	s.watch.Ignore(ignored)
}

// changed requests a check of changed guests. It also sees the agent's own changes; the agent handles that.
func (s *Service) changed(guests []int) {
	who := make([]string, len(guests))
	for i, id := range guests {
		who[i] = strconv.Itoa(id)
	}
	s.o.Log.Info("guests changed, so the host is checked", "guests", strings.Join(who, " "))
	s.Agent.HostChanged(guests...)
}
