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

// writing is what one request changes of a guest's configuration: keys to set, keys
// to delete, keys of which what waits for a restart is reverted.
type writing struct {
	set    api.Params
	gone   map[string]bool
	revert map[string]bool
}

// text sets a key, or deletes it where the value is none.
func (w writing) text(key, val string) {
	if val == "" {
		w.gone[key] = true
		return
	}
	w.set[key] = val
}

func (w writing) empty() bool { return len(w.set)+len(w.gone)+len(w.revert) == 0 }

// body is the request; digest is that of the configuration which it was worked out for.
func (w writing) body(digest string) api.Params {
	p := api.Params{}
	maps.Copy(p, w.set)
	if len(w.gone) > 0 {
		p["delete"] = strings.Join(slices.Sorted(maps.Keys(w.gone)), ",")
	}
	if len(w.revert) > 0 {
		p["revert"] = strings.Join(slices.Sorted(maps.Keys(w.revert)), ",")
	}
	p["digest"] = digest
	return p
}

// strip deletes of a copy what only its template says of what the files always decide.
func (w writing) strip(copied view.Config, settings api.Params) {
	for key := range copied.Next {
		_, decided := settings[key]
		if w.set[key] == nil && (decided || property.IsNet(key) || strings.HasPrefix(key, "ipconfig")) {
			w.gone[key] = true
		}
	}
}

