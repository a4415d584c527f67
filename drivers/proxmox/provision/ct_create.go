package provision

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
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// ctCreator creates a container.
type ctCreator struct {
	maker
	want guest.CTTarget
}

// create implements creator.
func (d ctCreator) create(ctx context.Context, _ plan.Step, at api.GuestRef, m owner.Tag) error {
	if d.want.TemplateVMID != 0 {
		return d.clone(ctx, at, m)
	}
	return d.unpack(ctx, at, m)
}

// resumeClone implements creator.
func (d ctCreator) resumeClone(ctx context.Context, _ plan.Step, at api.GuestRef, m owner.Tag, _ guest.State) error {
	return d.finishClone(ctx, at, m)
}

// afterCreation implements creator.
func (ctCreator) afterCreation(context.Context, api.GuestRef, owner.Tag) {}

// unpack creates the whole container by one request. It chooses the MAC addresses itself, so that
// the ownership tag verifies the container from the start.
func (d ctCreator) unpack(ctx context.Context, at api.GuestRef, m owner.Tag) error {
	want := d.want
	m.Slots, m.Keys = want.Slots(api.GuestConfig{}, nil), guest.HashKeys(want.RootKeys)
	p := ctParams(want.CT, &m, api.GuestConfig{})
	p["description"] = d.ID.Describe(want.Description, m, at, api.GuestConfig{})
	for _, disk := range want.Disks {
		slot := m.Slots["disk."+disk.Name]
		p[slot] = disk.NewValue(slot)
	}
	maps.Copy(p, guest.CTAttributes().Creation(want.CT))
	p["vmid"], p["ostemplate"] = at.VMID, want.Source
	if len(want.RootKeys) > 0 {
		p["ssh-public-keys"] = strings.Join(want.RootKeys, "\n")
	}
	return d.confirmCreated(ctx, at, at, m, d.API.Do(ctx, api.Path("nodes", at.Node, "lxc"), d.inPool(p)))
}

// clone copies a template, and writes the configuration of the clone.
func (d ctCreator) clone(ctx context.Context, at api.GuestRef, m owner.Tag) error {
	want := d.want
	v, err := d.API.ReadView(ctx, d.Model)
	if err != nil {
		return fmt.Errorf("finding template %d: %w", want.TemplateVMID, err)
	}
	from := api.GuestRef{Node: cmp.Or(v.Guests[want.TemplateVMID].Node, at.Node), VMID: want.TemplateVMID, LXC: true}
	cfg, err := d.API.ReadConfig(ctx, from)
	if err != nil {
		return fmt.Errorf("reading template %s: %w", from, err)
	}
	if is := cfg.Now["unprivileged"] == "1"; is != want.Unprivileged {
		return fmt.Errorf("%s cannot be cloned for this: its unprivileged is %v, which no clone can change: set unprivileged = %v, or take another template", from, is, is)
	}
	early := d.ID.Begin(m)
	early.VMID = at.VMID // identifies it until the MAC addresses of its cards are known
	p := api.Params{"newid": at.VMID, "hostname": want.Hostname, "description": d.ID.Describe(want.Description, early, at, api.GuestConfig{}), "full": true}
	if root, ok := guest.Find(want.Disks, "root"); ok {
		p["storage"] = root.Storage
	}
	if from.Node != at.Node {
		p["target"] = at.Node // only the node that has the template can copy it
	}
	done, err := d.Copies.Take(ctx, from.VMID, "another copy of "+from.String())
	if err != nil {
		return err
	}
	copied := func() error {
		defer done()
		return d.API.Do(ctx, from.Path("clone"), d.inPool(p))
	}
	if err = d.confirmCreated(ctx, from, at, early, copied()); err != nil {
		return d.withSourceLock(ctx, from, err)
	}
	return d.finishClone(ctx, at, m)
}

// withSourceLock adds to the error of a copy that its source is locked, and how to clear that. PVE
// locks the source before the task of the copy begins, and the lock stays if that task does not
// begin or dies (PVE/API2/LXC.pm, clone_vm).
func (d ctCreator) withSourceLock(ctx context.Context, from api.GuestRef, err error) error {
	if !errors.Is(err, api.ErrOutcomeLost) && api.ClassOf(err) != api.Busy {
		return err
	}
	tasks, taskErr := lifecycle.GuestAt(d.Host, from).Tasks(ctx)
	cfg, readErr := d.API.ReadConfig(ctx, from)
	if lock := cfg.Now["lock"]; taskErr == nil && readErr == nil && lock != "" {
		return fmt.Errorf("%w; %s", err, lifecycle.LockText(from, lock, tasks))
	}
	return err
}

// finishClone writes the configuration of a provisional clone; one that is not provisional is
// complete.
func (d ctCreator) finishClone(ctx context.Context, at api.GuestRef, m owner.Tag) error {
	want := d.want
	cfg, is, provisional, err := d.readClone(ctx, at, m.Addr())
	if err != nil || !provisional {
		return err
	}
	// The template may have other content by now.
	m.Content, m.Recreate = is.Content, is.Recreate
	if m.Slots = is.Slots; len(m.Slots) == 0 { // else an earlier attempt has assigned them
		m.Slots = guest.CloneSlots(want, "rootfs")
	}
	m.Slots = want.Slots(cfg, m.Slots)
	w := patch{set: ctParams(want.CT, &m, cfg), del: map[string]bool{}}
	w.set["description"] = d.ID.Describe(want.Description, m, at, cfg)
	w.deleteTemplateKeys(cfg, guest.CTAttributes().Settings(want.CT))
	for key, val := range w.set {
		if cfg.Next[key] == guest.ParameterText(val) {
			delete(w.set, key)
		}
	}
	for _, disk := range want.Disks {
		if slot := m.Slots["disk."+disk.Name]; cfg.Next[slot] == "" {
			w.set[slot] = disk.NewValue(slot)
		} else if !disk.SameMount(guest.ReadCTDisk(disk.Name, cfg.Next[slot])) {
			w.set[slot] = disk.KeepValue(cfg.Next[slot])
		}
	}
	return d.writeClone(ctx, clone{at, cfg, is, m, want.Description, want.Template}, w)
}

// ctParams are the keys of a whole container, without its disks, its description, and what only a creation
// takes. It sets the MAC address in the ownership tag to that of the first card: the one that have
// shows, or a new one.
func ctParams(c *guest.CT, m *owner.Tag, have api.GuestConfig) api.Params {
	m.Options = slices.Sorted(maps.Keys(c.Declared()))
	p := guest.CTAttributes().Settings(c).OmitEmpty()
	for k, val := range c.Options {
		p[k] = val
	}
	for i, n := range c.NICs {
		slot := m.Slots["nic."+n.Name]
		mac := cmp.Or(n.MAC, guest.ReadCTNIC(n.Name, have.Next[slot]).MAC, newMAC())
		if i == 0 {
			m.MAC = mac
		}
		p[slot] = n.Text(slot, mac, nil)
	}
	return p
}

// newMAC is a random MAC address with the prefix of PVE's own.
func newMAC() string {
	b := make([]byte, 3)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return fmt.Sprintf("BC:24:11:%02X:%02X:%02X", b[0], b[1], b[2])
}
