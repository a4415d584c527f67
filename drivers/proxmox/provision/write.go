package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// writer writes the configuration of guests.
type writer struct{ *kind.Host }

// updater changes guests that exist.
type updater struct{ writer }

// maker makes guests.
type maker struct{ writer }

// patch is what one request changes of a guest's configuration: keys to set, keys
// to delete, keys of which what waits for a restart is reverted.
type patch struct {
	set    api.Params
	del    map[string]bool
	revert map[string]bool
}

// setOrDelete sets a key, or deletes it where the value is none.
func (p patch) setOrDelete(key, val string) {
	if val == "" {
		p.del[key] = true
		return
	}
	p.set[key] = val
}

func (p patch) empty() bool { return len(p.set)+len(p.del)+len(p.revert) == 0 }

// body is the request; digest is that of the configuration which it was worked out for.
func (p patch) body(digest string) api.Params {
	body := api.Params{}
	maps.Copy(body, p.set)
	if len(p.del) > 0 {
		body["delete"] = strings.Join(slices.Sorted(maps.Keys(p.del)), ",")
	}
	if len(p.revert) > 0 {
		body["revert"] = strings.Join(slices.Sorted(maps.Keys(p.revert)), ",")
	}
	body["digest"] = digest
	return body
}

// deleteFromTemplate deletes of a copy what only its template says of what the files always decide.
func (p patch) deleteFromTemplate(copied view.Config, settings api.Params) {
	for key := range copied.Next {
		_, decided := settings[key]
		if p.set[key] == nil && (decided || property.IsNet(key) || strings.HasPrefix(key, "ipconfig")) {
			p.del[key] = true
		}
	}
}

// conflicts reports whether a key that is about to be written or deleted is not what
// it was when the change was worked out. Attributes do not tell: a disk attached by
// hand is none of ours, but may stand in the slot that was free then.
func (p patch) conflicts(old, now view.Config) bool {
	for key := range p.set {
		if now.Next[key] != old.Next[key] {
			return true
		}
	}
	for _, keys := range []map[string]bool{p.del, p.revert} {
		for key := range keys {
			if now.Next[key] != old.Next[key] {
				return true
			}
		}
	}
	return false
}

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

// volumeOrder is a drive that orders a volume to be made.
var volumeOrder = regexp.MustCompile(`^(file=)?[^/:\s,]+:(\d+(\.\d+)?|cloudinit)(,|$)`)

// createsDisk reports whether a key has a volume made.
func (p patch) createsDisk(key string) bool {
	return drives.IsDrive(key) && volumeOrder.MatchString(fmt.Sprint(p.set[key]))
}

func bootOrder(key string) bool { return key == "boot" }

// partition takes keys out of a change: those that are to be sent by another request.
func (p patch) partition(other func(key string) bool) (rest, taken patch) {
	rest, taken = patch{set: api.Params{}, del: p.del}, patch{set: api.Params{}}
	for key, val := range p.set {
		if other(key) {
			taken.set[key] = val
		} else {
			rest.set[key] = val
		}
	}
	return rest, taken
}

// sequence splits a change of a VM for whose disks the ownership tag has to speak: what is detached
// goes together with the ownership tag that says so and with nothing else that might be refused,
// and volumes are made last, for slots that the ownership tag names by then. PVE takes no boot
// order with a device that is not there and not in the same request ("invalid bootorder",
// $update_vm_api), so it goes last, too; and after CD drives, for whose sake PVE would write
// the old order over the new one.
func (p patch) sequence() []patch {
	disc := p.setsCD()
	if p.set["description"] == nil {
		rest, boot := p.partition(func(key string) bool { return disc && key == "boot" })
		if boot.empty() || len(rest.set) == 0 {
			return []patch{p}
		}
		return []patch{rest, boot}
	}
	p, made := p.partition(p.createsDisk)
	first, rest := patch{set: api.Params{"description": p.set["description"]}, del: map[string]bool{}}, patch{set: maps.Clone(p.set), del: map[string]bool{}}
	delete(rest.set, "description")
	for key := range p.del {
		if drives.IsDrive(key) && !strings.HasPrefix(key, "unused") {
			first.del[key] = true
		} else {
			rest.del[key] = true
		}
	}
	steps := []patch{p}
	if len(first.del) > 0 && !rest.empty() {
		steps = []patch{first, rest}
	}
	if last := steps[len(steps)-1]; last.set["boot"] != nil && (disc || !made.empty()) {
		made.set["boot"] = last.set["boot"]
		delete(last.set, "boot")
	}
	if made.empty() {
		return steps
	}
	return append(steps, made)
}

