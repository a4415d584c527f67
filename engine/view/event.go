package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// EventRow is an event as a statement: its type, and its text.
func EventRow(e control.Event) Row {
	r := Row{Label: string(e.Type), Text: diag.Clean(e.Text)}
	switch e.Type {
	case control.CommitRefused, control.NodeNotReady, control.RepositoryFailing, control.CheckFailing, control.HostNotReady, control.MissedEvents:
		r.Tone = bad
	case control.NodeReady, control.HostReady, control.CheckPassing:
		r.Tone = good
	default: // nothing to worry about
	}
	return r
}

// Event is an event as a line, with the time of a zone.
func (p Paint) Event(e control.Event, zone *time.Location) string {
	about := e.Address
	if about == "" && e.Commit != "" {
		about = fmt.Sprintf("%.8s", e.Commit)
	}
	r := EventRow(e)
	line := fmt.Sprintf("%s  %s  %-14s  %s", e.At.In(zone).Format(time.DateTime), p.as(r.Tone, fmt.Sprintf("%-18s", r.Label)), about, r.Text)
	return strings.TrimRight(line, " ") + "\n"
}
