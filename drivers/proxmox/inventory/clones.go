package inventory

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/model"
)

// withClones are managed guests, the templates among them with their linked clones: by the configurations that were
// read, and by the list of disks on the storage, which costs a request for each template. That list has
// only disks that the token may see (Datastore.Audit, and VM.Config.Disk on their guest:
// PVE/Storage.pm, check_volume_access), and is empty without an error if it may see none. PVE
// itself refuses to remove a template with clones that neither source shows.
func (d finder) withClones(ctx context.Context, obs *kind.Observation, guests model.State) (model.State, error) {
	out, byVMID := maps.Clone(guests), map[int]*model.Resource{}
	for _, r := range guests {
		byVMID[r.Guest.VMID] = r
	}
	isTemplate := func(r *model.Resource) bool { _, is := r.Spec.(*guest.Template); return is }
	for _, addr := range guests.Find(isTemplate) {
		r := guests[addr]
		t := *r.Spec.(*guest.Template)
		ids, err := d.API.ClonesOfVolume(ctx, r.Guest.Node, t.DiskVolume)
		if api.EndsPass(ctx, err) {
			return nil, err
		}
		t.Unobservable = err
		for at, a := range obs.Configs {
			if isLinkedTo(a.Config, t.DiskVolume) {
				ids = append(ids, at.VMID)
			}
		}
		slices.Sort(ids)
		for _, id := range slices.Compact(ids) {
			c := guest.TemplateClone{VMID: id, Name: obs.Guests[id].Name}
			if o := byVMID[id]; o != nil {
				c.Addr, c.NeedsTemplate = o.Addr, slices.Contains(o.Needs, addr)
			}
			t.Clones = append(t.Clones, c)
		}
		with := *r
		with.Spec, out[addr] = &t, &with
	}
	return out, nil
}

// isLinkedTo reports whether a disk of a guest is a linked clone of a base volume, or will be after
// a restart.
func isLinkedTo(c api.GuestConfig, base string) bool {
	if base == "" {
		return false
	}
	for _, keys := range []map[string]string{c.Now, c.Next} {
		for _, val := range keys {
			if strings.Contains(val, base+"/") && strings.HasPrefix(api.VolumeOf(val), base+"/") {
				return true
			}
		}
	}
	return false
}
