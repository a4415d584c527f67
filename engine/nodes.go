package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Status is the result of a pass for a node.
type Status string

// The states of a node in a report.
const (
	NodeCompleted Status = "completed" // converged
	NodeFailed    Status = "failed"    // a step or check failed
	NodeSkipped   Status = "skipped"   // differs from the site, and no step was tried
	NodeDestroyed Status = "destroyed"
	NodePlanned   Status = "planned" // nothing is created of it
)

// Node is the result of a pass for one node of a manifest.
type Node struct {
	Name    string  `json:"name"`
	Status  Status  `json:"status"`
	VMID    int     `json:"vmid"` // 0 if it has none
	IP      string  `json:"ip"`   // at which its checks reached it, else the declared static address; "" without either
	Seconds float64 `json:"duration_seconds"`
	Error   string  `json:"error,omitempty"`

	Checks []health.Result `json:"checks,omitempty"` // that ran
}

// nodeFacts has all that a pass knows of one node. Node and NodeStatus are made from it.
type nodeFacts struct {
	report     *Report
	addr       model.Address
	want, have *model.Resource // before the steps; nil if not declared, not on the host
	step       *plan.Step      // nil if there is none
	result     *apply.Result   // of the step; nil if it was not tried
	checks     health.Report
	inside     []*nodeFacts // of what is declared inside of it, each after what it needs
}

// facts returns the facts of nodes, in the order of the list. The report must have a plan.
func (r *Report) facts(list []model.Address) []nodeFacts {
	at := make(map[model.Address]*nodeFacts, len(list))
	out := make([]nodeFacts, len(list))
	for i, addr := range list {
		at[addr] = &out[i]
		out[i] = nodeFacts{report: r, addr: addr, want: r.Want.State[addr], have: r.Have.State[addr], checks: r.Checks[addr]}
	}
	for addr, res := range r.Want.State {
		if of := at[res.Inside]; of != nil {
			at[addr] = &nodeFacts{report: r, addr: addr, want: res, have: r.Have.State[addr]}
			of.inside = append(of.inside, at[addr])
		}
	}
	for i := range out {
		slices.SortFunc(out[i].inside, func(a, b *nodeFacts) int { return len(a.want.Needs) - len(b.want.Needs) })
	}
	for i := range r.Plan.Steps {
		if f := at[r.Plan.Steps[i].Address]; f != nil {
			f.step = &r.Plan.Steps[i]
		}
	}
	for i := range r.Results {
		if f := at[r.Results[i].Step.Address]; f != nil {
			f.result = &r.Results[i]
		}
	}
	return out
}

// identity returns the name and the VMID of a node from the last of these resources that has
// them. The VMID is 0 if none has it.
func (f *nodeFacts) identity(known ...*model.Resource) (name string, vmid int) {
	name = f.addr.Name
	for _, res := range known {
		if res != nil {
			name = res.Node
			if res.Guest != nil && res.Guest.VMID != 0 {
				vmid = res.Guest.VMID
			}
		}
	}
	return name, vmid
}

// nodes returns the results of all nodes in the scope of the pass, sorted by address. There are
// none without a plan.
func (r *Report) nodes() []Node {
	out := []Node{}
	if r.Plan == nil {
		return out
	}
	for _, f := range r.facts(r.scope()) {
		n := f.node()
		if f.result != nil {
			n.setResult(f.result)
		} else if f.step != nil {
			n.Status = NodeSkipped
		}
		tried := f.result != nil
		for _, in := range f.inside {
			n.setInside(in)
			tried = tried || in.result != nil
		}
		n.setChecks(f.checks, !tried)
		out = append(out, n)
	}
	for _, p := range r.Plan.Planned {
		if r.Have.State[p.Address] == nil {
			out = append(out, Node{Name: p.Node, Status: NodePlanned, VMID: p.VMID, IP: p.IP})
		}
	}
	return out
}