// perVolume splits a change of a container into one without new volumes, and one for each
// of these.
func (p patch) perVolume() []patch {
	rest, made := p.partition(p.createsMount)
	var steps []patch
	if !rest.empty() || made.empty() {
		steps = append(steps, rest)
	}
	for _, slot := range slices.Sorted(maps.Keys(made.set)) {
		steps = append(steps, patch{set: api.Params{slot: made.set[slot]}})
	}
	return steps
}

// createsMount reports whether a key has the volume of a mount point made.
func (p patch) createsMount(key string) bool {
	return drives.IsMount(key) && volumeOrder.MatchString(fmt.Sprint(p.set[key]))
}

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

// readClone reads a copy that has the whole configuration of its template still. bare is
// false where an earlier run whose answer was lost got further: it keeps what it has.
// The mark is the one that it carries.
func (d maker) readClone(ctx context.Context, at view.GuestRef, addr model.Address) (cfg view.Config, m owner.Tag, provisional bool, err error) {
	cfg, err = view.ReadConfig(ctx, d.API, at)
	if err != nil {
		return cfg, m, false, fmt.Errorf("reading the clone %s back: %w", at, err)
	}
	is := d.ID.Check(cfg, at)
	if !is.IsOwnedAs(addr) {
		return cfg, m, false, fmt.Errorf("the clone %s is not the requested one (%s): not changed; plan again", at, is.Why())
	}
	return cfg, is.Tag, is.Tag.Provisional(), nil
}

// clone is a bare copy of a template that is about to be made what the files say.
type clone struct {
	at          view.GuestRef
	cfg         view.Config // as it is now
	provisional owner.Tag   // as it carries it now
	want        owner.Tag   // as it will be
	notes       string
	template    string
}

// writeClone makes a bare copy what the files say. It is bare until all of what it gets
// by the request with the ownership tag was made, and before that of a container all its volumes.
func (d maker) writeClone(ctx context.Context, c clone, w patch) error {
	slotted, disc := false, w.setsCD()
	for key := range w.set {
		slotted = slotted || w.createsDisk(key) && key != drives.CloudInitSlot && !drives.HoldsState(key) || w.createsMount(key)
	}
	var steps []patch
	if slotted && !maps.Equal(c.provisional.Slots, c.want.Slots) {
		c.provisional.Slots = c.want.Slots
		steps = append(steps, patch{set: api.Params{"description": owner.Describe(c.notes, c.provisional)}})
	}
	if c.at.LXC {
		parts := w.perVolume() // the rest, with the ownership tag of a complete one, comes last
		w, steps = parts[0], append(steps, parts[1:]...)
	}
	boot := patch{}
	if disc { // dealt with after the boot order it would have the old one written over that
		w, boot = w.partition(bootOrder)
	}
	l := &lastSeen{at: c.at, addr: c.want.Addr(), cfg: c.cfg, fresh: true}
	for _, step := range append(steps, w, boot) {
		if step.empty() {
			continue
		}
		err := d.withDigest(ctx, l, "", func(digest string) error {
			_, err := d.API.Put(ctx, c.at.Path("config"), step.body(digest))
			return err
		})
		if err != nil {
			return fmt.Errorf("configuring %s, a clone of %s: %w", c.at, c.template, err)
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

// addsEmptyDrive reports whether a change makes a CD drive without a medium.
func (p patch) addsEmptyDrive(key string) bool {
	val := fmt.Sprint(p.set[key])
	return drives.IsDrive(key) && drives.HoldsCD(val) && property.VolumeOf(val) == drives.EmptyMedium
}

// setsCD reports whether a change puts something into a CD drive.
func (p patch) setsCD() bool {
	for key, val := range p.set {
		if drives.IsDrive(key) && drives.HoldsCD(fmt.Sprint(val)) {
			return true
		}
	}
	return false
}