// touched reports whether a key that is about to be written or deleted is not what
// it was when the change was worked out. Attributes do not tell: a disk attached by
// hand is none of ours, but may stand in the slot that was free then.
func (w writing) touched(old, now view.Config) bool {
	for key := range w.set {
		if now.Next[key] != old.Next[key] {
			return true
		}
	}
	for _, keys := range []map[string]bool{w.gone, w.revert} {
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
func (d writer) write(ctx context.Context, at view.GuestRef, w, later writing, have *model.Resource, old view.Config) error {
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
	if w.touched(old, cfg) || later.touched(old, cfg) || !reflect.DeepEqual(configured(fresh.Spec), configured(have.Spec)) {
		return fmt.Errorf("%w: %w", err, errTouched)
	}
	_, err = d.API.Put(ctx, at.Path("config"), w.body(cfg.Digest))
	return w.pendingAfterHotplug(err)
}

// errTouched is a change by somebody else that came between plan and step.
var errTouched = errors.New("somebody changed it since the plan was made; plan again")

// configured are the attributes that a configuration alone decides: power and what
// waits for a restart come of the list of guests and of the list of tasks, too.
func configured(spec any) []model.Attr {
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

// newVolume is a drive that orders a volume to be made.
var newVolume = regexp.MustCompile(`^(file=)?[^/:\s,]+:(\d+(\.\d+)?|cloudinit)(,|$)`)

// orders reports whether a key has a volume made.
func (w writing) orders(key string) bool {
	return drives.IsDrive(key) && newVolume.MatchString(fmt.Sprint(w.set[key]))
}

func bootOrder(key string) bool { return key == "boot" }

// apart takes keys out of a change: those that are to be sent by another request.
func (w writing) apart(other func(key string) bool) (rest, taken writing) {
	rest, taken = writing{set: api.Params{}, gone: w.gone}, writing{set: api.Params{}}
	for key, val := range w.set {
		if other(key) {
			taken.set[key] = val
		} else {
			rest.set[key] = val
		}
	}
	return rest, taken
}

// inTurn splits a change of a VM for whose disks the ownership tag has to speak: what is detached
// goes together with the ownership tag that says so and with nothing else that might be refused,
// and volumes are made last, for slots that the ownership tag names by then. PVE takes no boot
// order with a device that is not there and not in the same request ("invalid bootorder",
// $update_vm_api), so it goes last, too; and after CD drives, for whose sake PVE would write
// the old order over the new one.
func (w writing) inTurn() []writing {
	disc := w.discs()
	if w.set["description"] == nil {
		rest, boot := w.apart(func(key string) bool { return disc && key == "boot" })
		if boot.empty() || len(rest.set) == 0 {
			return []writing{w}
		}
		return []writing{rest, boot}
	}
	w, made := w.apart(w.orders)
	first, rest := writing{set: api.Params{"description": w.set["description"]}, gone: map[string]bool{}}, writing{set: maps.Clone(w.set), gone: map[string]bool{}}
	delete(rest.set, "description")
	for key := range w.gone {
		if drives.IsDrive(key) && !strings.HasPrefix(key, "unused") {
			first.gone[key] = true
		} else {
			rest.gone[key] = true
		}
	}
	steps := []writing{w}
	if len(first.gone) > 0 && !rest.empty() {
		steps = []writing{first, rest}
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

// oneByOne splits a change of a container into one without new volumes, and one for each
// of these.
func (w writing) oneByOne() []writing {
	rest, made := w.apart(w.ordersMount)
	var steps []writing
	if !rest.empty() || made.empty() {
		steps = append(steps, rest)
	}
	for _, slot := range slices.Sorted(maps.Keys(made.set)) {
		steps = append(steps, writing{set: api.Params{slot: made.set[slot]}})
	}
	return steps
}

// ordersMount reports whether a key has the volume of a mount point made.
func (w writing) ordersMount(key string) bool {
	return drives.IsMount(key) && newVolume.MatchString(fmt.Sprint(w.set[key]))
}

// withVolumes writes a change part by part, as long as nobody else touches what the parts
// are about.
func (d writer) withVolumes(ctx context.Context, l *lastSeen, w writing, have *model.Resource, old view.Config) error {
	split := w.inTurn
	if l.at.LXC {
		split = w.oneByOne
	}
	steps := w.withReverts(split())
	later := writing{set: api.Params{}, gone: map[string]bool{}}
	for _, s := range steps[1:] {
		maps.Copy(later.set, s.set)
		maps.Copy(later.gone, s.gone)
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
			others := writing{set: maps.Clone(s.set), gone: maps.Clone(s.gone), revert: maps.Clone(s.revert)}
			delete(others.set, "boot") // PVE itself takes out of it what is detached
			delete(others.gone, "boot")
			delete(others.revert, "boot")
			if others.touched(old, l.cfg) {
				return errTouched
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

// copying is a bare copy of a template that is about to be made what the files say.
type copying struct {
	at          view.GuestRef
	cfg         view.Config // as it is now
	provisional owner.Tag   // as it carries it now
	want        owner.Tag   // as it will be
	notes       string
	template    string
}

// writeCopy makes a bare copy what the files say. It is bare until all of what it gets
// by the request with the ownership tag was made, and before that of a container all its volumes.
func (d maker) writeCopy(ctx context.Context, c copying, w writing) error {
	slotted, disc := false, w.discs()
	for key := range w.set {
		slotted = slotted || w.orders(key) && key != drives.CloudInitSlot && !drives.HoldsState(key) || w.ordersMount(key)
	}
	var steps []writing
	if slotted && !maps.Equal(c.provisional.Slots, c.want.Slots) {
		c.provisional.Slots = c.want.Slots
		steps = append(steps, writing{set: api.Params{"description": owner.Describe(c.notes, c.provisional)}})
	}
	if c.at.LXC {
		parts := w.oneByOne() // the rest, with the ownership tag of a complete one, comes last
		w, steps = parts[0], append(steps, parts[1:]...)
	}
	boot := writing{}
	if disc { // dealt with after the boot order it would have the old one written over that
		w, boot = w.apart(bootOrder)
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
func (w writing) pendingAfterHotplug(err error) error {
	api, ok := errors.AsType[*api.Error](err)
	if ok && len(api.Params) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(api.Params)), func(key string) bool {
		return !w.emptyDrive(key) || !strings.Contains(api.Params[key], "hotplug problem - unable to parse volume ID")
	}) {
		return nil
	}
	if !ok || !slices.ContainsFunc(slices.Collect(maps.Values(api.Params)), func(s string) bool { return strings.HasPrefix(s, "hotplug problem") }) {
		return err
	}
	return fmt.Errorf("the running guest did not accept it, so it is pending until its next restart: %w", err)
}

// emptyDrive reports whether a change makes a CD drive without a medium.
func (w writing) emptyDrive(key string) bool {
	val := fmt.Sprint(w.set[key])
	return drives.IsDrive(key) && drives.HoldsCD(val) && property.VolumeOf(val) == drives.EmptyMedium
}

// discs reports whether a change puts something into a CD drive.
func (w writing) discs() bool {
	for key, val := range w.set {
		if drives.IsDrive(key) && drives.HoldsCD(fmt.Sprint(val)) {
			return true
		}
	}
	return false
}
