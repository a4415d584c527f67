package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// OutputStatus is the state of an output that the agent writes.
type OutputStatus struct {
	Name    string     `json:"name"`
	To      string     `json:"to"`
	Changed *time.Time `json:"changed"` // when its text changed last; null: not since the agent started
	Error   string     `json:"error"`   // why it is not as it should be, "" if it is
	Text    string     `json:"-"`       // as it should be; "" if it could not be rendered
}

// shows reports whether an output shows a node: its name is a word of the text.
func (o *OutputStatus) shows(node string) bool {
	for rest := o.Text; ; {
		at := strings.Index(rest, node)
		if at < 0 {
			return o.Text == ""
		}
		end := at + len(node)
		if (at == 0 || !inName(rest[at-1])) && (end == len(rest) || !inName(rest[end])) {
			return true
		}
		rest = rest[end:]
	}
}

func inName(c byte) bool {
	return c == '-' || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// writeOutputs writes the outputs of the site with the state that a pass left, and adds findings for those that fail.
func writeOutputs(ctx context.Context, l *loop, p *pass, r *engine.Report) {
	if l.o.Outputs == nil || !r.Accepted || !p.active || p.desired.Site == nil {
		return
	}
	var nodes []engine.NodeStatus // that outputs show
	if len(p.desired.Site.Outputs) > 0 {
		nodes = r.NodeStatus(l.status.Nodes, time.Now().UTC())
		m := l.memory
		m.noteValidated(nodes, r.Have.Only, l.agent.checks.list())
		for i := range nodes { // as they are once the outputs are written
			f := m.factsOf(&nodes[i], nil, l.agent.checks.list())
			f.Registered = true
			nodes[i].Life = phaseOf(&nodes[i], f)
		}
	}
	l.waivers = p.desired.Site.Waivers
	var out []OutputStatus
	before := l.status.Outputs
	l.during(ctx, func(ctx context.Context) { out = l.o.Outputs(ctx, p.desired, nodes, before) })
	l.status.Outputs = out
	for _, o := range out {
		if o.Error != "" {
			f := diag.Warnf(p.desired.Site.Outputs[o.Name].At, fmt.Sprintf("output %s is not written", o.Name), "%s", o.Error)
			r.Findings = append(r.Findings, f)
		}
	}
}

// noteValidated records the nodes whose checks hold, as a pass and the runs since then show it. Some says that the nodes are
// not all of the host.
func (m *memory) noteValidated(nodes []engine.NodeStatus, some bool, checks []CheckStatus) {
	if !m.validates(nodes, some) {
		return
	}
	next := map[string]ledger.Validation{}
	if some {
		maps.Copy(next, m.Validated)
	}
	state := map[string][2]int{} // of its checks: passing, others
	for _, c := range checks {
		n := state[c.Address]
		if c.State == CheckPassing {
			n[0]++
		} else {
			n[1]++
		}
		state[c.Address] = n
	}
	for i := range nodes {
		n := &nodes[i]
		known, has := m.Validated[n.Address]
		delete(next, n.Address)
		passing := state[n.Address][0] > 0 && state[n.Address][1] == 0 && !n.Unwell && !n.New
		switch {
		case !n.Exists || n.VMID == 0:
		case has && known.VMID == n.VMID && !n.New:
			next[n.Address] = known
		case n.Checked || passing:
			next[n.Address] = ledger.Validation{VMID: n.VMID, At: time.Now().UTC()}
		}
	}
	if len(next) == 0 {
		next = nil
	}
	if !maps.Equal(next, m.Validated) {
		m.Validated = next
	}
}

// validates reports whether nodes may change what is known: most of the time none does.
func (m *memory) validates(nodes []engine.NodeStatus, some bool) bool {
	for i := range nodes {
		n := &nodes[i]
		known, has := m.Validated[n.Address]
		if has != (n.Exists && n.VMID != 0) || n.New || has && known.VMID != n.VMID {
			return true
		}
	}
	return !some && len(nodes) < len(m.Validated)
}

// factsOf returns the facts of a node. Outputs are those that the agent writes.
func (m *memory) factsOf(n *engine.NodeStatus, outputs []OutputStatus, checks []CheckStatus) plan.LifeFacts {
	v, validated := m.Validated[n.Address]
	f := plan.LifeFacts{Exists: n.Exists, Removing: n.Removing, Registered: true, Validated: validated && v.VMID == n.VMID, Healthy: !n.Unwell}
	for i := range outputs {
		if outputs[i].Error != "" && outputs[i].shows(n.Node) {
			f.Registered = false
		}
	}
	f.Healthy = f.Healthy && !slices.ContainsFunc(checks, func(c CheckStatus) bool { return c.Address == n.Address && c.State == CheckFailing })
	return f
}

// phaseOf is the phase of a node of a status. One that is planned, and whose guest exists, is not beyond that.
func phaseOf(n *engine.NodeStatus, f plan.LifeFacts) plan.Phase {
	if n.Life == plan.Planned {
		return plan.Planned
	}
	return f.Phase()
}

// relive derives the phases of all nodes, after a pass or when checks turned, and puts them into the status.
func relive(l *loop, nodes []engine.NodeStatus) {
	checks := l.agent.checks.list()
	l.memory.noteValidated(nodes, false, checks)
	next := l.life
	own := false // next is not the map that others read
	for i := range nodes {
		f := l.memory.factsOf(&nodes[i], l.status.Outputs, checks)
		nodes[i].Life, nodes[i].New = phaseOf(&nodes[i], f), false
		addr, err := model.ParseAddress(nodes[i].Address)
		if err != nil || l.life[addr] == f {
			continue
		}
		if !own {
			next, own = maps.Clone(l.life), true
		}
		if next == nil {
			next = map[model.Address]plan.LifeFacts{}
		}
		next[addr] = f
	}
	l.life, l.status.Nodes = next, nodes
}

// skipped finds the nodes that left out a phase.
func skipped(l *loop) diag.List {
	var found diag.List
	now := time.Now()
	for i := range l.status.Nodes {
		n := &l.status.Nodes[i]
		addr, err := model.ParseAddress(n.Address)
		if p := l.life[addr].Skipped(); err == nil && p != "" {
			f := diag.Finding{
				Severity: diag.Warning, Source: diag.FromPolicy, Address: n.Address, Rule: model.RuleSkipped, Summary: fmt.Sprintf("%s is validated, and not %s", n.Address, p),
				Detail: "An output that shows it is not written. Fix that, or permit it with a waiver of the rule " + model.RuleSkipped + ".",
			}
			for _, w := range l.waivers {
				if w.Rule == model.RuleSkipped && w.Node == addr.Name && !w.Expired(now) {
					f.Waiver, f.Summary = w.Name, "waived until "+w.Expires+": "+f.Summary
					f.Detail = fmt.Sprintf("Waiver %s by %s: %s", w.Name, diag.Line(w.Owner), diag.Line(w.Reason))
				}
			}
			found = append(found, f)
		}
	}
	return found
}

// addresses are those at which nodes were found last, if outputs show them.
func addresses(l *loop) map[string]string {
	if len(l.status.Outputs) == 0 {
		return nil
	}
	out := make(map[string]string, len(l.status.Nodes))
	for _, n := range l.status.Nodes {
		out[n.Address] = n.IP
	}
	return out
}
