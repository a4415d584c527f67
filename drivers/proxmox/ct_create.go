package proxmox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/attribute"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func (c ctTarget) create(ctx context.Context, d worker, _ plan.Step, at view.GuestRef, m owner.Tag) error {
	if c.templateVMID != 0 {
		return d.cloneCT(ctx, c, at, m)
	}
	return d.unpackCT(ctx, c, at, m)
}

// finish: what is missing of the copy is done now.
func (c ctTarget) finish(ctx context.Context, d worker, _ plan.Step, at view.GuestRef, m owner.Tag, _ state) error {
	return d.finishCTClone(ctx, c, at, m)
}

func (ctTarget) completed(context.Context, worker, view.GuestRef, owner.Tag) {}

// unpackCT orders the whole container in one request. The addresses of its cards are
// made up here and not by PVE, so that the ownership tag proves it from the first moment.
func (d worker) unpackCT(ctx context.Context, want ctTarget, at view.GuestRef, m owner.Tag) error {
	m.Slots, m.Keys = want.slots(view.Config{}, nil), hashKeys(want.rootKeys)
	p := ctParams(want.CT, &m, view.Config{})
	for _, disk := range want.Disks {
		slot := m.Slots["disk."+disk.Name]
		p[slot] = disk.Order(slot)
	}
	maps.Copy(p, ctAttributes().Creation(want.CT))
	p["vmid"], p["ostemplate"] = at.VMID, want.source
	if len(want.rootKeys) > 0 {
		p["ssh-public-keys"] = strings.Join(want.rootKeys, "\n")
	}
	return d.created(ctx, at, at, m, d.API.Do(ctx, api.Path("nodes", at.Node, "lxc"), d.makes(p)))
}

// cloneCT copies a template, and gives the copy its identity.
func (d worker) cloneCT(ctx context.Context, want ctTarget, at view.GuestRef, m owner.Tag) error {
	v, err := view.Read(ctx, d.API, d.Model)
	if err != nil {
		return fmt.Errorf("finding template %d: %w", want.templateVMID, err)
	}
	from := view.GuestRef{Node: cmp.Or(v.Guests[want.templateVMID].Node, at.Node), VMID: want.templateVMID, LXC: true}
	cfg, err := view.ReadConfig(ctx, d.API, from)
	if err != nil {
		return fmt.Errorf("looking at template %s: %w", from, err)
	}
	if is := cfg.Now["unprivileged"] == "1"; is != want.Unprivileged {
		return fmt.Errorf("%s cannot be cloned for this: its unprivileged is %v, which no clone can change: set unprivileged = %v, or take another template", from, is, is)
	}
	early := m
	early.VMID = at.VMID // identityMAC enough until the addresses of its cards are known
	p := api.Params{"newid": at.VMID, "hostname": want.Hostname, "description": owner.Describe(want.Description, early), "full": true}
	if root, ok := find(want.Disks, "root"); ok {
		p["storage"] = root.Storage
	}
	if from.Node != at.Node {
		p["target"] = at.Node // only the node that has the template can copy it
	}
	done, err := d.Copies.Take(ctx, from.VMID)
	if err != nil {
		return err
	}
	copied := func() error {
		defer done()
		return d.API.Do(ctx, from.Path("clone"), d.makes(p))
	}
	if err = d.created(ctx, from, at, early, copied()); err != nil {
		return d.withSourceLock(ctx, from, err)
	}
	return d.finishCTClone(ctx, want, at, m)
}

// withSourceLock adds to the failure of a copy that the container which was to be copied
// is locked, and what clears that. PVE locks it before the task of the copy begins, and
// the lock stays where that task does not begin or dies (PVE/API2/LXC.pm, clone_vm).
func (d worker) withSourceLock(ctx context.Context, from view.GuestRef, err error) error {
	if !errors.Is(err, api.ErrOutcomeLost) && api.ClassOf(err) != api.Busy {
		return err
	}
	tasks, taskErr := power.Of(d.Host, from).Tasks(ctx)
	cfg, readErr := view.ReadConfig(ctx, d.API, from)
	if lock := cfg.Now["lock"]; taskErr == nil && readErr == nil && lock != "" {
		return fmt.Errorf("%w; %s", err, power.LockText(from, lock, tasks))
	}
	return err
}

// finishCTClone makes a bare copy of a template what the files say. A copy is either still
// provisional, which its ownership tag says, or complete.
func (d worker) finishCTClone(ctx context.Context, want ctTarget, at view.GuestRef, m owner.Tag) error {
	cfg, is, provisional, err := d.readClone(ctx, at, m.Addr())
	if err != nil || !provisional {
		return err
	}
	if m.Slots = is.Slots; len(m.Slots) == 0 { // else an earlier attempt has begun to fill them
		m.Slots = copied(want.devices(), "rootfs")
	}
	m.Slots = want.slots(cfg, m.Slots)
	w := writing{set: ctParams(want.CT, &m, cfg), gone: map[string]bool{}}
	w.strip(cfg, ctAttributes().Settings(want.CT))
	for key, val := range w.set {
		if cfg.Next[key] == attribute.Text(val) {
			delete(w.set, key)
		}
	}
	for _, disk := range want.Disks {
		if slot := m.Slots["disk."+disk.Name]; cfg.Next[slot] == "" {
			w.set[slot] = disk.Order(slot)
		} else if !sameMount(disk, readCTDisk(disk.Name, cfg.Next[slot])) {
			w.set[slot] = disk.keep(cfg.Next[slot])
		}
	}
	return d.writeCopy(ctx, copying{at, cfg, is, m, want.Description, want.Template}, w)
}

// ctParams are the keys of a whole container but its disks and what only a create
// takes. It gives the ownership tag the address of the first card: that of a card which is
// there is kept, for another one is made up.
func ctParams(c *CT, m *owner.Tag, have view.Config) api.Params {
	m.Options = slices.Sorted(maps.Keys(c.declared()))
	p := ctAttributes().Settings(c).OmitEmpty()
	for k, val := range c.Options {
		p[k] = val
	}
	for i, n := range c.NICs {
		slot := m.Slots["nic."+n.Name]
		mac := cmp.Or(n.MAC, readCTNIC(n.Name, have.Next[slot]).MAC, newMAC())
		if i == 0 {
			m.MAC = mac
		}
		p[slot] = n.text(slot, mac, nil)
	}
	p["description"] = owner.Describe(c.Description, *m)
	return p
}

// newMAC makes up an address under the prefix that PVE makes up its own.
func newMAC() string {
	b := make([]byte, 3)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return fmt.Sprintf("BC:24:11:%02X:%02X:%02X", b[0], b[1], b[2])
}
