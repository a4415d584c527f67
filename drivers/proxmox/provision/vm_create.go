package provision

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/template"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// vmCreator creates a VM.
type vmCreator struct {
	maker
	want guest.VMTarget
}

func (d vmCreator) create(ctx context.Context, s plan.Step, at view.GuestRef, m owner.Tag) error {
	m.UUID, m.Seed = uuid.NewString(), guest.SeedRecord(s.Want)
	switch {
	case m.Seed != nil && d.isCreated(ctx, at, s.Address): // its seed may be gone already, and must not come back
		return nil
	case d.want.Template != "":
		return d.clone(ctx, at, m)
	default:
		return d.createWhole(ctx, at, m)
	}
}

// finish: what is missing of the copy is done now.
func (d vmCreator) finish(ctx context.Context, s plan.Step, at view.GuestRef, m owner.Tag, have guest.State) error {
	is := have.Observed()
	m.Linked, m.UUID, m.Seed = is.Tag.Linked, cmp.Or(owner.UUID(is.Config.Next["smbios1"]), uuid.NewString()), guest.SeedRecord(s.Want)
	return d.finishClone(ctx, at, m)
}

// completed takes its seed away from a machine that has read it.
func (d vmCreator) completed(ctx context.Context, at view.GuestRef, m owner.Tag) {
	if d.want.Power == "running" {
		d.removeSeed(ctx, at, m)
	}
}

// createWhole orders the whole machine in one request.
func (d vmCreator) createWhole(ctx context.Context, at view.GuestRef, m owner.Tag) error {
	want, m, err := d.prepareSeed(ctx, at, m)
	if err != nil {
		return err
	}
	m.Slots = want.Slots(view.Config{}, nil)
	p := vmParams(want.VM, m)
	p["vmid"] = at.VMID
	if _, declared := want.Options["boot"]; !declared {
		p["boot"] = want.BootOrder(m)
	}
	p[drives.CloudInitSlot] = want.CloudInitDrive()
	for _, disk := range want.Disks {
		slot := m.Slots["disk."+disk.Name]
		p[slot] = disk.NewValue(slot)
		if disk.Name == "root" && !want.Blank() {
			p[slot] = guest.Drive(fmt.Sprintf("%s:0,import-from=%s", disk.Storage, want.Source), slot)
		}
	}
	return d.confirmCreated(ctx, at, at, m, d.API.Do(ctx, api.Path("nodes", at.Node, "qemu"), d.inPool(p)))
}

// clone copies a template, and gives the copy its identity.
func (d vmCreator) clone(ctx context.Context, at view.GuestRef, m owner.Tag) error {
	want := d.want
	m.Linked = want.Clone == template.Linked
	early := m
	early.UUID, early.VMID = "", at.VMID // identityMAC enough until the copy has a uuid of its own
	p := api.Params{"newid": at.VMID, "name": want.Name, "description": owner.Describe(want.Description, early), "full": !m.Linked}
	if root, ok := guest.Find(want.Disks, "root"); ok && !m.Linked {
		p["storage"] = root.Storage
	}
	from := view.GuestRef{Node: at.Node, VMID: want.TemplateVMID}
	err := d.API.Do(ctx, from.Path("clone"), d.inPool(p))
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
	if err = d.confirmCreated(ctx, from, at, early, err); err != nil {
		return err
	}
	return d.finishClone(ctx, at, m)
}

// finishClone makes a bare copy of a template what the files say: its identity, what it
// lacks, and without what only the template has. A copy is either still bare, which its
// tag tells, or complete. PVE made up a uuid for it, which it keeps: tag and uuid
// written by one request may not both get there.
func (d vmCreator) finishClone(ctx context.Context, at view.GuestRef, m owner.Tag) error {
	want := d.want
	cfg, is, provisional, err := d.readClone(ctx, at, m.Addr())
	if err != nil || !provisional {
		return err
	}
	for _, slot := range want.CDSlots() {
		if there := cfg.Next[slot]; there != "" && !guest.IsCD(slot, there) {
			return fmt.Errorf("configuring %s, a clone of %s: the template has another drive at %s (%s), where options.%s declares a CD drive: take another slot for that", at, want.Template, slot, property.VolumeOf(there), slot)
		}
	}
	m.UUID = cmp.Or(owner.UUID(cfg.Next["smbios1"]), m.UUID)
	want, m, err = d.prepareSeed(ctx, at, m)
	if err != nil {
		return err
	}
	if m.Slots = is.Slots; len(m.Slots) == 0 { // else an earlier attempt has begun to fill them
		m.Slots = guest.CloneSlots(want, guest.BootDisk(cfg.Next))
	}
	m.Slots = want.Slots(cfg, m.Slots)
	w := patch{set: vmParams(want.VM, m), del: map[string]bool{}}
	w.deleteFromTemplate(cfg, guest.VMAttributes().Settings(want.VM))
	for _, n := range want.NICs { // keep the address that PVE made up for the copy
		if slot := m.Slots["nic."+n.Name]; cfg.Next[slot] != "" {
			w.set[slot] = n.Text(cfg.Next[slot])
		}
	}
	for key, val := range w.set {
		if there := cfg.Next[key]; !property.IsNet(key) && there != "" && (drives.HoldsState(key) || options.VM().Same(key, there, fmt.Sprint(val))) {
			delete(w.set, key) // the order of a state drive would make a second, empty one; the copy has the template's
		}
	}
	w.setCloudInitDrive(want, cfg)
	for _, disk := range want.Disks {
		if slot := m.Slots["disk."+disk.Name]; cfg.Next[slot] == "" {
			w.set[slot] = disk.NewValue(slot)
		}
	}
	return d.writeClone(ctx, clone{at, cfg, is, m, want.Description, want.Template}, w)
}

// vmParams are the keys of a whole machine but its drives.
func vmParams(v *guest.VM, m owner.Tag) api.Params {
	m.Options = slices.Sorted(maps.Keys(v.Options))
	p := guest.VMAttributes().Settings(v).OmitEmpty()
	p["description"], p["smbios1"] = owner.Describe(v.Description, m), "uuid="+m.UUID
	for _, n := range v.NICs {
		slot := m.Slots["nic."+n.Name]
		p[slot] = n.Text("")
		if ip := n.IPConfig(""); ip != "" {
			p[guest.IPConfigKey(slot)] = ip
		}
	}
	for k, val := range v.Options {
		p[k] = val
	}
	return p
}
