package notify

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// condition is what is wrong.
type condition string

// The conditions.
const (
	failed   condition = "failed"   // a pass, a node, a check, a host that does not report
	drifted  condition = "drift"    // what was changed on a host, reverted or not
	refused  condition = "refused"  // a commit
	expiring condition = "expiring" // a suspension, the certificate of the page
)

// incident is a condition that exists now. Condition, host and address alone identify it: its text may have times and counts,
// and changes.
type incident struct {
	Condition condition `json:"condition"`
	Host      string    `json:"host"`
	Address   string    `json:"address"`
	Text      string    `json:"text"`
	Cause     string    `json:"cause,omitempty"` // incidents with the same one are one message: a refused commit

	round string    // the pass, or the report, that it is from
	ended time.Time // when it ended while others of its group last; zero: it lasts. Not stored: a restart counts again
	since time.Time // when it fired, if other than its message says
}

// key identifies an incident.
func (i *incident) key() string { return string(i.Condition) + " " + i.Host + " " + i.Address }

// incidents are those of a tree at one moment.
type incidents struct {
	list    []incident
	unknown map[string]bool // hosts without a current report: incidents there may last
	shown   map[string]bool // hosts of the tree
	partial bool            // the tree may lack hosts: an agent started, and has no reports yet
}

// unseen reports whether incidents on a host may last although the tree has none.
func (n *incidents) unseen(host string) bool { return n.unknown[host] || n.partial && !n.shown[host] }

// How long before its expiry something is an incident.
const (
	suspensionAhead  = time.Hour
	certificateAhead = 14 * 24 * time.Hour
)

// mostIncidentText is the length of the text of an incident, and of an error of a receiver, in bytes.
const mostIncidentText = 300

// find returns the incidents of a tree.
func find(s Snapshot, now time.Time) *incidents {
	f := &finder{Snapshot: s, out: &incidents{unknown: map[string]bool{}, shown: map[string]bool{s.Status.Identity: true}}, troubled: map[string]bool{}, explained: map[string]bool{}}
	f.own(now)
	f.tree()
	f.expiring(now)
	return f.out
}

type finder struct {
	Snapshot
	out       *incidents
	troubled  map[string]bool // hosts that are not ready because of something below them
	explained map[string]bool // hosts with an incident of one of their nodes
}

func (f *finder) add(c condition, host, address, cause, round, text string, args ...any) {
	f.out.list = append(f.out.list, incident{Condition: c, Host: host, Address: address, Text: diag.ShortLine(f.Mask(fmt.Sprintf(text, args...)), mostIncidentText), Cause: cause, round: round})
}

func hostAddress(name string) string { return model.Address{Kind: model.HostKind, Name: name}.String() }

// own finds the incidents of the host of this agent as a whole.
func (f *finder) own(now time.Time) {
	s := f.Status
	me, at := s.Identity, hostAddress(s.Identity)
	if c := s.Repository.Condition; c == agent.NotAnswering || c == agent.BranchMissing {
		f.add(failed, me, "repository", "", strconv.FormatInt(now.Unix(), 10), "the repository does not answer: %s", diag.FirstLine(s.Repository.Error))
	}
	f.out.unknown[me], f.out.partial = s.Unseen(), s.Unseen()
	if s.Last == nil {
		return
	}
	round := f.round(wire.ReportNode{})
	if r := s.Refused; r != nil {
		f.add(refused, me, at, r.Commit, round, "commit %s: %s", model.Commit{ID: r.Commit}.Short(), first(r.Findings))
	}
	nodeFailed := false
	for _, n := range s.Nodes {
		nodeFailed = nodeFailed || n.Error != "" && n.Phase != string(wire.PhaseDestroy) && !strings.HasPrefix(n.Error, driftSaid)
	}
	switch l := s.Last; l.Outcome {
	case engine.Failed, engine.Partly:
		if !nodeFailed {
			f.add(failed, me, at, "", round, "the pass on commit %s: %s", model.Commit{ID: l.Commit}.Short(), diag.FirstLine(l.Error))
		}
	case engine.Refused, engine.Invalid:
		if s.Refused == nil {
			f.add(refused, me, at, "", round, "commit %s is in force, but %s", model.Commit{ID: l.Commit}.Short(), first(l.Findings))
		}
	default:
	}
	if d := s.RecentDrift(); d != nil {
		f.add(drifted, me, at, "", strconv.FormatInt(d.Ended.UnixNano(), 10), "it was changed by hand: %s", changes(d))
	}
}

// changes counts what a pass changed, or would have.
func changes(p *agent.PassStatus) string {
	n := p.Summary.Create + p.Summary.Update + p.Summary.Replace + p.Summary.Delete + p.Summary.Adopt + p.Summary.Forget
	text := diag.Count(n, "object")
	if p.Outcome == engine.Done {
		text += ", reverted"
	}
	return text + "; homestak-gitops history shows what"
}

