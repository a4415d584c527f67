package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
)

// The phases of a node.
const (
	phaseCreate  = "create"  // wanted, and not there yet
	phaseRun     = "run"     // there
	phaseDestroy = "destroy" // there, and to go
)

// NodeStatus says how every node stands after the pass, in the order of addresses;
// nil for a pass that did not see the host. Before is what was reported last: a node
// that is as ready as then keeps its Since.
func (r *Report) NodeStatus(before []NodeStatus, now time.Time) []NodeStatus {
	if r.Plan == nil || r.Have.NothingSeen() {
		return nil
	}
	since := make(map[string]*NodeStatus, len(before))
	for i := range before {
		since[before[i].Address] = &before[i]
	}
	out := make([]NodeStatus, 0, len(r.Want.State))
	for _, f := range r.facts(r.everyNode()) {
		n, there := f.status()
		if !there {
			continue
		}
		n.Since = now
		if old := since[n.Address]; old != nil && old.Ready == n.Ready {
			n.Since = old.Since
		}
		out = append(out, n)
	}
	if r.Have.Only {
		return others(before, out)
	}
	return out
}

// others adds to some nodes those that a pass was not about, as they were before.
func others(before, some []NodeStatus) []NodeStatus {
	out := slices.Clone(before)
	for _, n := range some {
		if i := slices.IndexFunc(out, func(old NodeStatus) bool { return old.Address == n.Address }); i >= 0 {
			out[i] = n
		}
	}
	return out
}

// everyNode lists what is wanted or there and comes from a node.
func (r *Report) everyNode() []model.Address {
	out := make([]model.Address, 0, len(r.Want.State))
	for addr, res := range r.Want.State {
		if res.Node != "" && res.Inside == (model.Address{}) {
			out = append(out, addr)
		}
	}
	for addr, res := range r.Have.State {
		if res.Node != "" && r.Want.State[addr] == nil {
			out = append(out, addr)
		}
	}
	slices.SortFunc(out, model.Address.Compare)
	return out
}

// status is how one node is after the pass; false if it is gone and nobody wants it.
func (f *nodeFacts) status() (NodeStatus, bool) {
	want, have, s, res := f.want, f.have, f.step, f.result
	if res != nil && (res.Status == apply.Done || res.Status == apply.RolledBack) {
		if have = s.Want; res.Status == apply.RolledBack {
			have = nil
		}
		s = nil
	}
	n := NodeStatus{Address: f.addr.String(), Phase: phaseRun}
	n.Node, n.VMID = f.identity(want, have)
	if s != nil && s.VMID != 0 {
		n.VMID = s.VMID
	}
	switch {
	case want == nil && have == nil:
		return n, false
	case want == nil && f.report.Want.Suspended[have.Manifest]:
		n.Error = "manifest " + have.Manifest + " is suspended: left as it is"
	case want == nil:
		n.Phase = phaseDestroy
	case have == nil:
		n.Phase = phaseCreate
	}
	if have != nil && have.Guest != nil {
		n.PVENode = have.Guest.Node
	}
	withheld := ""
	if s == nil && n.Error == "" {
		withheld = f.withheld()
	}
	switch {
	case s != nil && n.Phase == phaseRun:
		n.Drift = len(s.Changes)
	case withheld != "" && n.Phase == phaseRun:
		n.Drift = 1 // that it differs is all that is left of a step that was withheld
	}
	switch {
	case res != nil && res.Err != nil:
		n.Error = res.Err.Error()
	case withheld != "":
		n.Error = withheld
	case f.checks.Err != nil:
		n.Error = f.checks.Err.Error()
	case n.Error == "" && f.stillFailing():
		n.Error = "its checks did not hold when they were tried last"
	}
	n.Error = cmp.Or(n.Error, f.postponed(n.Phase))
	for _, in := range f.inside {
		n.setInside(in)
	}
	n.Ready = s == nil && n.Error == "" && n.Drift == 0 && n.Phase == phaseRun
	return n, true
}

// postponed is why a child is kept that is to go or to be made again, and what to do about that; "" if none is.
func (f *nodeFacts) postponed(phase string) string {
	for _, d := range f.report.Plan.Deferred {
		if d.Address == f.addr.String() && (d.Postponed || phase == phaseDestroy) {
			return d.Why
		}
	}
	return ""
}

// setInside adds what is not as wanted inside of a node that is there.
func (n *NodeStatus) setInside(f *nodeFacts) {
	if n.Phase != phaseRun {
		return
	}
	done := f.result != nil && f.result.Status == apply.Done
	why := ""
	switch {
	case f.result != nil && f.result.Err != nil:
		why = f.result.Err.Error()
	case f.step == nil:
		why = f.withheld()
	}
	switch {
	case f.step != nil && !done:
		n.Drift += len(f.step.Changes)
	case why != "":
		n.Drift++
	}
	n.Error = cmp.Or(n.Error, why)
}

// stillFailing reports whether the checks of a node failed in an earlier pass, and were not
// tried in this one.
func (f *nodeFacts) stillFailing() bool {
	r := f.report
	return f.checks.Results == nil && slices.Contains(r.pass.Failing, f.addr) && !slices.Contains(r.Unchecked, f.addr)
}

// NodeStatus is a node of the subtree.
type NodeStatus struct {
	Address string    `json:"address"`
	Node    string    `json:"name"`
	VMID    int       `json:"vmid"`
	PVENode string    `json:"place"` // PVE node that it is on, "" where it is not
	Phase   string    `json:"phase"` // create, run, destroy
	Ready   bool      `json:"ready"` // is as the commit in force says
	Drift   int       `json:"drift"` // attributes that differ
	Since   time.Time `json:"since"` // when ready last changed
	Error   string    `json:"error"`
}
