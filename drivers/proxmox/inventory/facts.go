package inventory

import (
	"context"
	"reflect"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/engine/model"
)

// withFacts are managed guests with what matters of them beside their configurations. Most guests cost no request.
func (d finder) withFacts(ctx context.Context, obs *kind.Observation, guests model.State) (model.State, error) {
	out := make(model.State, len(guests))
	for _, addr := range guests.Addresses() {
		f, err := d.readFacts(ctx, obs, guests[addr])
		if err != nil {
			return nil, err
		}
		if out[addr] = guests[addr]; !reflect.ValueOf(f).IsZero() {
			out[addr] = f.AddedTo(guests[addr])
		}
	}
	return out, nil
}

// readFacts reads what matters of one guest. The error is one that ends the pass: if something cannot be seen, the step
// that it concerns shows it.
func (d finder) readFacts(ctx context.Context, obs *kind.Observation, r *model.Resource) (f guest.Facts, err error) {
	if f.Lock, err = d.readLock(ctx, r); err != nil {
		return f, err
	}
	have := guest.StateOf(r)
	if have == nil {
		return f, nil
	}
	f.Reported = d.hasReported(have.Observed().Tag)
	if f.QMP, err = d.readQMP(ctx, obs, r); err != nil {
		return f, err
	}
	want := obs.Want.State[r.Addr]
	if want == nil || guest.TargetOf(want) == nil {
		return f, nil
	}
	if f.UselessRestart, err = d.readRestarts(ctx, want, r); err != nil {
		return f, err
	}
	f.Snapshots, err = d.readSnapshots(ctx, want, r)
	return f, err
}

// readLock reads what is to be known of the lock of a guest, nil for one without: whether a task works on it, and if
// none does, whether it is still there, since its task may have ended since the guest was listed.
func (d finder) readLock(ctx context.Context, r *model.Resource) (*guest.Lock, error) {
	if r.Guest.Lock == "" {
		return nil, nil
	}
	at, out := api.RefOf(r), &guest.Lock{Value: r.Guest.Lock}
	tasks, err := lifecycle.GuestAt(d.Host, at).Tasks(ctx)
	if api.EndsPass(ctx, err) {
		return nil, err
	}
	out.Tasks, out.NotListed = tasks, err != nil
	for _, upid := range tasks {
		out.Ours = out.Ours || d.API.StartedByUs(upid)
	}
	if len(tasks) > 0 {
		return out, nil
	}
	cfg, err := d.API.ReadConfig(ctx, at)
	if api.EndsPass(ctx, err) {
		return nil, err
	}
	if err == nil {
		out.Value = cfg.Now["lock"]
	}
	return out, nil
}

// readQMP reads what QEMU says of a VM that has a process and does not execute. The cluster's list shows which these
// are, at most ten seconds late, since pvestatd broadcasts QEMU's status (pve-manager, PVE/Service/pvestatd.pm,
// update_qemu_status). Only such a VM costs a request.
func (d finder) readQMP(ctx context.Context, obs *kind.Observation, r *model.Resource) (string, error) {
	if obs.Guests[r.Guest.VMID].QMP == "" {
		return "", nil
	}
	now, err := lifecycle.GuestAt(d.Host, api.RefOf(r)).State(ctx)
	switch {
	case api.EndsPass(ctx, err):
		return "", err
	case err != nil || !now.Running:
		return "", nil //nolint:nilerr // the power as it is listed counts
	default:
		return now.QMP, nil
	}
}

// readSnapshots reads the snapshots of a guest of which a volume is to be moved or removed. PVE refuses that for a volume
// that a snapshot contains (qemu-server, API2/Qemu.pm, move_vm_disk; pve-container, API2/LXC.pm, move_volume;
// pve-guest-common, AbstractConfig.pm, is_volume_in_use_by_snapshots). All other guests cost no request: the configuration
// shows whether a guest has snapshots at all.
func (d finder) readSnapshots(ctx context.Context, want, r *model.Resource) (map[string]string, error) {
	to, from := guest.TargetOf(want), guest.StateOf(r)
	if from.Observed().Config.Now["parent"] == "" || !from.Volumes().MovesOrRemoves(to.Volumes()) {
		return nil, nil
	}
	inUse, err := d.API.InSnapshots(ctx, api.RefOf(r))
	switch {
	case api.EndsPass(ctx, err):
		return nil, err
	case err != nil:
		return nil, nil //nolint:nilerr // the step itself shows it
	default:
		return inUse, nil
	}
}
