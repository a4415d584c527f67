package proxmox

import (
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// place is where a guest is, and as what: PVE keeps VMs and containers under two
// paths of one numbering.
type place struct {
	node string
	vmid int
	lxc  bool
}

func (p place) path(rest ...any) string {
	kind := "qemu"
	if p.lxc {
		kind = "lxc"
	}
	return api.Path(append([]any{"nodes", p.node, kind, p.vmid}, rest...)...)
}

// String names the guest as PVE's own messages do.
func (p place) String() string {
	return fmt.Sprintf("%s %d", strings.ToUpper(p.kind()), p.vmid)
}

// rescue is what an administrator types to be rid of a guest whose making died and
// left its lock, which no API token may take away.
func (p place) rescue() string {
	return fmt.Sprintf("`%s unlock %d && %s destroy %d` on node %s", p.tool(), p.vmid, p.tool(), p.vmid, p.node)
}

// kind is what PVE calls such a guest in its messages and types: ct or vm.
func (p place) kind() string {
	if p.lxc {
		return "ct"
	}
	return "vm"
}

// tool is the command that an administrator handles such a guest with.
func (p place) tool() string {
	if p.lxc {
		return "pct"
	}
	return "qm"
}

// sid is the guest's name in the HA manager.
func (p place) sid() string { return strings.ToLower(strings.ReplaceAll(p.String(), " ", ":")) }
