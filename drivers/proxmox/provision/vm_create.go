package provision

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// vmCreator creates a VM.
type vmCreator struct {
	maker
	want guest.VMTarget
}

// create implements creator.
func (d vmCreator) create(ctx context.Context, s plan.Step, at api.GuestRef, m owner.Tag) error {
	m.UUID, m.Seed = uuid.NewString(), guest.SeedRecord(s.Want)
	switch {
	case m.Seed != nil && d.isCreated(ctx, at, s.Address): // its seed may be removed already, and must not come back
		return nil
	case d.want.Template != "":
		return d.clone(ctx, at, m)
	default:
		return d.createWhole(ctx, at, m)
	}
}

// resumeClone implements creator.
func (d vmCreator) resumeClone(ctx context.Context, s plan.Step, at api.GuestRef, m owner.Tag, have guest.State) error {
	is := have.Observed()
	m.Linked, m.UUID, m.Seed = is.Tag.Linked, cmp.Or(owner.UUID(is.Config.Next["smbios1"]), uuid.NewString()), guest.SeedRecord(s.Want)
	return d.finishClone(ctx, at, m)
}

// afterCreation implements creator: it removes the seed.
func (d vmCreator) afterCreation(ctx context.Context, at api.GuestRef, m owner.Tag) {
	if d.want.Power == "running" {
		d.removeSeed(ctx, at, m)
	}
}

// createWhole creates the whole VM by one request.
func (d vmCreator) createWhole(ctx context.Context, at api.GuestRef, m owner.Tag) error {
	want, m, err := d.prepareSeed(ctx, at, m)
	if err != nil {
		return err
	}
	m.Slots = want.Slots(api.GuestConfig{}, nil)
	m = d.ID.Begin(m)
	m.Options = slices.Sorted(maps.Keys(want.Options))
	p := vmParams(want.VM, m)
	p["description"] = d.ID.Describe(want.Description, m, at, api.GuestConfig{})
	p["vmid"] = at.VMID
	if _, declared := want.Options["boot"]; !declared {
		p["boot"] = want.BootOrder(m)
	}
	p[api.CloudInitSlot] = want.CloudInitDrive()
	for _, disk := range want.Disks {
		slot := m.Slots["disk."+disk.Name]
		p[slot] = disk.NewValue(slot)
		if disk.Name == "root" && !want.Blank() {
			p[slot] = guest.Drive(fmt.Sprintf("%s:0,import-from=%s", disk.Storage, want.Source), slot)
		}
	}
	return d.confirmCreated(ctx, at, at, m, d.API.Do(ctx, api.Path("nodes", at.Node, "qemu"), d.inPool(p)))
}

// clone copies a template, and writes the configuration of the clone.
func (d vmCreator) clone(ctx context.Context, at api.GuestRef, m owner.Tag) error {
	want := d.want
	m.Linked = want.Clone == guest.LinkedClone
	early := d.ID.Begin(m)
	early.UUID, early.VMID = "", at.VMID // identifies it until the clone has a UUID of its own
	p := api.Params{"newid": at.VMID, "name": want.Name, "description": d.ID.Describe(want.Description, early, at, api.GuestConfig{}), "full": !m.Linked}
	if root, ok := guest.Find(want.Disks, "root"); ok && !m.Linked {
		p["storage"] = root.Storage
	}
	from := api.GuestRef{Node: at.Node, VMID: want.TemplateVMID}
	err := d.API.Do(ctx, from.Path("clone"), d.inPool(p))
	if api.ClassOf(err) == api.NotFound { // only the node of the template can clone it, to another node if the storage is shared
		v, readErr := d.API.ReadView(ctx, d.Model)
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

// finishClone writes the configuration of a provisional clone, with its identity and without the
// keys that only the template has; a clone that is not provisional is complete. The clone keeps the
// UUID that PVE gave it: PVE may write only one of ownership tag and UUID if both are in one
// request.
func (d vmCreator) finishClone(ctx context.Context, at api.GuestRef, m owner.Tag) error {
	want := d.want
	cfg, is, provisional, err := d.readClone(ctx, at, m.Addr())
	if err != nil || !provisional {
		return err
	}
	// The template may have other content by now.
	m.Content, m.Recreate = is.Content, is.Recreate
	for _, slot := range want.CDSlots() {
		if there := cfg.Next[slot]; there != "" && !guest.IsCD(slot, there) {
			return fmt.Errorf("configuring %s, a clone of %s: the template has another drive at %s (%s), where options.%s declares a CD drive: take another slot for that", at, want.Template, slot, api.VolumeOf(there), slot)
		}
	}
	m.UUID = cmp.Or(owner.UUID(cfg.Next["smbios1"]), m.UUID)
	want, m, err = d.prepareSeed(ctx, at, m)
	if err != nil {
		return err
	}
	if m.Slots = is.Slots; len(m.Slots) == 0 { // else an earlier attempt has assigned them
		m.Slots = guest.CloneSlots(want, guest.BootDisk(cfg.Next))
	}
	m.Slots = want.Slots(cfg, m.Slots)
	m.Options = slices.Sorted(maps.Keys(want.Options))
	w := patch{set: vmParams(want.VM, m), del: map[string]bool{}}
	w.set["description"] = d.ID.Describe(want.Description, m, at, cfg)
	w.deleteTemplateKeys(cfg, guest.VMAttributes().Settings(want.VM))
	for _, n := range want.NICs { // keep the MAC address that PVE gave the clone
		if slot := m.Slots["nic."+n.Name]; cfg.Next[slot] != "" {
			w.set[slot] = n.Text(cfg.Next[slot])
		}
	}
	for key, val := range w.set {
		if there := cfg.Next[key]; !api.IsNet(key) && there != "" && (api.HoldsState(key) || guest.VMKeys().Same(key, there, fmt.Sprint(val))) {
			delete(w.set, key) // the clone has the template's state drive; the order would create a second, empty one
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

// vmParams are the keys of a whole VM, without its drives and its description.
func vmParams(v *guest.VM, m owner.Tag) api.Params {
	p := guest.VMAttributes().Settings(v).OmitEmpty()
	maps.Copy(p, guest.VMAttributes().Creation(v))
	p["smbios1"] = "uuid=" + m.UUID
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