// first is the first error of findings.
func first(l diag.List) string {
	for _, f := range l {
		if f.Severity == diag.Error {
			return f.Summary
		}
	}
	if len(l) > 0 {
		return l[0].Summary
	}
	return "its findings are in status"
}

// round identifies the pass or report that a line of the tree is from.
func (f *finder) round(n wire.ReportNode) string {
	at := n.Reported
	if at.IsZero() && f.Status.Last != nil {
		at = f.Status.Last.Ended
	}
	return strconv.FormatInt(at.UnixNano(), 10)
}

// driftSaid begins the error of a node whose drift is reported only; see plan.Make.
const driftSaid = "drift: "

// tree finds the incidents of nodes and of hosts below. The tree lists parents before children.
func (f *finder) tree() {
	for _, n := range slices.Backward(f.Tree.Nodes) {
		if n.Phase != wire.PhaseDestroy && n.Error != wire.NotReported && (!n.Ready && n.Error != "" || n.Failing != "") {
			f.explained[n.Parent] = true
		}
		if !n.Ready || n.Failing != "" || f.troubled[n.Name] {
			f.troubled[n.Parent] = true
		}
	}
	for _, n := range f.Tree.Nodes {
		if n.Type == model.PVEType {
			f.out.shown[n.Name] = true
			f.out.partial = f.out.partial || n.Unseen || n.Error == wire.NotReported
		}
		switch {
		case n.Phase == wire.PhaseDestroy:
		case f.out.unknown[n.Parent] && n.Parent != f.Status.Identity:
			f.out.unknown[n.Name] = n.Type == model.PVEType
		case n.Type == model.PVEType:
			f.host(n)
		default:
			f.node(n.Parent, n)
		}
	}
	if f.Tree.Cut > 0 { // incidents of lines that were cut may last
		f.out.partial = true
		for host := range f.out.shown {
			f.out.unknown[host] = f.out.unknown[host] || host != f.Status.Identity
		}
	}
}

// host finds the incidents of a host below. Those behind a host that does not report are unknown.
func (f *finder) host(n wire.ReportNode) {
	at := hostAddress(n.Name)
	f.out.unknown[n.Name] = n.Unseen
	switch {
	case n.Stale:
		f.out.unknown[n.Name] = true
		f.add(failed, n.Name, at, "", strconv.FormatInt(f.Tree.At.UnixNano(), 10), "%s", n.Error)
		return
	case n.Error == wire.NotReported || strings.HasPrefix(n.Error, wire.WaitingSaid):
		f.out.unknown[n.Name] = true // it is being created, or joins
		return
	case n.Refused != "":
		f.add(refused, n.Name, at, n.Refused, f.round(n), "commit %s: %s", model.Commit{ID: n.Refused}.Short(), n.Error)
	case n.Failed && !f.explained[n.Name],
		!n.Ready && !f.troubled[n.Name] && (n.Error != "" || !n.Unseen): // else its first pass has not ended
		f.add(failed, n.Name, at, "", f.round(n), "%s", cmp.Or(n.Error, "it is not ready"))
	}
	if n.Drifted {
		f.add(drifted, n.Name, at, "", f.round(n), "it was changed by hand; homestak-gitops history there shows what")
	}
}

// node finds the incidents of a node of a host.
func (f *finder) node(host string, n wire.ReportNode) {
	at := n.Type + "." + n.Name
	switch {
	case n.Drift > 0 && strings.HasPrefix(n.Error, driftSaid):
		f.add(drifted, host, at, "", f.round(n), "%s", strings.TrimPrefix(n.Error, driftSaid))
	case !n.Ready && n.Error != "":
		f.add(failed, host, at, "", f.round(n), "%s", n.Error)
		return
	}
	if n.Failing != "" {
		f.add(failed, host, at, "", f.round(n), "check %s", n.Failing)
	}
}

// expiring finds what expires soon.
func (f *finder) expiring(now time.Time) {
	me := f.Status.Identity
	round := strconv.FormatInt(now.Unix(), 10)
	for _, s := range f.Status.Suspended {
		if s.Until == nil || s.Until.Sub(now) > suspensionAhead {
			continue
		}
		what, at := "the suspension of everything", hostAddress(me)
		if s.Manifest != "" {
			what, at = "the suspension of manifest "+s.Manifest, "manifest."+s.Manifest
		}
		f.add(expiring, me, at, "", round, "%s ends at %s: %s", what, s.Until.UTC().Format(time.RFC3339), s.Reason)
	}
	if end := f.PageEnds; !end.IsZero() && end.Sub(now) < certificateAhead {
		f.add(expiring, me, "certificate", "", round, "the certificate of the page ends on %s", end.UTC().Format(time.DateOnly))
	}
}
