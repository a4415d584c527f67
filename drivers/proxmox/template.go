package proxmox

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/inventory"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/provision"
	"github.com/homestak/homestak-gitops/drivers/proxmox/template"
	"github.com/homestak/homestak-gitops/engine/model"
)

var templateKind = kind.Of[template.Template]{
	Model: func() model.Kind {
		schema := template.Schema()
		schema.Remarks = guest.Remarks
		return schema
	}(),
	List:       inventory.Templates,
	Create:     provision.CreateTemplate,
	Update:     provision.UpdateTemplate,
	Before:     provision.AwaitOwnTasks,
	Remove:     provision.RemoveTemplate,
	Privileges: template.Needs,
	More: func(want, have *model.Resource) bool {
		w, h := want.Spec.(*template.Template), have.Spec.(*template.Template)
		return w.File != h.File || w.Made != h.Made
	},
}
