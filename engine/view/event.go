package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/event"
)

// Event is an event as a line, with the time of a zone.
func Event(e event.Event, zone *time.Location, p Paint) string {
	about := e.Address
	if about == "" && e.Commit != "" {
		about = fmt.Sprintf("%.8s", e.Commit)
	}
	kind := fmt.Sprintf("%-18s", e.Type)
	switch e.Type {
	case event.CommitRefused, event.NodeNotReady, event.RepositoryFailing, event.Missed:
		kind = p.as(bad, kind)
	case event.NodeReady:
		kind = p.as(good, kind)
	default: // nothing to worry about
	}
	line := fmt.Sprintf("%s  %s  %-14s  %s", e.At.In(zone).Format(time.DateTime), kind, about, diag.Clean(e.Text))
	return strings.TrimRight(line, " ") + "\n"
}
