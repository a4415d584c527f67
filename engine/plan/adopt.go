package plan

import (
	"fmt"
	"slices"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// adopt plans to write the ownership tag on a guest that exists. The step has all differences; the guard refuses it
// unless these are the tags alone.
func (p *proposal) adopt(want, have *model.Resource) {
	if p.in.Destroy {
		return
	}
	p.attrs = model.AppendAttrs(p.attrs[:0], want.Spec)
	changes := p.changes(want, have, p.attrs)
	p.id.wanted(want, p.attrs)
	p.id.observed(have, changes)
	s := stepOf(want, Adopt, "it exists, and has the identity that adopt names")
	s.Want, s.Have, s.Class = want, have, model.ClassNone
	for _, a := range p.attrs {
		if a.Path == "mark" {
			s.Changes = append(s.Changes, Change{Path: a.Path, After: a.Value, Class: model.ClassNone})
		}
	}
	s.Changes = append(s.Changes, changes...)
	p.steps[want.Addr] = s
}

// forget plans to take the ownership tag away from a guest.
func (p *proposal) forget(have *model.Resource) {
	p.id.observed(have, nil)
	s := stepOf(have, Forget, "given up: only its ownership tag is removed")
	s.Have, s.Class, s.Manifest = have, model.ClassNone, p.manifest(have.Addr)
	p.steps[have.Addr] = s
}

// guardAdoption adopts no guest that differs from its node, or that will at its next restart.
func (g *guard) guardAdoption(s *Step) {
	if s.Action != Adopt {
		return
	}
	refuse := func(path, why, fix string) {
		g.find(s.Address, diag.Finding{
			Severity: diag.Error, Source: diag.FromGuard, At: s.Want.RangeOf(path), Detail: fix,
			Summary: fmt.Sprintf("%s is %s: %s", s.Address, s.Action.not(), why),
		})
		if g.steps[s.Address] != nil {
			g.withhold(s, false)
		}
	}
	for _, w := range g.plan.Pending {
		if w.Address == s.Address {
			c := Change{Path: w.Path, Before: w.Before, After: w.After, Sensitive: sensitive(s.Want, w.Path)}
			refuse(w.Path, "pending until its next restart: "+c.String(), "restart the guest, or revert the change in the web interface")
		}
	}
	blocks := map[string]bool{}
	for _, c := range s.Changes {
		block := blockOf(c.Path)
		sign := whole(s.Changes, block)
		switch {
		case c.Path == "mark" || onlyTagged(c):
		case sign == "":
			refuse(c.Path, fmt.Sprintf("%s is %s, and the files say %s", c.Path, onHost(c, c.Before), onHost(c, c.After)), "declare what the guest has: an adoption changes nothing")
		case blocks[block]:
		case sign == "-":
			refuse(block, "it has "+block+said(s.Changes, block)+", which no file declares", "declare what the guest has: an adoption changes nothing")
		default:
			refuse(block, "it has no "+block+said(s.Changes, block), "declare what the guest has: an adoption changes nothing")
		}
		blocks[block] = true
	}
}

// onHost is one side of a difference.
func onHost(c Change, v any) string {
	switch {
	case c.Sensitive:
		return model.Sensitive
	case v == nil:
		return "not set"
	default:
		return value(v)
	}
}

// onlyTagged reports whether a change adds the tag that every managed guest has, and nothing else.
func onlyTagged(c Change) bool {
	before, after, ok := lists(c.Before, c.After)
	return ok && c.Path == "tags" && !slices.Contains(before, model.GuestTag) &&
		slices.Equal(before, slices.DeleteFunc(slices.Clone(after), func(t string) bool { return t == model.GuestTag }))
}

// refuseOrigin refuses to create a guest that was made elsewhere.
func (g *guard) refuseOrigin(s *Step) {
	if s.Action == Replace {
		g.refuseAt(s, "adopt", "it cannot be created again from these files", "declare an image or a template to replace it")
		return
	}
	node := g.in.Want.Nodes[s.Address]
	s.Action = Adopt
	g.refuseAt(s, "adopt", fmt.Sprintf("there is no guest with VMID %d on this host", node.VMID),
		"correct vmid; if the guest is gone, remove the node, or declare the image or template to create it from")
}

// mostCompared bounds how many guests that go are compared with as many that are created.
const mostCompared = 30

// guardAdoptedElsewhere removes no guest that another node adopts: its node was renamed.
func (g *guard) guardAdoptedElsewhere() {
	gone := map[int]*Step{}
	g.each(func(s *Step) {
		if s.Action == Delete {
			gone[s.VMID] = s
		}
	})
	g.each(func(s *Step) {
		from, node := gone[s.VMID], g.in.Want.Nodes[s.Address]
		if s.Action != Create || from == nil || node == nil || node.Adopt == "" {
			return
		}
		s.Action = Adopt
		g.refuseAt(s, "adopt", fmt.Sprintf("VMID %d is that of %s, which stays", s.VMID, from.Address), "if the node was renamed, this block keeps the guest:\n"+movedBlock(from, s))
		g.withhold(from, false)
	})
}

// movedBlock is the block that gives the guest of one step to the node of another.
func movedBlock(from, to *Step) string {
	return fmt.Sprintf("moved {\n  from = node.%s\n  to   = node.%s\n}", from.Node, to.Node)
}

// suggestMoves warns of a guest that is destroyed while one that may be the same is created under another name.
func (g *guard) suggestMoves() {
	var gone, made []*Step
	g.each(func(s *Step) {
		switch {
		case s.Action == Delete && s.Have.Guest != nil && s.Node != "":
			gone = append(gone, s)
		case s.Action == Create && s.Want.Guest != nil && s.Node != "":
			made = append(made, s)
		}
	})
	if len(gone) > mostCompared || len(made) > mostCompared {
		return
	}
	suggest := func(from, to *Step) {
		g.find(to.Address, diag.Finding{
			Severity: diag.Warning, Source: diag.FromGuard,
			Summary: fmt.Sprintf("%s is destroyed and %s created, and they look like one guest", from.Address, to.Address),
			Detail:  "if the node was renamed, this block keeps the guest:\n" + movedBlock(from, to),
		})
	}
	for _, from := range gone {
		var like []*Step
		for _, to := range made {
			switch declared := g.in.Want.State[to.Address].Guest.VMID; {
			case to.Address.Kind != from.Address.Kind:
			case declared == from.VMID:
				suggest(from, to)
			case declared == 0 && g.alike(to.Want, from.Have):
				like = append(like, to)
			}
		}
		if len(like) == 1 {
			suggest(from, like[0])
		}
	}
}

// alike reports whether a wanted guest is an observed one but for its name.
func (g *guard) alike(want, have *model.Resource) bool {
	kind := g.kind(want)
	aligned := *have
	aligned.Spec = model.Clone(have.Spec)
	if kind.Align != nil {
		kind.Align(want, &aligned)
	}
	return !slices.ContainsFunc(Differences(want.Spec, aligned.Spec), func(c Change) bool {
		return c.Path != "name" && c.Path != "hostname" && c.Path != "mark"
	})
}