// scope returns the nodes that the pass was about.
func (r *Report) scope() []model.Address {
	of := map[model.Address]bool{}
	add := func(s model.State) {
		for addr, res := range s {
			manifest := r.pass.Manifest == "" || r.pass.Manifest == res.Manifest
			target := len(r.pass.Targets) == 0 || slices.Contains(r.pass.Targets, addr)
			switch {
			case res.Node == "" || !manifest || !target:
			case res.Inside != (model.Address{}):
				of[res.Inside] = true
			default:
				of[addr] = true
			}
		}
	}
	add(r.Want.State)
	if r.pass.Destroy {
		add(r.Have.State)
	}
	for i := range r.Plan.Steps {
		if s := &r.Plan.Steps[i]; s.Node != "" {
			of[guestOf(*s)] = true
		}
	}
	return slices.SortedFunc(maps.Keys(of), model.Address.Compare)
}

// node is the result of a node without a step: completed, unless something withheld a step.
func (f *nodeFacts) node() Node {
	name, vmid := f.identity(f.want, f.have)
	n := Node{Name: name, Status: NodeCompleted, VMID: vmid, IP: f.report.address(f.want, f.have)}
	if f.step != nil {
		n.VMID = f.step.VMID
		return n
	}
	withheld, destroy := f.withheld(), f.report.pass.Destroy
	switch {
	case withheld != "":
		n.Status, n.Error = NodeSkipped, withheld
	case destroy && f.have == nil:
		n.Status = NodeDestroyed
	case destroy, f.have == nil:
		n.Status = NodeSkipped
	}
	return n
}

// withheld returns why a step of the node was withheld, or "".
func (f *nodeFacts) withheld() string {
	r, addr := f.report, f.addr
	for _, found := range r.Plan.Findings {
		keeps := found.Severity == diag.Error || found.Source == diag.FromGuard
		if keeps && found.Address == addr.String() && !slices.ContainsFunc(r.verdicts, func(g diag.Finding) bool { return same(found, g) }) {
			return found.Summary
		}
	}
	for _, d := range r.Plan.Deferred {
		if d.Differs && d.Address == addr.String() {
			return d.Why
		}
	}
	for _, u := range r.Plan.Unknown {
		if u.Scope == addr.String() || u.All {
			return fmt.Sprintf("%s: %s", u.Scope, u.Why)
		}
	}
	return ""
}

// setResult sets the result of the step of the node.
func (n *Node) setResult(res *apply.Result) {
	n.Seconds = seconds(res.Duration)
	switch res.Status {
	case apply.Done:
		n.Status = NodeCompleted
		if res.Step.Action == plan.Delete {
			n.Status = NodeDestroyed
		}
	case apply.Failed:
		n.Status = NodeFailed
	case apply.RolledBack:
		n.Status = NodeDestroyed
	default:
		n.Status = NodeSkipped
	}
	if res.Err != nil {
		n.Error = res.Err.Error()
	}
}

// setInside sets the result of something inside of a node that is itself converged.
func (n *Node) setInside(f *nodeFacts) {
	if n.Status != NodeCompleted {
		return
	}
	switch res := f.result; {
	case res != nil:
		n.Seconds += seconds(res.Duration)
		switch res.Status {
		case apply.Done:
		case apply.Failed:
			n.Status = NodeFailed
		default:
			n.Status = NodeSkipped
		}
		if res.Err != nil {
			n.Error = res.Err.Error()
		}
	case f.step != nil:
		n.Status = NodeSkipped
	default:
		if why := f.withheld(); why != "" {
			n.Status, n.Error = NodeSkipped, why
		}
	}
}

// setChecks sets the results of the checks of the node. A failed check counts as the error of the node
// if no step was tried.
func (n *Node) setChecks(checks health.Report, noStep bool) {
	n.Checks = checks.Results
	if checks.IP != "" {
		n.IP = checks.IP
	}
	if failed, ok := errors.AsType[*health.Error](checks.Err); ok && failed.Waiting && n.Status == NodeCompleted {
		n.Status, n.Error = NodeSkipped, checks.Err.Error()
	} else if noStep && checks.Err != nil {
		n.Status, n.Error = NodeFailed, checks.Err.Error()
	}
}

// address returns the first static address that a node declares.
func (r *Report) address(resources ...*model.Resource) string {
	for _, res := range resources {
		if res == nil {
			continue
		}
		if ip := plan.StaticAddress(r.kinds, res); ip != "" {
			return ip
		}
	}
	return ""
}
