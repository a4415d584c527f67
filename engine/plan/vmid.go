package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// The VMIDs that PVE allows (pve-common, JSONSchema.pm, pve-vmid).
const (
	minVMID = 100
	maxVMID = 999_999_999
)

// vmids has the present and the future VMIDs.
type vmids struct {
	used     map[int]string        // on the host or its cluster, and by what
	owner    map[int]model.Address // of those, which are managed
	explicit map[int]model.Address // declared; of two the first by address
	next     map[model.VMIDRange]int
	avoid    []int
}

// chooseVMIDs assigns a VMID to every wanted guest: the existing one, else the declared one, else the lowest free
// one in the order of addresses. Planned nodes choose first, so that a new guest does not take the VMID of one. It ignores the limits of the plan, so that a limited plan and a full one choose
// alike. A VMID that this plan frees is not free within it.
func (d *draft) chooseVMIDs() vmids {
	ids := vmids{used: maps.Clone(d.in.Have.Taken), owner: make(map[int]model.Address, len(d.have)), explicit: make(map[int]model.Address, len(d.want)), next: map[model.VMIDRange]int{}, avoid: d.in.Avoid}
	if ids.used == nil {
		ids.used = map[int]string{}
	}
	for _, f := range d.in.Have.Unmanaged {
		ids.takenBy(f.VMID, strings.TrimSpace(f.Kind+" "+f.Name))
	}
	for _, u := range d.in.Have.Unknown {
		ids.takenBy(u.VMID, u.Scope)
	}
	for _, addr := range d.addrs {
		if r := d.have[addr]; r != nil && r.Guest != nil {
			ids.takenBy(r.Guest.VMID, addr.String())
			ids.owner[r.Guest.VMID] = addr
		}
		if r := d.want[addr]; r != nil && r.Guest != nil && r.Guest.VMID != 0 {
			if _, twice := ids.explicit[r.Guest.VMID]; !twice {
				ids.explicit[r.Guest.VMID] = addr
			}
		}
	}
	reserve(d, &ids)
	chosen := make(model.State, len(d.want))
	for _, addr := range d.addrs {
		r := d.want[addr]
		if r == nil {
			continue
		}
		if r.Guest != nil && r.Guest.VMID == 0 {
			if have := d.have[addr]; have != nil && have.Guest != nil {
				r = numbered(r, have.Guest.VMID)
			} else {
				r = numbered(r, ids.draw(addr, r.Guest.Choose))
			}
		}
		chosen[addr] = r
	}
	d.want = chosen
	for addr, r := range chosen {
		if job, ok := r.Spec.(*model.BackupJob); ok {
			c, spec := *r, *job
			spec.Number(func(guest model.Address) int { return vmidOf(d.want[guest], d.have[guest]) })
			c.Spec = &spec
			chosen[addr] = &c
			if len(spec.VMIDs) == 0 { // all of its nodes are planned, or have no VMID: a job of none would be one of all guests
				delete(chosen, addr)
				if d.have[addr] == nil {
					d.addrs = slices.DeleteFunc(d.addrs, func(a model.Address) bool { return a == addr })
				}
			}
		}
	}
	return ids
}

// vmidOf is the VMID of a guest, wanted or observed; 0 if neither has one.
func vmidOf(want, have *model.Resource) int {
	for _, r := range []*model.Resource{want, have} {
		if r != nil && r.Guest != nil && r.Guest.VMID != 0 {
			return r.Guest.VMID
		}
	}
	return 0
}

// numbered copies a guest with a VMID; the spec is shared.
func numbered(r *model.Resource, vmid int) *model.Resource {
	c, g := *r, *r.Guest
	g.VMID = vmid
	c.Guest = &g
	return &c
}

func (v *vmids) takenBy(vmid int, what string) {
	if vmid != 0 && v.used[vmid] == "" {
		v.used[vmid] = what
	}
}

