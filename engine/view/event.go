package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// Event is an event as a line, with the time of a zone.
func Event(e control.Event, zone *time.Location, p Paint) string {
	about := e.Address
	if about == "" && e.Commit != "" {
		about = fmt.Sprintf("%.8s", e.Commit)
	}
	kind := fmt.Sprintf("%-18s", e.Type)
	switch e.Type {
	case control.CommitRefused, control.NodeNotReady, control.RepositoryFailing, control.CheckFailing, control.HostNotReady, control.MissedEvents:
		kind = p.as(bad, kind)
	case control.NodeReady, control.HostReady, control.CheckPassing:
		kind = p.as(good, kind)
	default: // nothing to worry about
	}
	line := fmt.Sprintf("%s  %s  %-14s  %s", e.At.In(zone).Format(time.DateTime), kind, about, diag.Clean(e.Text))
	return strings.TrimRight(line, " ") + "\n"
}
