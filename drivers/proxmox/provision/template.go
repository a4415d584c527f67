package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// CreateTemplate creates a template: from an image, or by a download.
func CreateTemplate(ctx context.Context, h *kind.Host, s plan.Step, want *guest.Template) error {
	if want.Image != "" {
		return createFromImage(ctx, h, s, want)
	}
	return want.AsImage().Create(ctx, h, s)
}

// UpdateTemplate brings a template to its wanted content. A VM that is not converted yet is
// converted; any other template made from an image is recreated; a download is replaced.
func UpdateTemplate(ctx context.Context, h *kind.Host, s plan.Step, want, have *guest.Template) error {
	switch {
	case s.Have.Guest != nil && want.Image != "" && have.Tag.Content == want.Made && have.IsUnconverted():
		return maker{writer{h}}.convert(ctx, api.RefOf(s.Have), s.Address)
	case s.Have.Guest != nil || want.Image != "":
		if err := RemoveTemplate(ctx, h, s); err != nil {
			return err
		}
		return CreateTemplate(ctx, h, s, want)
	}
	if want.File != "" {
		if err := want.AsImage().Ensure(ctx, h, h.Model.PVENode(), s.Address); err != nil {
			return err
		}
	}
	return removeDownload(ctx, h, have)
}

// RemoveTemplate removes what was made here: a VM that became a template, or a download.
func RemoveTemplate(ctx context.Context, h *kind.Host, s plan.Step) error {
	r := cmp.Or(s.Have, s.Want)
	if r.Guest != nil {
		return lifecycle.Destroy(ctx, h, s, nil)
	}
	return removeDownload(ctx, h, r.Spec.(*guest.Template))
}

// removeDownload deletes the file of a download; a template that is only named has none.
func removeDownload(ctx context.Context, h *kind.Host, t *guest.Template) error {
	if t.File == "" {
		return nil
	}
	return objects.RemoveImage(ctx, h, t.File)
}

// createFromImage creates a VM from the image and converts it.
func createFromImage(ctx context.Context, h *kind.Host, s plan.Step, want *guest.Template) error {
	d := maker{writer{h}}
	at := api.GuestRef{Node: s.Want.Guest.Node, VMID: s.VMID}
	m := want.Tag
	m.Owner, m.UUID, m.CreationVMID = d.ID.Host, uuid.NewString(), at.VMID
	m = d.ID.Begin(m)
	p := api.Params{ // few keys: a clone gets those that its own files decide
		"vmid": at.VMID, "name": m.Node, "cores": 1, "memory": "512", "ostype": "l26", "scsihw": "virtio-scsi-single", "serial0": "socket",
		"tags": owner.PVETag, "description": d.ID.Describe("", m, at, api.GuestConfig{}), "smbios1": "uuid=" + m.UUID, "boot": "order=" + lifecycle.TemplateSlot,
		lifecycle.TemplateSlot: guest.Drive(fmt.Sprintf("%s:0,import-from=%s", want.Storage, want.DiskVolume), lifecycle.TemplateSlot),
	}
	if err := d.confirmCreated(ctx, at, at, m, d.API.Do(ctx, api.Path("nodes", at.Node, "qemu"), d.inPool(p))); err != nil {
		return err
	}
	return d.convert(ctx, at, s.Address)
}

// convert converts a VM to a template. PVE sets the key template before it converts the disk; if it
// died between the two, only the disk is converted (qemu-server, PVE/API2/Qemu.pm, template).
func (d maker) convert(ctx context.Context, at api.GuestRef, addr model.Address) error {
	var failed error
	tried, tagged, signed := false, false, false
	for {
		cfg, err := d.API.ReadConfig(ctx, at)
		if err != nil {
			return fmt.Errorf("reading %s, which becomes a template: %w", at, errors.Join(err, failed))
		}
		switch is := d.ID.Check(cfg, at); {
		case !is.IsOwnedAs(addr):
			return fmt.Errorf("%s is not what was ordered (%s): its creation was interrupted; if no task works on it any more, %s clears it", at, is.Why(), at.Rescue())
		case guest.IsConverted(cfg):
			return nil
		case !tagged && !slices.Contains(api.NormalTags(cfg.Next["tags"]), owner.PVETag): // it was created without, to join a pool
			tagged = true
			tags := strings.Join(append(api.NormalTags(cfg.Next["tags"]), owner.PVETag), ";")
			if _, err := d.API.Put(ctx, at.Path("config"), api.Params{"tags": tags, "digest": cfg.Digest}); err != nil {
				return fmt.Errorf("tagging %s: %w", at, err)
			}
			continue
		case !signed && is.Tag.Resign: // only now it is known when PVE created it
			signed = true
			is.Tag.Begun = 0
			if _, err := d.API.Put(ctx, at.Path("config"), api.Params{"description": d.ID.Describe(is.Notes, is.Tag, at, cfg), "digest": cfg.Digest}); err != nil {
				return fmt.Errorf("signing the ownership tag of %s: %w", at, err)
			}
			continue
		case cfg.Next[lifecycle.TemplateSlot] == "":
			return fmt.Errorf("%s has no disk at %s, so it cannot become %s: remove it, and it is recreated", at, lifecycle.TemplateSlot, addr)
		case failed != nil:
			return fmt.Errorf("converting %s to a template: %w", at, failed)
		case tried:
			return fmt.Errorf("PVE converted %s, but %s is not a base of clones: does the type of storage %s have templates? Move the disk there to another one, or declare another storage and remove VM %d",
				at, cfg.Next[lifecycle.TemplateSlot], api.StorageOf(cfg.Next[lifecycle.TemplateSlot]), at.VMID)
		}
		p := api.Params{}
		if cfg.Now["template"] == "1" {
			p["disk"] = lifecycle.TemplateSlot
		}
		if failed = d.API.Do(ctx, at.Path("template"), p); errors.Is(failed, api.ErrOutcomeLost) { // the task may still run
			if _, _, err := lifecycle.GuestAt(d.Host, at).AwaitOwnTasks(ctx); err != nil {
				return fmt.Errorf("converting %s to a template: %w; and %w", at, failed, err)
			}
		}
		tried = true
	}
}
