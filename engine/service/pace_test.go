package service

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A child makes events about itself and what is below it, and none about its siblings or its parent.
func TestEventsOfAChildAreItsOwn(t *testing.T) {
	hosts := map[string]*model.Host{}
	for name, parent := range map[string]string{"hub": "", "branch-7": "hub", "branch-8": "hub", "shop": "branch-7"} {
		hosts[name] = &model.Host{Name: name, Parent: parent}
	}
	s := &Service{o: Options{Config: &Config{}}, events: control.NewEventLog(time.Now()), carrier: &carrier{}}
	s.o.Config.Identity = "hub"
	s.carrier.desired.Site = &model.Site{Hosts: hosts}
	report := wire.Report{Identity: "branch-7", Ready: true}
	for _, name := range []string{"shop", "branch-8", "hub", "unknown"} {
		report.Nodes = append(report.Nodes, wire.ReportNode{Name: name, Type: model.PVEType, Parent: "branch-7"})
	}
	s.childReported(wire.Report{}, report, true)
	var about []string
	all, _, _ := s.events.After("")
	for _, e := range all {
		about = append(about, e.Address)
	}
	require.Equal(t, []string{"host.branch-7", "host.shop", "host.unknown"}, about)
}
