package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Outputs renders the outputs of the site with what was observed of nodes, by their names.
func (d *Desired) Outputs(ctx context.Context, seen map[string]model.NodeFacts) (map[string]model.Rendered, error) {
	s := d.Site
	if s == nil || len(s.Outputs) == 0 || d.Render == nil {
		return nil, nil //nolint:nilnil // no outputs, no texts
	}
	return d.Render(ctx, model.OutputFacts(s, seen, func(r *model.Resource) string { return plan.StaticAddress(s.Kinds, r) }))
}

// outputs compares the outputs of the site as they are now with those after the plan. What is there now is what
// Pass.Written has; what it lacks is rendered from the nodes that exist.
func (p *Pass) outputs(ctx context.Context, c *progress) {
	s := c.desired.Site
	if len(s.Outputs) == 0 || c.desired.Render == nil || c.plan == nil || c.have.NothingSeen() {
		return
	}
	was, will := seenBy(c, false), seenBy(c, true)
	after, err := c.desired.Outputs(ctx, will)
	if err != nil {
		c.findings = append(c.findings, outputFinding(err.Error()))
		return
	}
	facts := model.OutputFacts(s, was, func(r *model.Resource) string { return plan.StaticAddress(s.Kinds, r) })
	nodes := facts["nodes"].(map[string]any)
	for _, on := range c.want.Nodes {
		if _, exists := was[on.Name]; !exists {
			delete(nodes, on.Name)
		}
	}
	before, err := c.desired.Render(ctx, facts)
	if err != nil {
		c.findings = append(c.findings, outputFinding(err.Error()))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.Outputs)) {
		o := s.Outputs[name]
		text, known := "", false
		if p.Written != nil && o.To != "" {
			text, known = p.Written.Output(o)
		}
		if !known {
			text = before[name].Text
		}
		if why := after[name].Error; why != "" {
			c.findings = append(c.findings, outputFinding(fmt.Sprintf("output %s: %s", name, why)))
		} else if change := plan.ChangeOf(name, o.To, text, after[name].Text); change != nil {
			c.plan.Outputs = append(c.plan.Outputs, *change)
		}
	}
}

func outputFinding(why string) diag.Finding {
	return diag.Finding{Severity: diag.Warning, Source: diag.FromSite, Summary: "an output cannot be rendered", Detail: why}
}

// seenBy returns what is known of the nodes of the host: as they are, or as they will be after the plan.
func seenBy(c *progress, after bool) map[string]model.NodeFacts {
	out := map[string]model.NodeFacts{}
	for addr, r := range c.have.State {
		if r.Guest == nil || r.Node == "" {
			continue
		}
		out[r.Node] = model.NodeFacts{VMID: r.Guest.VMID, PVENode: r.Guest.Node, Phase: string(cmp.Or(c.plan.Phases[addr], plan.Operating)), Address: c.checks[addr].IP}
	}
	for i := range c.plan.Steps {
		s := &c.plan.Steps[i]
		switch {
		case !after || s.VMID == 0 || s.Node == "":
		case s.Action == plan.Delete || s.Action == plan.Forget:
			delete(out, s.Node)
		case s.Action == plan.Create || s.Action == plan.Replace:
			out[s.Node] = model.NodeFacts{VMID: s.VMID, PVENode: s.Want.Guest.Node, Phase: string(plan.Provisioned)}
		default:
		}
	}
	for _, r := range c.plan.Planned {
		if _, exists := out[r.Node]; !exists {
			out[r.Node] = model.NodeFacts{VMID: r.VMID, Address: r.IP, Phase: string(plan.Planned)}
		}
	}
	return out
}

// Outputs renders the outputs after the pass, with what it observed; see Desired.Outputs.
func (r *Report) Outputs(ctx context.Context) (map[string]model.Rendered, error) {
	c := progress{desired: r.desired, want: r.Want, have: r.Have, plan: r.Plan, checks: r.Checks}
	return r.desired.Outputs(ctx, seenBy(&c, true))
}

// reviews finds nodes whose date of review has passed, by the time of the observation.
func reviews(c *progress) diag.List {
	var found diag.List
	for _, addr := range slices.SortedFunc(maps.Keys(c.want.Nodes), model.Address.Compare) {
		if n := c.want.Nodes[addr]; n.ReviewOverdue(c.have.At) {
			f := diag.Warnf(n.Resource.RangeOf("review_by"), fmt.Sprintf("%s was to be reviewed by %s", addr, n.ReviewBy), "Its owner checks what the files say of it, and sets another date in review_by.")
			f.Address = addr.String()
			found = append(found, f)
		}
	}
	return found
}

// phases derives the phases of the nodes that do not operate.
func (p *Pass) phases(c *progress) {
	out := map[model.Address]plan.Phase{}
	for addr, r := range c.have.State {
		if r.Guest == nil || r.Node == "" || r.Guest.Adoptable {
			continue
		}
		f := plan.LifeFacts{Exists: true, Removing: c.want.State[addr] == nil && !c.want.Declared[addr]}
		if known, has := p.Life[addr]; has && !f.Removing {
			f = known
			f.Exists = true
		}
		if is := f.Phase(); is != plan.Operating {
			out[addr] = is
		}
	}
	for _, r := range c.plan.Planned {
		if out[r.Address] == "" {
			out[r.Address] = plan.Planned
		}
	}
	c.plan.Phases = out
}

// unlocated lists the guests that run and whose address is neither declared nor known, if outputs may show it.
func (p *Pass) unlocated(c *progress) []model.Address {
	if len(c.desired.Site.Outputs) == 0 {
		return nil
	}
	changed := map[model.Address]bool{}
	for i := range c.results {
		if s := &c.results[i].Step; s.Have == nil && c.results[i].Status == apply.Done {
			changed[s.Address] = true
		}
	}
	return c.have.State.Find(func(r *model.Resource) bool {
		want := c.want.State[r.Addr]
		return want != nil && r.Guest != nil && r.Guest.Running && plan.StaticAddress(c.desired.Site.Kinds, want) == "" && (p.Addresses[r.Addr.String()] == "" || changed[r.Addr])
	})
}
