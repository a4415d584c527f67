// Package provision creates and changes guests, and the templates that are made from images. For a step of the plan
// it computes the keys to write, writes them under the digest that the plan is based on, and updates disks and
// power. If it is interrupted, the next pass finds the guest by its ownership tag and continues.
package provision

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// maker creates guests.
type maker struct{ writer }

// creator creates a guest: a VM or a container.
type creator interface {
	// create creates the guest under a free VMID, or continues what an earlier attempt began.
	create(ctx context.Context, s plan.Step, at api.GuestRef, m owner.Tag) error
	// resumeClone continues with a provisional clone that an earlier attempt left.
	resumeClone(ctx context.Context, s plan.Step, at api.GuestRef, m owner.Tag, have guest.State) error
	// afterCreation is called when the new guest is as wanted.
	afterCreation(ctx context.Context, at api.GuestRef, m owner.Tag)
}

// creatorOf is the creator of a wanted guest.
func (d maker) creatorOf(want guest.Target) creator {
	if c, ok := want.(guest.CTTarget); ok {
		return ctCreator{d, c}
	}
	return vmCreator{d, want.(guest.VMTarget)}
}

// Create creates a guest and returns when it is complete. It reads the guest back before it reports
// success, since some creations of PVE fail without an error.
func Create(ctx context.Context, h *kind.Host, s plan.Step) error {
	d, want := maker{writer{h}}, guest.TargetOf(s.Want)
	c := want.Common()
	at := api.GuestRef{Node: s.Want.Guest.Node, VMID: s.VMID, LXC: c.LXC}
	m := want.Resolved().OwnerTag
	m.Owner, m.CreationVMID = d.ID.Owner, at.VMID
	if err := ensureFiles(ctx, h, at.Node, s, want.Resolved().Files); err != nil {
		return err
	}
	if err := d.creatorOf(want).create(ctx, s, at, m); err != nil {
		return d.withLeftVolumes(ctx, at, s.Want, err)
	}
	return d.completeGuest(ctx, want, at)
}

// ensureFiles fetches the images and downloads that a step uses to the PVE node of its guest, unless that is the host's own:
// there they are before the step. An update uses those of CD drives that change.
func ensureFiles(ctx context.Context, h *kind.Host, node string, s plan.Step, files []guest.File) error {
	if node == h.Model.PVENode() {
		return nil
	}
	for _, f := range files {
		used := s.Action != plan.Update || slices.ContainsFunc(s.Changes, func(c plan.Change) bool {
			text, _ := c.After.(string)
			return strings.HasPrefix(c.Path, "options.") && strings.Contains(text, f.Image.Volume)
		})
		if !used {
			continue
		}
		if err := f.Image.Ensure(ctx, h, node, f.Addr); err != nil {
			return err
		}
	}
	return nil
}

// completeGuest brings a new guest to the wanted state.
func (d maker) completeGuest(ctx context.Context, want guest.Target, at api.GuestRef) error {
	c := want.Common()
	m, err := d.complete(ctx, at, want.Volumes(), c.Tags, c.Power)
	if err == nil {
		d.creatorOf(want).afterCreation(ctx, at, m)
	}
	return err
}

// withLeftVolumes adds to the error of a creation the volumes that it left, if no guest has the
// VMID now and the token may see them. Mostly there are none: PVE frees them.
func (d maker) withLeftVolumes(ctx context.Context, at api.GuestRef, want *model.Resource, err error) error {
	if _, known := errors.AsType[*model.UnusableVMIDError](err); known || errors.Is(err, api.ErrOutcomeLost) || api.EndsPass(ctx, err) {
		return err
	}
	if _, readErr := d.API.ReadConfig(ctx, at); !d.isVacant(ctx, at, readErr) {
		return err
	}
	only := &model.Want{State: model.State{want.Addr: want}}
	var left []string
	for _, name := range guest.DiskStorages(only) {
		if on, readErr := d.API.LeftVolumes(ctx, api.NodeStorage{Node: at.Node, Storage: name}, only, at.VMID, nil); readErr == nil {
			left = append(left, on...)
		}
	}
	if len(left) == 0 {
		return err
	}
	return fmt.Errorf("%w; no guest has VMID %d now, and this is left of it: on node %s, `%s` frees it", err, at.VMID, at.Node, strings.Join(api.FreeCommands(left), " && "))
}

// volumeName finds a volume in a message of PVE: the name of a file, a logical volume or a data
// set, with the VMID of its guest.
var volumeName = regexp.MustCompile(`(?:vm|base|subvol)-(\d+)-[\w-]+(?:\.(?:raw|qcow2|vmdk|subvol))?`)

// leftVolumeHint says which volume kept PVE from creating a guest whose VMID is free, and how to
// free it; "" if none did. An interrupted creation leaves its cloud-init drive, the one volume
// whose name PVE does not choose among the free ones, so no other can be created under this VMID.
// The hint is not `qm destroy --destroy-unreferenced-disks`: that removes whatever has the VMID in
// its name on all storages, even if another guest uses it.
func leftVolumeHint(at api.GuestRef, err error) string {
	if api.ClassOf(err) != api.Exists {
		return ""
	}
	m := volumeName.FindStringSubmatch(err.Error())
	if m == nil || m[1] != strconv.Itoa(at.VMID) {
		return ""
	}
	volume := m[0]
	if strings.Contains(err.Error(), m[1]+"/"+volume) { // a file is in a folder of its guest; a qcow2 on LVM is not
		volume = m[1] + "/" + volume
	}
	return fmt.Sprintf("no guest has VMID %d, so this is left over from an interrupted creation or removal: on node %s, `pvesm list STORAGE --vmid %d` shows it, and `pvesm free STORAGE:%s` frees it; a guest without a vmid in the files gets another one from an agent",
		at.VMID, at.Node, at.VMID, volume)
}

