package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func (v vmTarget) create(ctx context.Context, d worker, s plan.Step, at view.GuestRef, m owner.Tag) error {
	m.UUID, m.Seed = uuid.NewString(), newSeed(s.Want)
	switch {
	case m.Seed != nil && d.made(ctx, at, s.Address): // its seed may be gone already, and must not come back
		return nil
	case v.Template != "":
		return d.clone(ctx, v, at, m)
	default:
		return d.createWhole(ctx, v, at, m)
	}
}

// finish: what is missing of the copy is done now.
func (v vmTarget) finish(ctx context.Context, d worker, s plan.Step, at view.GuestRef, m owner.Tag, have state) error {
	is := have.common()
	m.Linked, m.UUID, m.Seed = is.tag.Linked, cmp.Or(owner.UUID(is.observe.Next["smbios1"]), uuid.NewString()), newSeed(s.Want)
	return d.finishClone(ctx, v, at, m)
}

// completed takes its seed away from a machine that has read it.
func (v vmTarget) completed(ctx context.Context, d worker, at view.GuestRef, m owner.Tag) {
	if v.Power == "running" {
		d.unseed(ctx, v, at, m)
	}
}

// createWhole orders the whole machine in one request.
func (d worker) createWhole(ctx context.Context, want vmTarget, at view.GuestRef, m owner.Tag) error {
	want, m, err := d.seed(ctx, want, at, m)
	if err != nil {
		return err
	}
	m.Slots = want.slots(view.Config{}, nil)
	p := vmParams(want.VM, m)
	p["vmid"] = at.VMID
	if _, declared := want.Options["boot"]; !declared {
		p["boot"] = want.booting(m)
	}
	p[drives.CloudInitSlot] = want.medium()
	for _, disk := range want.Disks {
		slot := m.Slots["disk."+disk.Name]
		p[slot] = disk.Order(slot)
		if disk.Name == "root" && !want.blank() {
			p[slot] = drive(fmt.Sprintf("%s:0,import-from=%s", disk.Storage, want.source), slot)
		}
	}
	return d.created(ctx, at, at, m, d.API.Do(ctx, api.Path("nodes", at.Node, "qemu"), d.makes(p)))
}

// clone copies a template, and gives the copy its identity.
func (d worker) clone(ctx context.Context, want vmTarget, at view.GuestRef, m owner.Tag) error {
	m.Linked = want.Clone == cloneLinked
	early := m
	early.UUID, early.VMID = "", at.VMID // identityMAC enough until the copy has a uuid of its own
	p := api.Params{"newid": at.VMID, "name": want.Name, "description": owner.Describe(want.Description, early), "full": !m.Linked}
	if root, ok := find(want.Disks, "root"); ok && !m.Linked {
		p["storage"] = root.Storage
	}
	from := view.GuestRef{Node: at.Node, VMID: want.templateVMID}
	err := d.API.Do(ctx, from.Path("clone"), d.makes(p))
	if api.ClassOf(err) == api.NotFound { // only the node that has the template can copy it, and to another one where the storage is shared
		v, readErr := view.Read(ctx, d.API, d.Model)
		if readErr != nil {
			return fmt.Errorf("finding template %d: %w", from.VMID, readErr)
		}
		if g, there := v.Guests[from.VMID]; there && g.Node != at.Node {
			from.Node, p["target"] = g.Node, at.Node
			err = d.API.Do(ctx, from.Path("clone"), p)
		}
	}
	if err = d.created(ctx, from, at, early, err); err != nil {
		return err
	}
	return d.finishClone(ctx, want, at, m)
}

// finishClone makes a bare copy of a template what the files say: its identity, what it
// lacks, and without what only the template has. A copy is either still bare, which its
// tag tells, or complete. PVE made up a uuid for it, which it keeps: tag and uuid
// written by one request may not both get there.
func (d worker) finishClone(ctx context.Context, want vmTarget, at view.GuestRef, m owner.Tag) error {
	cfg, is, provisional, err := d.readClone(ctx, at, m.Addr())
	if err != nil || !provisional {
		return err
	}
	for _, slot := range want.cds() {
		if there := cfg.Next[slot]; there != "" && !isCD(slot, there) {
			return fmt.Errorf("configuring %s, a clone of %s: the template has another drive at %s (%s), where options.%s declares a CD drive: take another slot for that", at, want.Template, slot, property.VolumeOf(there), slot)
		}
	}
	m.UUID = cmp.Or(owner.UUID(cfg.Next["smbios1"]), m.UUID)
	want, m, err = d.seed(ctx, want, at, m)
	if err != nil {
		return err
	}
	if m.Slots = is.Slots; len(m.Slots) == 0 { // else an earlier attempt has begun to fill them
		m.Slots = copied(want.devices(), bootDisk(cfg.Next))
	}
	m.Slots = want.slots(cfg, m.Slots)
	w := writing{set: vmParams(want.VM, m), gone: map[string]bool{}}
	w.strip(cfg, vmAttributes().Settings(want.VM))
	for _, n := range want.NICs { // keep the address that PVE made up for the copy
		if slot := m.Slots["nic."+n.Name]; cfg.Next[slot] != "" {
			w.set[slot] = card(cfg.Next[slot], n)
		}
	}
	for key, val := range w.set {
		if there := cfg.Next[key]; !property.IsNet(key) && there != "" && (drives.HoldsState(key) || options.VM().Same(key, there, fmt.Sprint(val))) {
			delete(w.set, key) // the order of a state drive would make a second, empty one; the copy has the template's
		}
	}
	want.swapMedium(cfg, w)
	for _, disk := range want.Disks {
		if slot := m.Slots["disk."+disk.Name]; cfg.Next[slot] == "" {
			w.set[slot] = disk.Order(slot)
		}
	}
	return d.writeCopy(ctx, copying{at, cfg, is, m, want.Description, want.Template}, w)
}

// bootDisk is the slot of the disk a guest boots from.
func bootDisk(c map[string]string) string {
	order := property.Parse(c["boot"]).Values["order"]
	for slot := range strings.SplitSeq(order, ";") {
		if drives.IsDrive(slot) && c[slot] != "" && !strings.Contains(c[slot], "media=cdrom") {
			return slot
		}
	}
	for _, slot := range []string{"scsi0", "virtio0", "sata0", "ide0"} {
		if c[slot] != "" {
			return slot
		}
	}
	return "scsi0"
}

// vmParams are the keys of a whole machine but its drives.
func vmParams(v *VM, m owner.Tag) api.Params {
	m.Options = slices.Sorted(maps.Keys(v.Options))
	p := vmAttributes().Settings(v).OmitEmpty()
	p["description"], p["smbios1"] = owner.Describe(v.Description, m), "uuid="+m.UUID
	for _, n := range v.NICs {
		slot := m.Slots["nic."+n.Name]
		p[slot] = card("", n)
		if ip := n.ipconfig(""); ip != "" {
			p[ipconfigOf(slot)] = ip
		}
	}
	for k, val := range v.Options {
		p[k] = val
	}
	return p
}

// ipconfig is the card's addresses in PVE's form, with what else the key holds; "" for
// none.
func (n NIC) ipconfig(old string) string {
	return property.Parse(old).With(map[string]string{"ip": n.IP, "gw": n.Gateway, "ip6": n.IP6, "gw6": n.Gateway6}, "")
}
