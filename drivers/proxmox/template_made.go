package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/removal"
	"github.com/homestak/homestak-gitops/drivers/proxmox/storage"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// A VM template made here is a guest with an ownership tag of its own type. Making one is two
// steps for PVE, a machine and its conversion; what is cut off between them is seen
// by the next pass and brought to its end.

// How a template is cloned.
const (
	cloneFull   = "full"
	cloneLinked = "linked"
)

const notConverted = " (not converted yet)"

// fromImage completes a template that is made from an image.
func (t *Template) fromImage(in model.Scope) []model.Problem {
	var out []model.Problem
	if t.VMID == 0 {
		out = append(out, model.Problem{
			Path: "vmid", Summary: fmt.Sprintf("template %q has no vmid", in.Name),
			Detail: "a template made from an image gets the VMID that is declared, so that every host and every clone knows it: set vmid to one that is free",
		})
	}
	if t.Checksum != "" {
		out = append(out, model.Problem{Path: "checksum", Summary: "a template from an image has no checksum of its own", Detail: "the image has one: declare it there"})
	}
	if h := in.Host; t.Storage == "" && h != nil && h.Storage != nil {
		t.Storage = h.Storage.Disks
	}
	t.Storage = cmp.Or(t.Storage, "local-lvm")
	if img := objects.ImageOf(in, t.Image); img != nil {
		t.volume, t.Made = img.Volume, path.Base(img.Volume)
		if img.Format == "iso" {
			out = append(out, model.Problem{Path: "image", Summary: fmt.Sprintf("image %q is an ISO image", t.Image), Detail: "a template is made from a disk image (qcow2, raw or vmdk)"})
		}
	}
	r := guestResolver{in: in, kind: owner.TemplateType}
	t.tag = r.owner("image."+t.Image, nil)
	t.tag.Content, t.tag.Slots = t.Made, map[string]string{"disk.root": removal.TemplateSlot}
	return out
}

// makeTemplate makes a machine of the image and converts it.
func makeTemplate(ctx context.Context, d worker, s plan.Step, want *Template) error {
	at := view.GuestRef{Node: s.Want.Guest.Node, VMID: s.VMID}
	m := want.tag
	m.Owner, m.UUID, m.CreationVMID = d.ID.Host, uuid.NewString(), at.VMID
	p := api.Params{ // little is said here: a clone gets what its own files say
		"vmid": at.VMID, "name": m.Node, "cores": 1, "memory": "512", "ostype": "l26", "scsihw": "virtio-scsi-single", "serial0": "socket",
		"tags": owner.PVETag, "description": m.Line(), "smbios1": "uuid=" + m.UUID, "boot": "order=" + removal.TemplateSlot,
		removal.TemplateSlot: drive(fmt.Sprintf("%s:0,import-from=%s", want.Storage, want.volume), removal.TemplateSlot),
	}
	if err := d.created(ctx, at, at, m, d.API.Do(ctx, api.Path("nodes", at.Node, "qemu"), d.makes(p))); err != nil {
		return err
	}
	return d.convert(ctx, at, s.Address)
}

// remakeTemplate brings a template that is there to its wanted content: one that is
// not converted yet is converted, any other is recreated.
func remakeTemplate(ctx context.Context, d worker, s plan.Step, want, have *Template) error {
	if s.Have.Guest != nil && want.Image != "" && have.tag.Content == want.Made && have.unfinished() {
		return d.convert(ctx, view.GuestRef{Node: s.Have.Guest.Node, VMID: s.Have.Guest.VMID}, s.Address)
	}
	if err := leaveTemplate(ctx, d, s); err != nil {
		return err
	}
	return createTemplate(ctx, d, s, want)
}

// convert makes a template of a machine of ours. PVE notes that it is one before it
// touches the disk; where it died between the two, the disk alone is done again
// (qemu-server, PVE/API2/Qemu.pm, template).
func (d worker) convert(ctx context.Context, at view.GuestRef, addr model.Address) error {
	var failed error
	tried, tagged := false, false
	for {
		cfg, err := view.ReadConfig(ctx, d.API, at)
		if err != nil {
			return fmt.Errorf("looking at %s, which is to become a template: %w", at, errors.Join(err, failed))
		}
		switch is := d.ID.Check(cfg, at); {
		case !is.IsOwnedAs(addr):
			return fmt.Errorf("%s is not what was ordered (%s): its creation died half-way; if no task works on it any more, %s clears it", at, is.Why(), at.Rescue())
		case isTemplate(cfg):
			return nil
		case !tagged && !slices.Contains(property.Tags(cfg.Next["tags"]), owner.PVETag): // it was made without, to join a pool
			tagged = true
			tags := strings.Join(append(property.Tags(cfg.Next["tags"]), owner.PVETag), ";")
			if _, err := d.API.Put(ctx, at.Path("config"), api.Params{"tags": tags, "digest": cfg.Digest}); err != nil {
				return fmt.Errorf("tagging %s: %w", at, err)
			}
			continue
		case cfg.Next[removal.TemplateSlot] == "":
			return fmt.Errorf("%s has no disk at %s, so it cannot become %s: remove it, and it is recreated", at, removal.TemplateSlot, addr)
		case failed != nil:
			return fmt.Errorf("converting %s to a template: %w", at, failed)
		case tried:
			return fmt.Errorf("PVE converted %s, but %s is not a base of clones: does the type of storage %s have templates? Move the disk there to another one, or declare another storage and remove VM %d",
				at, cfg.Next[removal.TemplateSlot], property.StorageOf(cfg.Next[removal.TemplateSlot]), at.VMID)
		}
		p := api.Params{}
		if cfg.Now["template"] == "1" {
			p["disk"] = removal.TemplateSlot
		}
		if failed = d.API.Do(ctx, at.Path("template"), p); errors.Is(failed, api.ErrOutcomeLost) { // it may be at work
			if _, _, err := power.Of(d.Host, at).AwaitOwnTasks(ctx); err != nil {
				return fmt.Errorf("converting %s to a template: %w; and %w", at, failed, err)
			}
		}
		tried = true
	}
}

