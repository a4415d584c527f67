package plan

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Reservation is what a planned node will have.
type Reservation struct {
	Address  model.Address `json:"address"`
	Node     string        `json:"node"`
	Manifest string        `json:"manifest"`
	VMID     int           `json:"vmid"` // 0: none is free, or it is no guest
	IP       string        `json:"ip"`   // its first static address; "" for none
	At       diag.Range    `json:"at"`
}

// reserve chooses the VMIDs of planned nodes, and lists them in the plan. A planned node whose guest exists keeps it
// unchanged, which a finding says.
func reserve(d *draft, ids *vmids) {
	planned := d.in.Want.Planned
	for _, addr := range planned.Addresses() {
		r := planned[addr]
		switch {
		case r.Guest == nil || r.Guest.VMID == 0:
			continue
		case ids.explicit[r.Guest.VMID] == model.Address{}:
			ids.explicit[r.Guest.VMID] = addr
		}
	}
	for _, addr := range planned.Addresses() {
		r := planned[addr]
		out := Reservation{Address: addr, Node: r.Node, Manifest: r.Manifest, IP: StaticAddress(d.in.Kinds, r), At: r.At}
		f := diag.Finding{Severity: diag.Error, Source: diag.FromGuard, At: r.At}
		switch have := d.have[addr]; {
		case have != nil && have.Guest != nil:
			out.VMID = have.Guest.VMID
			f.Summary = fmt.Sprintf("%s is planned, and exists: it is left unchanged", addr)
			f.Detail = "remove planned from the node, or remove the node, which destroys its guest"
		case r.Guest == nil:
		case r.Guest.VMID == 0:
			if out.VMID = ids.draw(addr, r.Guest.Choose); out.VMID == 0 {
				f.Summary, f.At = fmt.Sprintf("%s is planned, and no VMID is free in %s", addr, ranges(r.Guest.Choose)), r.RangeOf("vmid_range")
				f.Detail = "widen the range in the site block, or name another with vmid_range"
			}
		default:
			out.VMID = r.Guest.VMID
			if by, used := ids.used[out.VMID]; used {
				f.Summary, f.At = fmt.Sprintf("%s is planned, and its VMID %d is taken by %s", addr, out.VMID, by), r.RangeOf("vmid")
				f.Detail = "declare another vmid, or none; unmanaged guests are never changed"
			}
		}
		if d.in.Destroy || d.in.Manifest != "" && d.in.Manifest != r.Manifest || !d.within(addr) && len(d.in.Targets) > 0 {
			continue
		}
		d.plan.Planned = append(d.plan.Planned, out)
		if f.Summary != "" {
			d.find(addr, f)
		}
	}
}

// StaticAddress returns the first static address that a resource declares, "" for none.
func StaticAddress(kinds model.Kinds, r *model.Resource) string {
	kind := kinds.Get(r.Addr.Kind)
	if kind == nil || kind.Claims == nil {
		return ""
	}
	for _, c := range kind.Claims(r.Spec) {
		if ip, err := netip.ParseAddr(strings.TrimSpace(c.Value)); err == nil {
			return ip.String()
		}
	}
	return ""
}

// text says what is reserved.
func (r *Reservation) text() string {
	var with []string
	if r.VMID != 0 {
		with = append(with, fmt.Sprintf("VMID %d", r.VMID))
	}
	if r.IP != "" {
		with = append(with, r.IP)
	}
	if len(with) == 0 {
		return "planned"
	}
	return "planned: " + strings.Join(with, " and ") + " reserved"
}
