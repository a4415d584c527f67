package proxmox

import (
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
	Privileges: guest.TemplateNeeds,
	More: func(want, have *model.Resource) bool {
		w, h := want.Spec.(*guest.Template), have.Spec.(*guest.Template)
		return w.File != h.File || w.Made != h.Made
	},
}
