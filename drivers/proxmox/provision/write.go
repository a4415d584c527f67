package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// writer writes the configuration of guests.
type writer struct{ *kind.Host }

// write sends the keys, with the digest they were planned on. When that digest
// moved although nothing we look at changed (PVE renews it also for its own
// bookkeeping), it is sent once more with the new one. old is what was observed, and
// later what follows by another request.
func (d writer) write(ctx context.Context, at view.GuestRef, w, later patch, have *model.Resource, old view.Config) error {
	if w.empty() {
		return nil
	}
	_, err := d.API.Put(ctx, at.Path("config"), w.body(have.Guest.Digest))
	if api.ClassOf(err) != api.Changed {
		return w.pendingAfterHotplug(err)
	}
	cfg, readErr := view.ReadConfig(ctx, d.API, at)
	if readErr != nil {
		return fmt.Errorf("%w; and it cannot be looked at: %w", err, readErr)
	}
	is := d.ID.Check(cfg, at)
	if !is.IsOwnedAs(have.Addr) {
		return fmt.Errorf("%w; it is not provably %s any more (%s): not changed", err, have.Addr, is.Why())
	}
	fresh := guest.FromConfig(view.Listed{VMID: at.VMID, Node: at.Node, LXC: at.LXC, Running: have.Guest.Running}, cfg, is.Notes, is.Tag)
	if w.conflicts(old, cfg) || later.conflicts(old, cfg) || !reflect.DeepEqual(configuredAttrs(fresh.Spec), configuredAttrs(have.Spec)) {
		return fmt.Errorf("%w: %w", err, errChanged)
	}
	_, err = d.API.Put(ctx, at.Path("config"), w.body(cfg.Digest))
	return w.pendingAfterHotplug(err)
}

// errChanged is a change by somebody else that came between plan and step.
var errChanged = errors.New("somebody changed it since the plan was made; plan again")

// configuredAttrs are the attributes that a configuration alone decides: power and what
// waits for a restart come of the list of guests and of the list of tasks, too.
func configuredAttrs(spec any) []model.Attr {
	return slices.DeleteFunc(model.Attrs(spec), func(a model.Attr) bool { return a.Path == "power" || a.Path == "pending" })
}

// PVE deals with the keys of one change to a VM in the order of a hash, and writes each
// before it looks at the next (qemu-server, PVE/API2/Qemu.pm, $update_vm_api). Where one
// of them fails, any of the others may be waiting there already, volumes made for them
// included; only where none fails do they come into force. A disk that was made and that
// the ownership tag does not name would be made again, so the ownership tag that names the slots goes
// before the disks.
//
// A container's configuration is written once, at the end, and not at all where any key
// failed (pve-container, PVE/API2/LXC/Config.pm, update_vm): a volume that was made for
// another key is lost sight of then, and would be made again. So each volume is ordered by
// a request of its own, behind all else.

// withVolumes writes a change part by part, as long as nobody else touches what the parts
// are about.
func (d writer) withVolumes(ctx context.Context, l *lastSeen, w patch, have *model.Resource, old view.Config) error {
	split := w.sequence
	if l.at.LXC {
		split = w.perVolume
	}
	steps := w.withReverts(split())
	later := patch{set: api.Params{}, del: map[string]bool{}}
	for _, s := range steps[1:] {
		maps.Copy(later.set, s.set)
		maps.Copy(later.del, s.del)
	}
	if err := d.write(ctx, l.at, steps[0], later, have, old); err != nil {
		return err
	}
	l.wrote, old = true, old.Reverted(steps[0].revert)
	for _, s := range steps[1:] {
		if s.empty() {
			continue
		}
		err := d.withDigest(ctx, l, "", func(digest string) error {
			others := patch{set: maps.Clone(s.set), del: maps.Clone(s.del), revert: maps.Clone(s.revert)}
			delete(others.set, "boot") // PVE itself takes out of it what is detached
			delete(others.del, "boot")
			delete(others.revert, "boot")
			if others.conflicts(old, l.cfg) {
				return errChanged
			}
			_, err := d.API.Put(ctx, l.at.Path("config"), s.body(digest))
			return err
		})
		if err = s.pendingAfterHotplug(err); err != nil {
			return err
		}
	}
	return nil
}

// pendingAfterHotplug explains the one refusal after which the work is done: PVE has the new
// values, but the running guest did not take one of them. The next plan finds them
// pending, and tries nothing again. That a new drive without a medium cannot be plugged in
// the plan has said: it is no failure.
func (p patch) pendingAfterHotplug(err error) error {
	api, ok := errors.AsType[*api.Error](err)
	if ok && len(api.Params) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(api.Params)), func(key string) bool {
		return !p.addsEmptyDrive(key) || !strings.Contains(api.Params[key], "hotplug problem - unable to parse volume ID")
	}) {
		return nil
	}
	if !ok || !slices.ContainsFunc(slices.Collect(maps.Values(api.Params)), func(s string) bool { return strings.HasPrefix(s, "hotplug problem") }) {
		return err
	}
	return fmt.Errorf("the running guest did not accept it, so it is pending until its next restart: %w", err)
}
