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
	"github.com/homestak/homestak-gitops/engine/model"
)

// writer writes the configuration of guests.
type writer struct{ *kind.Host }

// write sends a patch with the digest that it was planned on. If the digest changed although
// nothing relevant did (PVE renews it also for its own bookkeeping), it sends the patch once more
// with the new one. old is the configuration that was observed, later the patch of the requests
// that follow.
func (d writer) write(ctx context.Context, at api.GuestRef, w, later patch, have *model.Resource, old api.GuestConfig) error {
	if w.empty() {
		return nil
	}
	_, err := d.API.Put(ctx, at.Path("config"), w.body(have.Guest.Digest))
	if api.ClassOf(err) != api.Changed {
		return w.pendingAfterHotplug(err)
	}
	cfg, readErr := d.API.ReadConfig(ctx, at)
	if readErr != nil {
		return fmt.Errorf("%w; and reading it failed: %w", err, readErr)
	}
	is := d.ID.Check(cfg, at)
	if !is.IsOwnedAs(have.Addr) {
		return fmt.Errorf("%w; it can no longer be verified as %s (%s): not changed", err, have.Addr, is.Why())
	}
	fresh := guest.FromConfig(api.ListedGuest{VMID: at.VMID, Node: at.Node, LXC: at.LXC, Running: have.Guest.Running}, cfg, is.Notes, is.Tag)
	if w.conflicts(old, cfg) || later.conflicts(old, cfg) || !reflect.DeepEqual(configuredAttrs(fresh.Spec), configuredAttrs(have.Spec)) {
		return fmt.Errorf("%w: %w", err, errChanged)
	}
	_, err = d.API.Put(ctx, at.Path("config"), w.body(cfg.Digest))
	return w.pendingAfterHotplug(err)
}

// errChanged says that the guest was changed between plan and step.
var errChanged = errors.New("it was changed since the plan was made; plan again")

// configuredAttrs are the attributes that the configuration alone decides. Power and pending
// restart depend on the lists of guests and tasks, too.
func configuredAttrs(spec any) []model.Attr {
	return slices.DeleteFunc(model.Attrs(spec), func(a model.Attr) bool { return a.Path == "power" || a.Path == "pending" })
}

// withVolumes sends a patch in several requests, as long as the remaining keys are not changed meanwhile.
func (d writer) withVolumes(ctx context.Context, l *lastSeen, w patch, have *model.Resource, old api.GuestConfig) error {
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
			delete(others.set, "boot") // PVE removes what is detached from it
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

// pendingAfterHotplug explains the one error after which the work is done: PVE has the new values,
// but the running guest did not accept one of them. The next plan finds that pending, and does not
// try again. That PVE cannot hotplug a new drive without a medium is not an error, since the plan
// announced it.
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