// isTemplate reports whether a machine is a template as a whole, and can be cloned.
func isTemplate(cfg view.Config) bool {
	_, name, _ := strings.Cut(property.VolumeOf(cfg.Now[removal.TemplateSlot]), ":")
	return cfg.Now["template"] == "1" && strings.HasPrefix(path.Base(name), "base-")
}

// observedTemplate reads a template of ours.
func observedTemplate(g view.Listed, cfg view.Config, m owner.Tag) *model.Resource {
	t := &Template{Made: m.Content, tag: m, volume: property.VolumeOf(cfg.Now[removal.TemplateSlot])}
	if !isTemplate(cfg) {
		t.Made += notConverted
	}
	return &model.Resource{
		Addr: m.Addr(), Spec: t, Needs: m.Needs,
		Guest: &model.Guest{VMID: g.VMID, Node: g.Node, Running: g.Running, Digest: cfg.Digest, Lock: cmp.Or(g.Lock, cfg.Now["lock"])},
	}
}

func (t *Template) guestName() string { return t.tag.Node }

// pending: nothing of a template waits, since none ever runs.

func (t *Template) unfinished() bool { return strings.HasSuffix(t.Made, notConverted) }

// clone is a guest whose disk stands on a template's.
type clone struct {
	vmid int
	name string
	addr model.Address // if it is ours
	ours bool          // and says by its ownership tag that it needs the template
}

func (c clone) String() string {
	if c.addr != (model.Address{}) {
		return fmt.Sprintf("%s (VM %d)", c.addr, c.vmid)
	}
	return strings.TrimSpace(fmt.Sprintf("VM %d %s", c.vmid, c.name))
}

// refuse keeps a template that linked clones stand on. What of ours needs it holds it
// by its ownership tag already where it is to go for good.
func (t *Template) refuse(want *model.Resource) []model.Problem {
	if t.unfinished() && want != nil && want.Spec.(*Template).Made == t.tag.Content {
		return nil
	}
	var names []string
	for _, c := range t.clones {
		if want != nil || !c.ours {
			names = append(names, c.String())
		}
	}
	switch {
	case len(names) == 0 && t.unobservable != nil:
		return []model.Problem{{Summary: "whether linked clones stand on its disk cannot be seen", Detail: t.unobservable.Error()}}
	case len(names) == 0:
		return nil
	}
	fix := "remove them first, or move their disks with PVE, which makes them whole"
	if want != nil {
		fix += "; or declare a second template from the new image, with a vmid of its own"
	}
	return []model.Problem{{Path: "image", Summary: "its disk is in use by linked clones: " + strings.Join(names, ", "), Detail: fix}}
}

// findClones looks what stands on the disks of our templates: by the configurations that were read, and by
// the list of the disks on the storage. That one costs a request for each template, and none where there is none; it
// holds only disks that the token may see (Datastore.Audit, and VM.Config.Disk on their guest: PVE/Storage.pm,
// check_volume_access), and is empty without a word where that is none. What neither shows PVE knows, and refuses.
func (d worker) findClones(ctx context.Context, obs *kind.Observation, out *model.Observed) error {
	ours := map[int]*model.Resource{}
	for _, r := range out.State {
		if r.Guest != nil {
			ours[r.Guest.VMID] = r
		}
	}
	for _, addr := range out.State.Addresses() {
		r := out.State[addr]
		t, ok := r.Spec.(*Template)
		if !ok || r.Guest == nil {
			continue
		}
		ids, err := storage.Clones(ctx, d.API, r.Guest.Node, t.volume)
		if api.EndsPass(ctx, err) {
			return err
		}
		t.unobservable = err
		for at, a := range obs.Configs {
			if standsOn(a.Config, t.volume) {
				ids = append(ids, at.VMID)
			}
		}
		slices.Sort(ids)
		for _, id := range slices.Compact(ids) {
			c := clone{vmid: id, name: obs.Guests[id].Name}
			if o := ours[id]; o != nil {
				c.addr, c.ours = o.Addr, slices.Contains(o.Needs, addr)
			}
			t.clones = append(t.clones, c)
		}
	}
	return nil
}

// standsOn reports whether a disk of a guest is a linked clone of a base volume, or will be after a restart.
func standsOn(c view.Config, base string) bool {
	if base == "" {
		return false
	}
	for _, keys := range []map[string]string{c.Now, c.Next} {
		for _, val := range keys {
			if strings.Contains(val, base+"/") && strings.HasPrefix(property.VolumeOf(val), base+"/") {
				return true
			}
		}
	}
	return false
}

// stale says that the way in which a guest was cloned cannot be changed.
func (v vmTarget) stale(want *model.Resource, other state) diag.List {
	have := other.(vmState)
	if v.Template == "" || have.tag.From != v.ownerTag.From || have.tag.Linked == (v.Clone == cloneLinked) {
		return nil
	}
	was := pick(have.tag.Linked, cloneLinked, cloneFull)
	f := guarded(diag.Warning, want.Addr, fmt.Sprintf("%s is a %s clone and stays one", want.Addr, was),
		"clone counts when a guest is made: remove the guest so that it is recreated, or leave the files as they were")
	f.At = want.RangeOf("clone")
	return diag.List{f}
}
