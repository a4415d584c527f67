package service

import (
	"fmt"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// report is the agent's report to its parent about itself and the nodes that it manages.
func report(s agent.Status) wire.Report {
	r := wire.Report{
		Version: wire.ReportVersion, Identity: s.Identity, Agent: s.Agent, At: s.At, Phase: wire.PhaseCreate, Ready: s.Healthy, Unseen: s.Unseen(),
		Findings: diag.List{}, Nodes: []wire.ReportNode{},
	}
	if s.InForce != nil {
		r.Commit, r.Phase = s.InForce.ID, wire.PhaseConfig
	}
	if s.Converged != nil {
		r.LastGood, r.Phase = s.Converged.ID, wire.PhaseRun
	}
	if s.Last != nil {
		r.Drifted, r.Failed = s.RecentDrift() != nil, s.Last.Outcome == engine.Failed || s.Last.Outcome == engine.Partly
		r.Findings = append(r.Findings, s.Last.Findings...)
		if s.Last.Error != "" {
			r.Findings = append(diag.List{{Severity: diag.Error, Summary: wire.ShortenText(s.Last.Error)}}, r.Findings...)
		}
	}
	if s.Refused != nil {
		r.Refused = s.Refused.Commit
		r.Findings = append(append(diag.List{}, s.Refused.Findings...), r.Findings...)
	}
	failing := map[string][]agent.CheckStatus{}
	for _, c := range s.FailingChecks() {
		failing[c.Address] = append(failing[c.Address], c)
	}
	seen := map[string]bool{s.Identity: true} // a node that becomes another kind of guest is listed twice for a while
	for _, n := range s.Nodes {
		if n.Node == "" || seen[n.Node] {
			continue
		}
		seen[n.Node] = true
		node := wire.ReportNode{
			Name: n.Node, Type: "vm", Parent: s.Identity, Phase: wire.Phase(n.Phase), Ready: n.Ready, Drift: n.Drift, Since: n.Since, Error: wire.ShortenText(n.Error),
			Failing: failingText(failing[n.Address]), Life: string(n.Life), VMID: n.VMID, IP: n.IP,
		}
		if n.Life == plan.Planned && n.Ready {
			node.Phase = wire.PhaseCreate // older parents know no other
		}
		if n.Phase == "planned" {
			node.Phase = wire.PhaseCreate // older parents know no other
		}
		if addr, err := model.ParseAddress(n.Address); err == nil && (addr.Kind == "ct" || addr.Kind == model.PVEType) {
			node.Type = addr.Kind
		}
		r.Nodes = append(r.Nodes, node)
	}
	for _, h := range s.Hosts {
		if !seen[h.Name] {
			seen[h.Name] = true
			r.Nodes = append(r.Nodes, hostLine(s.Identity, h))
		}
	}
	r.Empty = isEmpty(s)
	if n := unmanagedAlone(s); n > 0 {
		are := fmt.Sprintf("%d guests on it are", n)
		if n == 1 {
			are = "1 guest on it is"
		}
		r.Findings = append(r.Findings, diag.Warnf(diag.Range{}, fmt.Sprintf("%s is not empty: %s not managed", s.Identity, are), "They would be destroyed with it: move or remove them (homestak-gitops plan on %[1]s lists them), or let them go with the trailer Allow-Orphans: %[1]s.", s.Identity))
	}
	return r
}

// failingText names the checks of a node that fail, in short.
func failingText(list []agent.CheckStatus) string {
	if len(list) == 0 {
		return ""
	}
	text := list[0].Check + ": " + list[0].Error
	if more := len(list) - 1; more > 0 {
		text = fmt.Sprintf("%s (and %d more), %s", list[0].Check, more, list[0].Error)
	}
	return wire.ShortenFailing(text)
}

// hostLine is the line of a host below, before what it reported is added.
func hostLine(parent string, h agent.HostBelow) wire.ReportNode {
	n := wire.ReportNode{Name: h.Name, Type: model.PVEType, Parent: parent, Phase: wire.PhaseRun, Ready: true}
	if h.Leaving {
		n.Phase, n.Ready, n.Error = wire.PhaseDestroy, false, "left the site, and has not reported that it is empty"
	}
	return n
}

// isEmpty reports whether the host is empty, including unmanaged guests: the last pass observed all of the host and
// completed the current commit, and there is no suspension. A parent destroys the machine if this is true, so it is
// false in doubt.
func isEmpty(s agent.Status) bool {
	return s.Last != nil && s.Converged != nil && s.InForce != nil && s.Converged.ID == s.InForce.ID && s.Last.Commit == s.InForce.ID &&
		s.Last.Outcome == engine.Done && s.Last.Unknown == 0 && s.Last.Pending == 0 && s.Running == nil &&
		s.Last.Unmanaged == 0 && len(s.Nodes) == 0 && len(s.Hosts) == 0 && len(s.Suspended) == 0 && s.Refused == nil
}

// unmanagedAlone is the number of unmanaged guests, if only they keep a child without nodes from being empty.
func unmanagedAlone(s agent.Status) int {
	if s.Last == nil || s.Parent == nil || len(s.Nodes) > 0 {
		return 0
	}
	return s.Last.Unmanaged
}
