package guest

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A VM template that is made from an image is a guest with an ownership tag of its own type. Making
// it takes two steps, creating a VM and converting it. If the second one is missing, the next pass
// completes it.

// The values of the attribute clone of a VM.
const (
	FullClone   = "full"   // the clone has copies of the disks
	LinkedClone = "linked" // its root disk is based on the template's, which must stay
)

// notConverted ends Template.Made of a VM that is not converted to a template yet.
const notConverted = " (not converted yet)"

// fromImage resolves a template that is created from an image.
func (t *Template) fromImage(in model.Scope) []model.Problem {
	var out []model.Problem
	if t.VMID == 0 {
		out = append(out, model.Problem{
			Path: "vmid", Summary: fmt.Sprintf("template %q has no vmid", in.Name),
			Detail: "a template from an image has the same VMID on every host, for its clones: set vmid to a free one",
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
		t.DiskVolume, t.Made = img.Volume, path.Base(img.Volume)
		if img.Format == "iso" {
			out = append(out, model.Problem{Path: "image", Summary: fmt.Sprintf("image %q is an ISO image", t.Image), Detail: "a template is made from a disk image (qcow2, raw or vmdk)"})
		}
	}
	t.Tag = owner.Of(in, owner.TemplateType, "image."+t.Image, 0)
	t.Tag.Content, t.Tag.Slots = t.Made, map[string]string{"disk.root": lifecycle.TemplateSlot}
	return out
}

// IsConverted reports whether a VM is a complete template that can be cloned.
func IsConverted(cfg api.GuestConfig) bool {
	_, name, _ := strings.Cut(api.VolumeOf(cfg.Now[lifecycle.TemplateSlot]), ":")
	return cfg.Now["template"] == "1" && strings.HasPrefix(path.Base(name), "base-")
}

// observed returns the resource of a managed template, from its configuration.
func observed(g api.ListedGuest, cfg api.GuestConfig, m owner.Tag) *model.Resource {
	t := &Template{Made: m.Content, Tag: m, DiskVolume: api.VolumeOf(cfg.Now[lifecycle.TemplateSlot])}
	if !IsConverted(cfg) {
		t.Made += notConverted
	}
	return &model.Resource{
		Addr: m.Addr(), Spec: t, Needs: m.Needs,
		Guest: &model.Guest{VMID: g.VMID, Node: g.Node, Running: g.Running, Digest: cfg.Digest, Lock: cmp.Or(g.Lock, cfg.Now["lock"])},
	}
}

// IsUnconverted reports whether it is a VM that is not converted to a template yet.
func (t *Template) IsUnconverted() bool { return strings.HasSuffix(t.Made, notConverted) }

// TemplateClone is a guest whose disk is based on a template's.
type TemplateClone struct {
	VMID          int
	Name          string
	Addr          model.Address // of a managed guest
	NeedsTemplate bool          // it is managed, and its ownership tag says so
}

func (c TemplateClone) String() string {
	if c.Addr != (model.Address{}) {
		return fmt.Sprintf("%s (VM %d)", c.Addr, c.VMID)
	}
	return strings.TrimSpace(fmt.Sprintf("VM %d %s", c.VMID, c.Name))
}

// refuse refuses to remove or recreate a template that linked clones are based on. If it is only
// removed, the ownership tags of managed clones already prevent that.
func (t *Template) refuse(want *model.Resource) []model.Problem {
	if t.IsUnconverted() && want != nil && want.Spec.(*Template).Made == t.Tag.Content {
		return nil
	}
	var names []string
	for _, c := range t.Clones {
		if want != nil || !c.NeedsTemplate {
			names = append(names, c.String())
		}
	}
	switch {
	case len(names) == 0 && t.Unobservable != nil:
		return []model.Problem{{Summary: "cannot check whether linked clones use its disk", Detail: t.Unobservable.Error()}}
	case len(names) == 0:
		return nil
	}
	fix := "remove them first, or move their disks with PVE, which makes them full clones"
	if want != nil {
		fix += "; or declare a second template from the new image, with a vmid of its own"
	}
	return []model.Problem{{Path: "image", Summary: "its disk is in use by linked clones: " + strings.Join(names, ", "), Detail: fix}}
}
