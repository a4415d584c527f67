package notify

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// The states of a commit on a host.
const (
	statePending = "pending"
	stateSuccess = "success" // the host converged to it; later failures do not change it
	stateFailure = "failure"
)

// statusContext is the context of the status for all hosts. That of one host ends with /NAME.
const statusContext = "homestak"

// mostStatuses is the number of hosts up to which each has a status of its own. Forges limit statuses and requests.
const mostStatuses = 20

// hostState is the state of the commit in force on a host.
type hostState struct{ host, state, text string }

// commits queues the statuses that changed, of the commit in force and of a refused one.
func (s *notifierState) commits(rule *model.Notify, seen Snapshot, now time.Time) {
	st := seen.Status
	if st.Last == nil {
		return // no pass has ended since the start
	}
	var commits []string
	set := func(commit string, h hostState) {
		key := commit + " " + h.host
		if was := s.Set[key]; was == h.state || was == stateSuccess {
			return
		}
		if s.Set == nil {
			s.Set = map[string]string{}
		}
		s.Set[key] = h.state
		s.Queue = slices.DeleteFunc(s.Queue, func(q message) bool { return q.Commit == commit && q.Context == h.host }) // it replaces one that is not sent yet
		s.queue(message{ID: newID(), Kind: kindStatus, At: now.UTC(), Commit: commit, Context: h.host, State: h.state, Text: diag.Line(seen.Mask(h.text))})
	}
	if r := st.Refused; r != nil && rule.Covers(st.Identity) {
		commits = append(commits, r.Commit)
		text := "refused: " + first(r.Findings)
		set(r.Commit, hostState{statusContext + "/" + st.Identity, stateFailure, text})
		set(r.Commit, hostState{statusContext, stateFailure, text})
	}
	if c := st.InForce; c != nil && (st.Refused == nil || st.Refused.Commit != c.ID) {
		commits = append(commits, c.ID)
		hosts := slices.DeleteFunc(hostStates(seen, c.ID), func(h hostState) bool { return !rule.Covers(h.host) })
		if len(hosts) <= mostStatuses {
			for _, h := range hosts {
				set(c.ID, hostState{statusContext + "/" + h.host, h.state, h.text})
			}
		}
		if len(hosts) > 0 {
			set(c.ID, folded(hosts, seen.Tree.Cut))
		}
	}
	for key := range s.Set {
		if commit, _, _ := strings.Cut(key, " "); !slices.Contains(commits, commit) {
			delete(s.Set, key)
		}
	}
}

// hostStates are the states of a commit on the host of this agent, and on those below.
func hostStates(seen Snapshot, commit string) []hostState {
	st := seen.Status
	own := hostState{st.Identity, statePending, "converging"}
	switch {
	case st.Converged != nil && st.Converged.ID == commit:
		own.state, own.text = stateSuccess, "applied"
	case st.Last.Commit == commit && slices.Contains([]engine.Outcome{engine.Failed, engine.Partly, engine.Refused, engine.Invalid}, st.Last.Outcome):
		own.state, own.text = stateFailure, diag.FirstLine(st.Last.Error)
	}
	out := []hostState{own}
	for _, n := range seen.Tree.Nodes {
		if n.Type != model.PVEType || n.Phase == wire.PhaseDestroy || strings.HasPrefix(n.Error, wire.WaitingSaid) {
			continue
		}
		h := hostState{n.Name, statePending, "has not applied it yet"}
		switch {
		case n.Refused == commit:
			h.state, h.text = stateFailure, "refused: "+diag.FirstLine(n.Error)
		case n.Commit != commit || n.Stale:
		case n.Ready:
			h.state, h.text = stateSuccess, "applied"
		case n.Error != "":
			h.state, h.text = stateFailure, diag.FirstLine(n.Error)
		}
		out = append(out, h)
	}
	return out
}

// folded is the state of a commit on all hosts: failure if it failed on any, success if all applied it, else pending. Cut is the
// number of lines that the tree had no room for.
func folded(hosts []hostState, cut int) hostState {
	applied, broken := 0, []hostState{}
	for _, h := range hosts {
		switch h.state {
		case stateSuccess:
			applied++
		case stateFailure:
			broken = append(broken, h)
		}
	}
	out := hostState{statusContext, statePending, fmt.Sprintf("applied on %d of %s", applied, diag.Count(len(hosts), "host"))}
	switch {
	case len(broken) > 0:
		out.state, out.text = stateFailure, fmt.Sprintf("%s: %s", broken[0].host, broken[0].text)
		if len(broken) > 1 {
			out.text = fmt.Sprintf("failed on %d of %s, first on %s", len(broken), diag.Count(len(hosts), "host"), out.text)
		}
	case applied == len(hosts) && cut == 0:
		out.state = stateSuccess
	}
	return out
}
