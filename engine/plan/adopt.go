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

// isGivenUp reports whether the site keeps a guest that no node declares, and only takes its ownership tag away.
func (d *draft) isGivenUp(have *model.Resource) bool {
	block, found := d.in.Want.Removed.Of(have.Addr)
	return have.Guest != nil && found && !block.Destroy && d.want[have.Addr] == nil && d.in.Want.Elsewhere[have.Addr] == ""
}

// guardRemoved removes no guest that was adopted unless a block orders that, and none that a block is likely to mean.
func (g *guard) guardRemoved(s *Step) {
	if s.Action != Delete || s.Have.Guest == nil {
		return
	}
	w, a := g.in.Want, s.Address
	block, found := w.Removed.Of(a)
	meant, elsewhere := w.Removed.Meant(a), w.Elsewhere[a]
	switch {
	case g.in.Destroy:
		if g.isGivenUp(s.Have) {
			g.warn(s, "a removed block gives it up", "apply takes its ownership tag away; to destroy it, set destroy = true there")
		}
	case found && block.Destroy:
	case s.Have.Guest.Adopted && elsewhere != "":
		g.refuse(s, diag.FromGuard, "it was adopted, and is "+elsewhere, "no guest moves to another host: declare it here again, or take its node out of the files until a block is applied:\n"+removedBlocks(a))
	case s.Have.Guest.Adopted:
		g.refuse(s, diag.FromGuard, "it was adopted, and no node declares it", "declare it again, or add a block:\n"+removedBlocks(a))
	case elsewhere != "" && g.isMoved(a):
		g.refuse(s, diag.FromGuard, "a moved block keeps it, and it is "+elsewhere, "no guest moves to another host: declare the node here, or remove the block to destroy the guest")
	case meant.Kind == a.Kind:
		g.refuse(s, diag.FromGuard, fmt.Sprintf("the block removed %q may mean it", meant), "it may be an instance of for_each, or another node: add a block of its own:\n"+removedBlocks(a))
	case meant.Kind != "":
		g.refuse(s, diag.FromGuard, fmt.Sprintf("the block removed %q names another type", meant), "correct the type, or add a block:\n"+removedBlocks(a))
	case elsewhere == "":
		if near := g.removedLike(a); near != "" { // holds nothing back: a block stays in the files after it was applied
			g.find(a, diag.Finding{
				Severity: diag.Warning, Source: diag.FromSite,
				Summary: fmt.Sprintf("%s is destroyed, and the block removed \"%s.%s\" gives up no guest", a, a.Kind, near),
				Detail:  "if the block means it, correct its name before you apply",
			})
		}
	}
	for from, to := range w.Moved {
		if from.Name == a.Name && from.Kind != a.Kind && g.steps[a] != nil && !g.in.Destroy {
			g.refuse(s, diag.FromGuard, fmt.Sprintf("a moved block gives it to %s, which has another type", to), "a guest keeps its type: declare the node with it, or remove the block to destroy the guest")
		}
	}
}

// removedLike finds a block that gives up no guest, and has nearly the name of one that goes; "" if there is none.
func (d *draft) removedLike(gone model.Address) string {
	var names []string
	for addr, b := range d.in.Want.Removed {
		if addr.Kind == gone.Kind && !b.Destroy && d.have[addr] == nil {
			names = append(names, addr.Name)
		}
	}
	return diag.Nearest(gone.Name, names)
}

// isMoved reports whether a moved block gives a guest to a node.
func (d *draft) isMoved(to model.Address) bool {
	for _, a := range d.in.Want.Moved {
		if a == to {
			return true
		}
	}
	return false
}

// removedBlocks are the two blocks that decide what happens to a guest whose node left the site.
func removedBlocks(a model.Address) string {
	destroy := fmt.Sprintf("to destroy it with its data:\nremoved %q { destroy = true }", a)
	if a.Kind == model.PVEType { // which cannot be given up
		return destroy
	}
	return fmt.Sprintf("to give it up:\nremoved %q { destroy = false }\n", a) + destroy
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

// guardAdoptedElsewhere removes no guest that another node adopts, in the scope of the plan or not: its node was renamed.
func (g *guard) guardAdoptedElsewhere() {
	adopts := map[int]*model.Resource{}
	for a, n := range g.in.Want.Nodes {
		if n.Adopt != "" && g.want[a] != nil {
			adopts[n.VMID] = g.want[a]
		}
	}
	g.each(func(from *Step) {
		to := adopts[from.VMID]
		if from.Action != Delete || to == nil || to.Addr == from.Address {
			return
		}
		fix := "if the node was renamed, this block keeps the guest:\n" + movedBlock(from.Node, to.Node)
		if s := g.steps[to.Addr]; s != nil && s.Action == Create {
			s.Action = Adopt
			g.refuseAt(s, "adopt", fmt.Sprintf("VMID %d is that of %s, which stays", s.VMID, from.Address), fix)
			g.withhold(from, false)
			return
		}
		g.refuse(from, diag.FromGuard, fmt.Sprintf("%s adopts VMID %d", to.Addr, from.VMID), fix)
	})
}

// movedBlock is the block that gives the guest of one node to another.
func movedBlock(from, to string) string {
	return fmt.Sprintf("moved {\n  from = node.%s\n  to   = node.%s\n}", from, to)
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
			Severity: diag.Warning, Source: diag.FromSite, // nothing is withheld: the new node becomes ready
			Summary: fmt.Sprintf("%s is destroyed and %s created, and they look like one guest", from.Address, to.Address),
			Detail:  "if the node was renamed, this block keeps the guest:\n" + movedBlock(from.Node, to.Node),
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