// draw takes the lowest free VMID of the ranges, 0 if they are full. Nothing is
// ever given back, so each range is walked once for all guests. Those to avoid come
// last: the leftover may be gone by now, and if not it is reported again.
func (v *vmids) draw(addr model.Address, ranges []model.VMIDRange) int {
	if len(ranges) == 0 {
		ranges = []model.VMIDRange{{From: minVMID, To: maxVMID}}
	}
	for _, r := range ranges {
		id := max(r.From, minVMID, v.next[r])
		for ; id <= min(r.To, maxVMID); id++ {
			if v.free(id) && !slices.Contains(v.avoid, id) {
				v.used[id] = addr.String()
				v.next[r] = id + 1
				return id
			}
		}
		v.next[r] = id
	}
	for _, r := range ranges {
		for _, id := range v.avoid {
			if v.free(id) && id >= max(r.From, minVMID) && id <= min(r.To, maxVMID) {
				v.used[id] = addr.String()
				return id
			}
		}
	}
	return 0
}

// free reports whether a VMID is neither used nor declared.
func (v *vmids) free(id int) bool {
	_, used := v.used[id]
	_, promised := v.explicit[id]
	return !used && !promised
}

// guardVMID withholds a step whose VMID cannot be had, and notes which step must
// free it first.
func (g *guard) guardVMID(s *Step) {
	guest := s.Want.Guest
	if guest == nil || (s.Have != nil && s.Have.Guest != nil && s.Have.Guest.VMID == guest.VMID) {
		return
	}
	declared := g.in.Want.State[s.Address].Guest
	if s.Have != nil && s.Have.Guest != nil && s.Have.Guest.Renumbered.Why != "" {
		g.refuse(s, diag.FromGuard, s.Have.Guest.Renumbered.Why, s.Have.Guest.Renumbered.Fix) // it may be all that is left of it
		return
	}
	if guest.VMID == 0 {
		full := ranges(declared.Choose)
		g.full[full] = append(g.full[full], s) // reported together
		return
	}
	if declared.VMID == 0 {
		return // drawn from what is free
	}
	if first := g.ids.explicit[guest.VMID]; first != s.Address {
		g.refuseAt(s, "vmid", fmt.Sprintf("VMID %d is declared for %s as well", guest.VMID, first), "declare another vmid, or none")
		return
	}
	owner, ours := g.ids.owner[guest.VMID]
	what, used := g.ids.used[guest.VMID]
	switch {
	case ours && g.frees(owner, guest.VMID):
		g.reuse[s.Address], g.reusedBy[owner] = owner, s.Address
	case ours && g.withheld[owner].postponed:
		g.postpone(s, fmt.Sprintf("%s: VMID %d is still that of %s", s.Action.not(), guest.VMID, owner), g.withheld[owner].forGood)
	case ours:
		g.refuseAt(s, "vmid", fmt.Sprintf("VMID %d is that of %s, which stays", guest.VMID, owner), "declare another vmid, or none")
	case used:
		g.refuseAt(s, "vmid", fmt.Sprintf("VMID %d is taken by %s", guest.VMID, what), "declare another vmid, or none; unmanaged guests are never changed")
	}
}

// guardRanges withholds those for which no VMID is left, and says so once for each range.
func (g *guard) guardRanges() {
	for _, full := range slices.Sorted(maps.Keys(g.full)) {
		var who []model.Address
		for _, s := range g.full[full] {
			who = append(who, s.Address)
		}
		first := g.full[full][0]
		g.find(first.Address, diag.Finding{
			Severity: diag.Error, Source: diag.FromSite, At: first.Want.RangeOf("vmid_range"),
			Summary: those(who, first.Action.not()) + ": no VMID is free in " + full,
			Detail:  "widen the range in the site block, or name another with vmid_range",
		})
		for _, s := range g.full[full] {
			g.withhold(s, false)
		}
	}
}

// frees reports whether a step of this plan makes the owner of a VMID give it up.
func (d *draft) frees(owner model.Address, vmid int) bool {
	s := d.steps[owner]
	if s == nil {
		return false
	}
	return s.Action == Delete || (s.Action == Replace && s.Want.Guest.VMID != vmid)
}

func ranges(of []model.VMIDRange) string {
	if len(of) == 0 {
		return fmt.Sprintf("%d–%d", minVMID, maxVMID)
	}
	texts := make([]string, len(of))
	for i, r := range of {
		texts[i] = fmt.Sprintf("range %q (%d–%d)", r.Name, r.From, r.To)
	}
	return strings.Join(texts, ", ")
}
