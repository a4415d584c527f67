package proxmox

import (
	"context"

	"github.com/homestak/homestak-gitops/drivers/proxmox/inventory"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/provision"
	"github.com/homestak/homestak-gitops/drivers/proxmox/template"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

var templateKind = kind.Of[template.Template]{
	Model:  template.Schema(),
	List:   inventory.Templates,
	Create: provision.CreateTemplate,
	Update: func(ctx context.Context, h *kind.Host, s plan.Step, want, have *template.Template) error {
		if s.Have.Guest != nil || want.Image != "" {
			return provision.RemakeTemplate(ctx, h, s, want, have)
		}
		if want.File != "" {
			if err := objects.EnsureImage(ctx, h, s, want.AsImage()); err != nil {
				return err
			}
		}
		return provision.RemoveTemplate(ctx, h, have)
	},
	Before:     provision.Undisturbed,
	Remove:     provision.LeaveTemplate,
	Privileges: template.Needs,
	More: func(want, have *model.Resource) bool {
		w, h := want.Spec.(*template.Template), have.Spec.(*template.Template)
		return w.File != h.File || w.Made != h.Made
	},
}
