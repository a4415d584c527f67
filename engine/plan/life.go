package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// reservation is what a planned node will have.
type reservation struct {
	Address  model.Address `json:"address"`
	Node     string        `json:"node"`
	Manifest string        `json:"manifest"`
	VMID     int           `json:"vmid"` // 0: none is free, or it is not a guest
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
		out := reservation{Address: addr, Node: r.Node, Manifest: r.Manifest, IP: StaticAddress(d.in.Kinds, r), At: r.At}
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

// Phase is where a node is in its life. It follows from facts, and is stored nowhere.
type Phase string

// The phases, in their order.
const (
	Planned         Phase = "planned"
	Provisioned     Phase = "provisioned"
	Registered      Phase = "registered"
	Validated       Phase = "validated"
	Operating       Phase = "operating"
	Decommissioning Phase = "decommissioning"
	Decommissioned  Phase = "decommissioned"
)

// Phases lists the phases that a node of a status may be in, in their order.
func Phases() []Phase {
	return []Phase{Planned, Provisioned, Registered, Validated, Operating, Decommissioning}
}

// LifeFacts are the facts that a phase follows from.
type LifeFacts struct {
	Exists     bool // its guest is there, and proved to be managed
	Registered bool // every output that shows it was written with its present facts
	Validated  bool // its checks held once since its guest was created
	Healthy    bool // its checks hold now
	Removing   bool // it left the site, and its removal is not complete
	Removed    bool // it left the site, and is gone
}

// Phase is the phase that the facts show: the last one before which no fact is missing.
func (f LifeFacts) Phase() Phase {
	switch {
	case f.Removed:
		return Decommissioned
	case f.Removing:
		return Decommissioning
	case !f.Exists:
		return Planned
	case !f.Registered:
		return Provisioned
	case !f.Validated:
		return Registered
	case !f.Healthy:
		return Validated
	default:
		return Operating
	}
}

// Skipped is the phase that a node left out: its fact is missing, and that of a later phase holds. "" for none.
func (f LifeFacts) Skipped() Phase {
	if f.Exists && !f.Removing && !f.Registered && f.Validated {
		return Registered
	}
	return ""
}

// OutputChange is how a plan changes an output.
type OutputChange struct {
	Name  string   `json:"name"`
	To    string   `json:"to"`    // "" if it is printed only
	Lines []string `json:"lines"` // those that go, with "-" before them, and those that come, with "+"
}

// mostOutputLines bounds the lines of one output in a plan.
const mostOutputLines = 500

// ChangeOf compares two texts of an output line by line; nil if they are the same.
func ChangeOf(name, to, before, after string) *OutputChange {
	a, b := slices.Collect(strings.Lines(before)), slices.Collect(strings.Lines(after))
	out := &OutputChange{Name: name, To: to}
	add := func(sign string, lines ...string) {
		for _, l := range lines {
			if len(out.Lines) < mostOutputLines {
				out.Lines = append(out.Lines, sign+strings.TrimSuffix(l, "\n"))
			}
		}
	}
	for len(a) > 0 {
		if same := slices.Index(b, a[0]); same >= 0 {
			add("+", b[:same]...)
			b = b[same+1:]
		} else {
			add("-", a[0])
		}
		a = a[1:]
	}
	add("+", b...)
	if len(out.Lines) == 0 {
		return nil
	}
	return out
}

// text says what is reserved.
func (r *reservation) text() string {
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
