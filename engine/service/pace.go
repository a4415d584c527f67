package service

import (
	"time"

	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// limits are those of a server whose nodes report that often; zero: as usual.
func limits(pace time.Duration) specserve.Limits {
	if pace == 0 {
		return specserve.Limits{}
	}
	l := specserve.Usual()
	l.Reports = specserve.Rate{Every: pace / 2, Burst: l.Reports.Burst}
	return l
}

// childReported passes on what is new from below.
func (s *Service) childReported(before, after wire.Report, child bool) {
	if child {
		s.carrier.mutex.Lock()
		site := s.carrier.desired.Site
		s.carrier.mutex.Unlock()
		s.events.Reported(before, after, time.Now().UTC(), func(host string) bool {
			if site == nil {
				return false
			}
			through, declared := site.Toward(s.o.Config.Identity, host)
			return !declared || through == after.Identity
		})
	}
	wakeNotifiers(s)
	if s.above != nil {
		s.above.PassEnded()
	}
}