// inPool adds to the parameters of a creation the pool that the guest joins, if any. Such a guest
// gets its tags afterwards: PVE checks the privilege for them before the guest is in its pool, for
// VMs since qemu-server 9.2.0 and for containers always (PVE/API2/Qemu.pm, create_vm;
// pve-guest-common, PVE/GuestHelpers.pm, assert_tag_permissions), and the token may have its
// privileges through the pool alone.
func (d maker) inPool(p api.Params) api.Params {
	if d.Model.Pool != "" {
		p["pool"] = d.Model.Pool
		delete(p, "tags")
	}
	return p
}

// confirmCreated decides whether a creation succeeded. If the answer was lost or the VMID was
// taken, the guest that has the VMID now decides: if it carries the identity, an earlier order was
// carried out, else it was not. The task of an order whose answer was lost may still run, so it
// waits for it. PVE lists that task under worksOn: the source of a clone, else the guest itself.
func (d maker) confirmCreated(ctx context.Context, worksOn, at api.GuestRef, m owner.Tag, err error) error {
	if err == nil {
		return nil
	}
	if !errors.Is(err, api.ErrOutcomeLost) && api.ClassOf(err) != api.Exists {
		return fmt.Errorf("creating %s: %w", at, err)
	}
	if errors.Is(err, api.ErrOutcomeLost) {
		if _, _, waitErr := lifecycle.GuestAt(d.Host, worksOn).AwaitOwnTasks(ctx); waitErr != nil {
			return fmt.Errorf("creating %s: %w; and %w", at, err, waitErr)
		}
	}
	cfg, readErr := d.API.ReadConfig(ctx, at)
	if left := leftVolumeHint(at, err); left != "" && d.isVacant(ctx, at, readErr) {
		return &model.UnusableVMIDError{VMID: at.VMID, Err: fmt.Errorf("creating %s: %w: %s", at, err, left)}
	}
	if readErr != nil {
		return fmt.Errorf("creating %s: %w; and reading it failed: %w", at, err, readErr)
	}
	is := d.ID.Check(cfg, at)
	lock := cfg.Now["lock"]
	switch {
	case is.IsOwnedAs(m.Addr()) && lock != "create" && lock != "clone": // a clone of a container has its description before its task begins
		return nil
	case lock != "":
		return fmt.Errorf("creating %s: %w; its configuration is locked (%s): if no task works on it any more, %s clears it",
			at, err, lock, at.Rescue())
	default:
		return fmt.Errorf("VMID %d was taken by another guest since the plan was made (%s): plan again, it will choose another one or say what to do", at.VMID, is.Why())
	}
}

// isVacant reports whether no guest has a VMID whose configuration could not be read, for readErr.
// A token with privileges on a pool only gets the same error for a guest that does not exist and
// for one that it may not see.
func (d maker) isVacant(ctx context.Context, at api.GuestRef, readErr error) bool {
	switch api.ClassOf(readErr) {
	case api.NotFound:
		return true
	case api.Denied:
		hidden, err := d.API.IsTaken(ctx, at.VMID)
		return err == nil && !hidden
	default:
		return false
	}
}

// complete brings a new guest from what was ordered to what is wanted: it grows disks, writes tags
// and starts the guest. It returns the ownership tag that the guest has.
func (d maker) complete(ctx context.Context, at api.GuestRef, want *guest.Volumes, tags []string, aim string) (owner.Tag, error) {
	cfg, err := d.API.ReadConfig(ctx, at)
	if err != nil {
		return owner.Tag{}, fmt.Errorf("reading %s back: %w", at, err)
	}
	is := d.ID.Check(cfg, at)
	if !is.IsOwnedAs(want.Addr) || is.Tag.Provisional() || at.LXC && cfg.Now["rootfs"] == "" {
		return is.Tag, fmt.Errorf("%s is not what was ordered (%s): its creation was interrupted; if no task works on it any more, %s clears it", at, is.Why(), at.Rescue())
	}
	l := lastSeen{at: at, addr: want.Addr, cfg: cfg, fresh: true}
	for _, w := range want.List {
		slot := is.Tag.Slots["disk."+w.Name]
		if value, there := cfg.Next[slot]; there && w.Size > api.ParseGiB(api.ParseProperty(value).Values["size"]) {
			if err := d.resize(ctx, &l, slot, w.Size); err != nil {
				return is.Tag, err
			}
		}
	}
	lacks := api.Params{}
	if !slices.Equal(api.NormalTags(cfg.Next["tags"]), tags) {
		lacks["tags"] = strings.Join(tags, ";")
	}
	if err := d.recordVolumes(ctx, &l, want, is.Notes, &is.Tag, lacks); err != nil || aim != "running" {
		return is.Tag, err
	}
	return is.Tag, lifecycle.GuestAt(d.Host, at).Start(ctx)
}
