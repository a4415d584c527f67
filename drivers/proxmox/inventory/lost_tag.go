package inventory

import (
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// lostTagFix says what to do about a guest without a readable ownership tag that has the VMID, or the name, of a wanted
// one: the lines by which its node adopts it, and otherwise, if it is another guest. Snapshots do not help: PVE does not
// keep the description of a guest in them (pve-guest-common, AbstractConfig.pm, __snapshot_copy_config).
func lostTagFix(at api.GuestRef, cfg api.GuestConfig, addr model.Address, otherwise string) string {
	identity := owner.IdentityOf(cfg.Next, at)
	switch {
	case api.GuestKind(addr) != at.Kind():
		return "it is not " + addr.String() + ": " + otherwise
	case identity == "":
		return "it has no identity by which it could be adopted: " + otherwise
	}
	return fmt.Sprintf("if it is %s and only lost its ownership tag, these lines in its node adopt it as it is:\n  vmid  = %d\n  adopt = %q\nif it is another guest: %s", addr, at.VMID, identity, otherwise)
}
