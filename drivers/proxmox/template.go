package proxmox

import (
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/inventory"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/provision"
	"github.com/homestak/homestak-gitops/engine/model"
)

var templateKind = kind.Of[guest.Template]{
	Model: func() model.Kind {
		schema := guest.TemplateSchema()
		schema.Remarks = guest.Remarks
		return schema
	}(),
	List:       inventory.Templates,
	Create:     provision.CreateTemplate,
	Update:     provision.UpdateTemplate,
	Before:     provision.AwaitOwnTasks,
	Remove:     provision.RemoveTemplate,
	Privileges: templateNeeds,
	More: func(want, have *model.Resource) bool {
		w, h := want.Spec.(*guest.Template), have.Spec.(*guest.Template)
		return w.File != h.File || w.Made != h.Made
	},
}

// templateNeeds adds the privileges that a template needs: to see one that is only named, to make and
// remove any other.
func templateNeeds(t *guest.Template, n *kind.Needs) {
	switch {
	case t.Image != "":
		n.Guest("VM.Allocate", "image", "creating and removing the template")
		for _, priv := range []string{"VM.Config.CPU", "VM.Config.Memory", "VM.Config.Options", "VM.Config.HWType", "VM.Config.Disk"} {
			n.Guest(priv, "image", "the machine that becomes the template")
		}
		n.Disk(t.Storage, "images", 0, "storage", "the disk of the template")
	case t.VMID != 0:
		n.Add(kind.Need{Grant: kind.Grant{Path: fmt.Sprintf("/vms/%d", t.VMID), Priv: "VM.Audit"}, Role: kind.RoleTemplates, For: "reading the template"}, "vmid")
	case t.Volume != "":
		storage := api.StorageOf(t.Volume)
		path := "/storage/" + storage
		n.Uses = append(n.Uses, kind.StorageUse{Storage: storage, Content: "vztmpl", GiB: 0, By: n.From, Attr: "volume"})
		n.Add(kind.Need{
			Grant: kind.Grant{Path: path, Priv: "Datastore.Audit"}, Role: kind.RoleImages, For: "reading the volume, and unpacking it",
			Or: [][]kind.Grant{{{Path: path, Priv: "Datastore.AllocateSpace"}}},
		}, "volume")
	default:
		t.AsImage().UploadNeeds(n)
	}
}
