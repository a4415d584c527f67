package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// The phases of a node.
const (
	phaseCreate  = "create"  // declared, and not on the host yet
	phaseRun     = "run"     // declared, and on the host
	phaseDestroy = "destroy" // on the host, and not declared
	phasePlanned = "planned" // declared with planned = true
)

// NodeStatus returns the status of all nodes after the pass, sorted by address. It is nil if
// the pass could not observe the host. Before is the last status: a node whose Ready has not
// changed keeps its Since.
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
		n, exists := f.status()
		if !exists {
			continue
		}
		n.Since = now
		if old := since[n.Address]; old != nil {
			if old.Ready == n.Ready {
				n.Since = old.Since
			}
			n.IP = cmp.Or(n.IP, old.IP)
		}
		out = append(out, n)
	}
	if r.Have.Only {
		return update(before, out)
	}
	for _, p := range r.Plan.Planned {
		if r.Have.State[p.Address] == nil {
			out = append(out, NodeStatus{Address: p.Address.String(), Node: p.Node, VMID: p.VMID, IP: p.IP, Phase: phasePlanned, Life: plan.Planned, Ready: true, Since: now})
		}
	}
	return out
}

// update returns the status before with the new status of some nodes.
func update(before, some []NodeStatus) []NodeStatus {
	out := slices.Clone(before)
	for _, n := range some {
		if i := slices.IndexFunc(out, func(old NodeStatus) bool { return old.Address == n.Address }); i >= 0 {
			n.Backup = out[i].Backup // which is not observed then
			out[i] = n
		}
	}
	return out
}

// everyNode returns the addresses of all nodes that are declared or on the host.
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

// status returns the status of one node after the pass, and false if it is neither declared nor on the host.
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
		n.Error = "manifest " + have.Manifest + " is suspended: not removed"
	case want == nil && f.report.Want.Declared[f.addr]: // planned; a finding says what to do
	case want == nil:
		n.Phase = phaseDestroy
	case have == nil:
		n.Phase = phaseCreate
	}
	if have != nil && have.Guest != nil {
		n.PVENode = have.Guest.Node
		n.Backup = have.Guest.Backup
	}
	withheld := ""
	if s == nil && n.Error == "" {
		withheld = f.withheld()
	}
	switch {
	case s != nil && n.Phase == phaseRun:
		n.Drift = len(s.Changes)
	case withheld != "" && n.Phase == phaseRun:
		n.Drift = 1 // a withheld step has no list of changes
	}
	switch {
	case res != nil && res.Err != nil:
		n.Error = res.Err.Error()
	case withheld != "":
		n.Error = withheld
	case f.checks.Err != nil:
		n.Error = f.checks.Err.Error()
	case n.Error == "" && f.stillFailing():
		n.Error = "its checks failed when they ran last"
	}
	n.Error = cmp.Or(n.Error, f.postponed(n.Phase))
	for _, in := range f.inside {
		n.setInside(in)
	}
	n.IP = cmp.Or(f.checks.IP, f.report.address(want, have))
	n.Exists, n.Removing = have != nil, n.Phase == phaseDestroy
	n.New = res != nil && res.Status == apply.Done && (res.Step.Action == plan.Create || res.Step.Action == plan.Replace)
	n.Unwell = f.checks.Err != nil || f.stillFailing()
	if node := f.report.Want.Nodes[f.addr]; node != nil {
		n.Checked = !n.Unwell && (len(f.checks.Results) > 0 || len(f.report.desired.Site.Checks(node)) == 0)
		if node.ReviewOverdue(f.report.Have.At) {
			n.Overdue = node.ReviewBy
		}
	}
	n.Ready = s == nil && n.Error == "" && n.Drift == 0 && n.Phase == phaseRun
	return n, true
}

// postponed returns why the removal or replacement of a child is postponed, and what to do about it, or "".
func (f *nodeFacts) postponed(phase string) string {
	for _, d := range f.report.Plan.Deferred {
		if d.Address == f.addr.String() && (d.Postponed || phase == phaseDestroy) {
			return d.Why
		}
	}
	return ""
}

// setInside adds the differences inside of a node that is on the host.
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

// stillFailing reports whether the checks of a node failed in an earlier pass, and did not run in this
// one.
func (f *nodeFacts) stillFailing() bool {
	r := f.report
	return f.checks.Results == nil && slices.Contains(r.pass.Failing, f.addr) && !slices.Contains(r.Unchecked, f.addr)
}

// NodeStatus is the status of a node of the subtree.
type NodeStatus struct {
	Address string    `json:"address"`
	Node    string    `json:"name"`
	VMID    int       `json:"vmid"`
	PVENode string    `json:"place"` // PVE node that it is on, or ""
	IP      string    `json:"ip"`    // where it was found, else its static address; "" if not known
	Phase   string    `json:"phase"` // create, run, destroy, planned
	Ready   bool      `json:"ready"` // converged to the commit in force, and healthy
	Drift   int       `json:"drift"` // number of attributes that differ
	Since   time.Time `json:"since"` // when ready last changed
	Error   string    `json:"error"`

	Backup   *model.BackupState `json:"backup"`                   // null: the site does not say how old its backups may be, and not to verify them
	Life     plan.Phase         `json:"life"`                     // derived from facts
	Overdue  string             `json:"review_overdue,omitempty"` // the date by which it was to be reviewed, if that has passed
	Unwell   bool               `json:"-"`                        // its checks failed when a pass ran them last
	Removing bool               `json:"-"`                        // it left the site
	Exists   bool               `json:"-"`                        // its guest is on the host
	Checked  bool               `json:"-"`                        // its checks passed in this pass, or it has none
	New      bool               `json:"-"`                        // its guest was created in this pass
}
