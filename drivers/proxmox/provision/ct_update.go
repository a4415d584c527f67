package provision

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
)

// ctChange is the change of a container by a step.
type ctChange struct {
	*change
	want guest.CTTarget
	have guest.CTState
}

// conclude implements changer: the ownership tag follows the cards.
func (c *ctChange) conclude() {
	c.preferReverts(c.have.Config, true, c.have.SameValue)
	c.tag.MAC = c.identityMAC()
}

// afterWrite implements changer.
func (*ctChange) afterWrite(context.Context, *kind.Host) error { return nil }

// add implements changer.
func (c *ctChange) add(path string) {
	head, rest, _ := strings.Cut(path, ".")
	name, attr, _ := strings.Cut(rest, ".")
	switch head {
	case "options":
		c.setOrDelete(rest, c.want.Options[rest])
	case "nic":
		c.nic(name)
	case "disk":
		c.changeDisk(name, attr)
	default:
		c.setAttribute(head, guest.CTAttributes(), c.want.CT)
	}
}

// nic writes a whole card, with the MAC address that it has.
func (c *ctChange) nic(name string) {
	slot := cmp.Or(c.tag.Slots["nic."+name], c.have.Tag.Slots["nic."+name], name)
	n, wanted := guest.Find(c.want.NICs, name)
	if !wanted { // left the files, or was added by hand
		c.del[slot] = true
		return
	}
	if c.set[slot] == nil {
		there := c.have.Config.Current(slot)
		c.set[slot] = n.Text(slot, cmp.Or(guest.ReadCTNIC(name, there).MAC, newMAC()), c.have.UnmanagedMembers(name, there))
	}
}

// identityMAC is the MAC address by which the ownership tag verifies the container after this
// change: the present one as long as a card has it, else that of the first card.
func (c *ctChange) identityMAC() string {
	after := map[string]string{}
	for key, val := range c.have.Config.Reverted(c.revert).Next {
		if api.IsNet(key) && !c.del[key] {
			after[key] = val
		}
	}
	for key, val := range c.set {
		if api.IsNet(key) {
			after[key] = fmt.Sprint(val)
		}
	}
	for _, val := range after {
		if mac := guest.ReadCTNIC("", val).MAC; mac == c.tag.MAC {
			return mac
		}
	}
	return guest.ReadCTNIC("", after[c.tag.Slots["nic."+c.want.NICs[0].Name]]).MAC
}
