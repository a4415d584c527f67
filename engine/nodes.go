package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Status is what became of a node.
type Status string

// The states of a node in a report.
const (
	NodeCompleted Status = "completed" // as the site says
	NodeFailed    Status = "failed"    // its step went wrong
	NodeSkipped   Status = "skipped"   // not as the site says, and nothing is done about it
	NodeDestroyed Status = "destroyed" // gone
)

// Node is what became of one node of a manifest.
type Node struct {
	Name    string  `json:"name"`
	Status  Status  `json:"status"`
	VMID    int     `json:"vmid"` // 0 if it has none
	IP      string  `json:"ip"`   // where its checks reached it, else the declared static address; "" without either
	Seconds float64 `json:"duration_seconds"`
	Error   string  `json:"error,omitempty"`

	Checks []health.Result `json:"checks,omitempty"` // as far as they were tried
}

// nodes lists what became of every node in the scope of the pass, in the order of
// their addresses; none before there was a plan.
func (r *Report) nodes() []Node {
	out := []Node{}
	if r.Plan == nil {
		return out
	}
	steps := map[model.Address]*plan.Step{}
	for i := range r.Plan.Steps {
		steps[r.Plan.Steps[i].Address] = &r.Plan.Steps[i]
	}
	results := map[model.Address]*apply.Result{}
	for i := range r.Results {
		results[r.Results[i].Step.Address] = &r.Results[i]
	}
	for _, addr := range r.scope(steps) {
		n := r.node(addr, steps[addr])
		if res := results[addr]; res != nil {
			n.settle(res)
		} else if steps[addr] != nil {
			n.Status = NodeSkipped
		}
		n.proved(r.Checks[addr], results[addr] == nil)
		out = append(out, n)
	}
	return out
}

// scope lists the nodes that the pass was about.
func (r *Report) scope(steps map[model.Address]*plan.Step) []model.Address {
	of := map[model.Address]bool{}
	add := func(s model.State) {
		for addr, res := range s {
			manifest := r.pass.Manifest == "" || r.pass.Manifest == res.Manifest
			target := len(r.pass.Targets) == 0 || slices.Contains(r.pass.Targets, addr)
			if res.Node != "" && manifest && target {
				of[addr] = true
			}
		}
	}
	add(r.Want.State)
	if r.pass.Destroy {
		add(r.Have.State)
	}
	for addr, s := range steps {
		if s.Node != "" {
			of[addr] = true
		}
	}
	out := make([]model.Address, 0, len(of))
	for addr := range of {
		out = append(out, addr)
	}
	slices.SortFunc(out, model.Address.Compare)
	return out
}

// node tells how a node stands without any step: as wanted, unless something held
// a step back.
func (r *Report) node(addr model.Address, s *plan.Step) Node {
	want, have := r.Want.State[addr], r.Have.State[addr]
	n := Node{Name: addr.Name, Status: NodeCompleted, IP: r.address(want, have)}
	for _, res := range []*model.Resource{want, have} {
		if res != nil {
			n.Name = res.Node
			if res.Guest != nil && res.Guest.VMID != 0 {
				n.VMID = res.Guest.VMID
			}
		}
	}
	if s != nil {
		n.VMID = s.VMID
		return n
	}
	held := r.held(addr)
	switch {
	case held != "":
		n.Status, n.Error = NodeSkipped, held
	case r.pass.Destroy && have == nil:
		n.Status = NodeDestroyed
	case r.pass.Destroy, have == nil:
		n.Status = NodeSkipped
	}
	return n
}

// held tells why an address has no step although it would need one, "" if it does
// not.
func (r *Report) held(addr model.Address) string {
	for _, f := range r.Plan.Findings {
		held := f.Severity == diag.Error || f.Source == diag.FromGuard
		if held && f.Address == addr.String() && !slices.ContainsFunc(r.ruled, func(g diag.Finding) bool { return same(f, g) }) {
			return f.Summary
		}
	}
	for _, u := range r.Plan.Unknown {
		if u.Scope == addr.String() || u.All {
			return fmt.Sprintf("%s: %s", u.Scope, u.Why)
		}
	}
	return ""
}

// settle writes down the result of the node's step.
func (n *Node) settle(res *apply.Result) {
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

// proved writes down what became of the node's checks; without a step a check that
// does not hold is what is wrong with it.
func (n *Node) proved(checks health.Report, alone bool) {
	n.Checks = checks.Results
	if checks.IP != "" {
		n.IP = checks.IP
	}
	if alone && checks.Err != nil {
		n.Status, n.Error = NodeFailed, checks.Err.Error()
	}
}

// address is the first static address that a node claims for itself.
func (r *Report) address(resources ...*model.Resource) string {
	for _, res := range resources {
		if res == nil {
			continue
		}
		kind := r.kinds.Get(res.Addr.Kind)
		if kind == nil || kind.Claims == nil {
			continue
		}
		for _, c := range kind.Claims(res.Spec) {
			if ip, err := netip.ParseAddr(strings.TrimSpace(c.Value)); err == nil {
				return ip.String()
			}
		}
	}
	return ""
}
