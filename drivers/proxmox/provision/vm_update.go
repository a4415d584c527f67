package provision

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// vmChange is the change of a VM by a step.
type vmChange struct {
	*change
	step plan.Step
	want guest.VMTarget
	have guest.VMState
}

// conclude implements changer: the boot order follows the drives.
func (c *vmChange) conclude() {
	c.keepBootable()
	c.preferReverts(c.have.Config, false, c.have.SameValue)
	c.followBoot()
}

// afterWrite implements changer. It removes a seed from its storage once it is out of the drive,
// since a VM does not start with an image that does not exist.
func (c *vmChange) afterWrite(ctx context.Context, h *kind.Host) error {
	if c.set[api.CloudInitSlot] == nil {
		return nil
	}
	return lifecycle.RemoveSeed(ctx, h, c.lastSeen.at.Node, c.have.Seed)
}

// keepBootable keeps the devices that the VM boots from: a disk that goes to another slot keeps its
// rank, and a root disk that is attached again comes first. PVE removes what is detached from the
// order (qemu-server, PVE/API2/Qemu.pm, update_vm_api).
func (c *vmChange) keepBootable() {
	if len(c.reattach) == 0 || c.want.Options["boot"] != "" || c.set["boot"] != nil {
		return
	}
	moved := map[string]string{}
	for name, from := range c.oldSlot {
		moved[from] = c.tag.Slots["disk."+name]
	}
	old := api.ParseProperty(c.have.Config.Next["boot"]).Values["order"]
	var order []string
	for dev := range strings.SplitSeq(old, ";") {
		if dev = cmp.Or(moved[dev], dev); dev != "" {
			order = append(order, dev)
		}
	}
	root := c.tag.Slots["disk.root"]
	if _, back := c.reattach[root]; back && !slices.Contains(order, root) {
		order = slices.Insert(order, 0, root)
	}
	if now := strings.Join(order, ";"); now != old {
		c.set["boot"] = "order=" + now
	}
}

// followBoot keeps the pending boot order in line with the future drives. With each request PVE
// derives the order again from the one in force (PVE/API2/Qemu.pm, update_vm_api): it appends each
// CD drive that is written, removes what the request deletes, and forgets what an earlier request
// deleted.
func (c *vmChange) followBoot() {
	old := c.have.Config
	order := guest.BootDevices(old.Now["boot"])
	if c.set["boot"] != nil || c.del["boot"] {
		return
	}
	after := old.Reverted(c.revert)
	there := func(dev string) bool { return c.set[dev] != nil || after.Next[dev] != "" && !c.del[dev] }
	disc := func(dev string) bool {
		set, _ := c.set[dev].(string)
		return there(dev) && api.HoldsCD(cmp.Or(set, after.Next[dev]))
	}
	appends := func(key string, val any) bool {
		return len(order) > 0 && guest.IsCD(key, fmt.Sprint(val)) && !slices.Contains(order, key)
	}
	var added []string
	for _, key := range slices.Sorted(maps.Keys(c.set)) {
		if appends(key, c.set[key]) {
			added = append(added, key)
		}
	}
	back := slices.ContainsFunc(slices.Collect(maps.Keys(c.revert)), func(key string) bool { return appends(key, old.Now[key]) })
	stay := slices.DeleteFunc(slices.Clone(order), func(dev string) bool { return !there(dev) })
	goes := slices.ContainsFunc(order, func(dev string) bool { return c.del[dev] })
	went := slices.ContainsFunc(order, func(dev string) bool { return !c.del[dev] && !there(dev) })
	declared := c.want.Options["boot"]
	kept := declared == "" || c.have.SameValue("boot", declared, old.Now["boot"]) || guest.SameOption(old.InForce(), "boot", declared, old.Now["boot"])
	switch {
	case back && !old.IsPending("boot"), len(added) > 0 && (goes || went), goes && went:
	case !old.IsPending("boot") || !kept || guest.BootOrderFollows(old.Now["boot"], old.Next["boot"], there, disc) || !c.have.Revertible("boot"):
		return
	}
	if len(stay) == len(order) {
		c.revert["boot"] = true
	} else if len(stay) > 0 { // PVE does not revert to an order with a deleted device ("invalid bootorder")
		c.set["boot"] = "order=" + strings.Join(append(stay, added...), ";")
	}
}

// add implements changer. It records when the documents of cloud-init change.
func (c *vmChange) add(path string) {
	c.key(path)
	if s := c.step; s.Have.Guest.Running && c.want.ChangesCloudInit(c.have, path) && !guest.IsRevert(c.want, c.have, path) {
		c.tag.Seeded = time.Now().Unix()
	}
}

// key adds the keys that the attribute at path stands for.
func (c *vmChange) key(path string) {
	head, rest, _ := strings.Cut(path, ".")
	name, attr, _ := strings.Cut(rest, ".")
	switch head {
	case "seed":
		c.set[api.CloudInitSlot] = api.EmptyDrive
	case "options":
		if api.HoldsState(rest) && c.want.Options[rest] != "" && isVolumeRevert(c.want, c.have, path, rest) {
			c.revert[rest] = true
			return
		}
		if api.HoldsState(rest) && c.want.Options[rest] != "" && c.have.Config.Next[rest] != "" {
			c.move[rest] = api.StorageOf(c.want.Options[rest]) // with its content; the order would create an empty one
			return
		}
		c.setOrDelete(rest, c.want.Options[rest])
	case "nic":
		c.nic(name, attr)
	case "disk":
		c.changeDisk(name, attr)
	default:
		c.setAttribute(head, guest.VMAttributes(), c.want.VM)
	}
}

func (c *vmChange) nic(name, attr string) {
	n, wanted := guest.Find(c.want.NICs, name)
	if !wanted { // left the files, or was added by hand
		slot := cmp.Or(c.have.Tag.Slots["nic."+name], name)
		c.del[slot] = true
		c.setOrDelete(guest.IPConfigKey(slot), "")
		return
	}
	slot := c.tag.Slots["nic."+name]
	if slices.Contains([]string{"ip", "gateway", "ip6", "gateway6"}, attr) {
		if c.have.Tag.HasNocloudISO() { // nothing in the VM would read it
			return
		}
		key := guest.IPConfigKey(slot)
		c.setOrDelete(key, n.IPConfig(c.have.Config.Next[key]))
		return
	}
	c.set[slot] = n.Text(c.have.Config.Current(slot))
}
