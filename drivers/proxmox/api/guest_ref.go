package api

import (
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// GuestRef is the location and type of a guest: PVE keeps VMs and containers under two paths of one numbering.
type GuestRef struct {
	Node string
	VMID int
	LXC  bool
}

// Path is the API path of the guest, or of what rest names below it.
func (p GuestRef) Path(rest ...any) string {
	kind := "qemu"
	if p.LXC {
		kind = "lxc"
	}
	return Path(append([]any{"nodes", p.Node, kind, p.VMID}, rest...)...)
}

// String names the guest as PVE's own messages do.
func (p GuestRef) String() string {
	return fmt.Sprintf("%s %d", strings.ToUpper(p.Kind()), p.VMID)
}

// Rescue returns the command that removes a guest whose creation died and
// left its lock, which no API token may take away.
func (p GuestRef) Rescue() string {
	return fmt.Sprintf("`%s unlock %d && %s destroy %d` on node %s", p.Tool(), p.VMID, p.Tool(), p.VMID, p.Node)
}

// Kind returns PVE's name for such a guest in its messages and types: ct or vm.
func (p GuestRef) Kind() string {
	if p.LXC {
		return "ct"
	}
	return "vm"
}

// Tool is the command that an administrator handles such a guest with.
func (p GuestRef) Tool() string {
	if p.LXC {
		return "pct"
	}
	return "qm"
}

// HAName is the guest's name in the HA manager.
func (p GuestRef) HAName() string { return strings.ToLower(strings.ReplaceAll(p.String(), " ", ":")) }

// RefOf returns the node and VMID of a guest of the site, or those that it will have.
func RefOf(r *model.Resource) GuestRef {
	return GuestRef{Node: r.Guest.Node, VMID: r.Guest.VMID, LXC: GuestKind(r.Addr) == "ct"}
}

// GuestKind returns PVE's kind of guest for a kind of node: ct, or vm, which a pve node is too.
func GuestKind(addr model.Address) string {
	if addr.Kind == "ct" {
		return "ct"
	}
	return "vm"
}
