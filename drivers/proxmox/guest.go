package proxmox

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// refOf is where a guest of ours is.
func refOf(r *model.Resource) view.GuestRef {
	return view.GuestRef{Node: r.Guest.Node, VMID: r.Guest.VMID, LXC: guestKind(r.Addr) == "ct"}
}

// plural counts things in words: "1 core", "2 cores".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// volumeName finds the volume in a text of PVE, be it named as a file, a logical
// volume or a data set, which carry the VMID of the guest that they were made for.
var volumeName = regexp.MustCompile(`(?:vm|base|subvol)-(\d+)-[\w-]+(?:\.(?:raw|qcow2|vmdk|subvol))?`)

// leftBehind says which volume refused the creation of a guest whose VMID is free, and
// what clears it; "" if it was none. A creation that dies leaves its drive of cloud-init,
// the one volume whose name PVE does not choose by what is free, so no other can be
// made under this VMID. Not `qm destroy --destroy-unreferenced-disks`: that would take
// whatever else carries the VMID, on all storages, be it in use by another guest.
func leftBehind(at view.GuestRef, err error) string {
	if api.ClassOf(err) != api.Exists {
		return ""
	}
	m := volumeName.FindStringSubmatch(err.Error())
	if m == nil || m[1] != strconv.Itoa(at.VMID) {
		return ""
	}
	volume := m[0]
	if strings.Contains(err.Error(), m[1]+"/"+volume) { // a file stands in a folder of its guest; a qcow2 on LVM in none
		volume = m[1] + "/" + volume
	}
	return fmt.Sprintf("no guest has VMID %d, so this is left over from one whose making or removal died: on node %s, `pvesm list STORAGE --vmid %d` shows it, and `pvesm free STORAGE:%s` frees it; a guest without a vmid in the files gets another one from an agent",
		at.VMID, at.Node, at.VMID, volume)
}

// verifyOwner verifies once more that the guest at a reference is the one of an address.
func (d worker) verifyOwner(ctx context.Context, at view.GuestRef, addr model.Address) error {
	cfg, err := view.ReadConfig(ctx, d.API, at)
	if err != nil {
		return fmt.Errorf("looking at it first: %w", err)
	}
	if is := d.ID.Check(cfg, at); !is.IsOwnedAs(addr) {
		return fmt.Errorf("it is not provably %s any more (%s): not changed; plan again", addr, is.Why())
	}
	return nil
}

// makes are the parameters by which a guest is made, with the pool that it joins. A
// guest that joins one gets its tags afterwards: PVE checks the right to them before the
// guest is in its pool, of VMs since qemu-server 9.2.0 and of containers ever since
// (PVE/API2/Qemu.pm, create_vm; pve-guest-common, PVE/GuestHelpers.pm,
// assert_tag_permissions), and the token may have its privileges through the pool alone.
func (d worker) makes(p api.Params) api.Params {
	if d.Model.Pool != "" {
		p["pool"] = d.Model.Pool
		delete(p, "tags")
	}
	return p
}

// created judges the outcome of a create. When the answer was lost or the VMID was
// taken, the guest that has it now decides: ours means that an earlier order got
// through, anything else that it did not. An order whose answer was lost may be at
// work: its task is waited for, which PVE lists under the guest that it works on (of
// a clone what is copied, else at itself).
func (d worker) created(ctx context.Context, worksOn, at view.GuestRef, m owner.Tag, err error) error {
	if err == nil {
		return nil
	}
	if !errors.Is(err, api.ErrOutcomeLost) && api.ClassOf(err) != api.Exists {
		return fmt.Errorf("creating %s: %w", at, err)
	}
	if errors.Is(err, api.ErrOutcomeLost) {
		if _, _, waitErr := power.Of(d.Host, worksOn).AwaitOwnTasks(ctx); waitErr != nil {
			return fmt.Errorf("creating %s: %w; and %w", at, err, waitErr)
		}
	}
	cfg, readErr := view.ReadConfig(ctx, d.API, at)
	if left := leftBehind(at, err); left != "" && d.vacant(ctx, at, readErr) {
		return &model.UnusableVMIDError{VMID: at.VMID, Err: fmt.Errorf("creating %s: %w: %s", at, err, left)}
	}
	if readErr != nil {
		return fmt.Errorf("creating %s: %w; and it cannot be looked at: %w", at, err, readErr)
	}
	is := d.ID.Check(cfg, at)
	lock := cfg.Now["lock"]
	switch {
	case is.IsOwnedAs(m.Addr()) && lock != "create" && lock != "clone": // a container's copy has its description before its task begins
		return nil
	case lock != "":
		return fmt.Errorf("creating %s: %w; its configuration is locked (%s): if no task works on it any more, %s clears it",
			at, err, lock, at.Rescue())
	default:
		return fmt.Errorf("VMID %d was taken by another guest since the plan was made (%s): plan again, it will choose another one or say what to do", at.VMID, is.Why())
	}
}

// vacant reports whether no guest has the VMID of one that could not be read, for readErr.
// With rights on a pool only, one that is not there and one that is hidden look the same.
func (d worker) vacant(ctx context.Context, at view.GuestRef, readErr error) bool {
	switch api.ClassOf(readErr) {
	case api.NotFound:
		return true
	case api.Denied:
		hidden, err := view.IsTaken(ctx, d.API, at.VMID)
		return err == nil && !hidden
	default:
		return false
	}
}

// waiting lists what PVE holds back until the next full restart; path translates a
// key into the name it has in the files.
// stuck says why a key is not reverted although no file asks for what waits; "" for all
// others.
func waiting(c view.Config, addr model.Address, path, stuck func(key string) string, secret ...string) []model.Pending {
	if !c.Waits {
		return nil
	}
	out := []model.Pending{}
	for _, k := range c.WaitingKeys() {
		p := model.Pending{Address: addr, Path: path(k), Why: model.PendingRestart, Before: plainValue(c.Now, k), After: plainValue(c.Next, k)}
		if why := stuck(k); why != "" {
			p.Why += "; " + why
		}
		if slices.Contains(secret, k) {
			p.Before, p.After = model.Sensitive, model.Sensitive
		}
		out = append(out, p)
	}
	return out
}
