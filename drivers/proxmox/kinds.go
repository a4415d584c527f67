package proxmox

import (
	"context"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/inventory"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/provision"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// table lists every kind, in the order of the reference page.
func table() []kind.Kind {
	return []kind.Kind{
		&vmKind,
		&pveKind,
		&ctKind,
		&objects.ImageKind,
		&templateKind,
		&objects.PoolKind,
		&objects.IPSetKind,
		&objects.BackupKind,
		&lifecycle.SeedKind,
		&lifecycle.RestoreKind,
	}
}

// kindsByName has the kinds by the names that addresses use.
func kindsByName() map[string]kind.Kind {
	out := map[string]kind.Kind{}
	for _, k := range table() {
		out[k.Schema().Name] = k
	}
	return out
}

// Kinds lists the resource kinds that PVE offers.
func Kinds() model.Kinds {
	var ks model.Kinds
	for _, k := range table() {
		ks = append(ks, k.Schema())
	}
	return ks
}

// The kinds of guests. The kind vm observes the guests of all three.
var (
	vmKind = func() kind.Of[guest.VM] {
		k := guestKindOf[guest.VM](guest.VMSchema())
		k.List = inventory.Guests
		return k
	}()
	pveKind = guestKindOf[guest.VM](guest.PVESchema())
	ctKind  = guestKindOf[guest.CT](guest.CTSchema())
)

// guestKindOf makes a kind of guests from its schema and the struct of its attributes.
func guestKindOf[S any](schema model.Kind) kind.Of[S] {
	schema.Resolve = resolveGuest(schema.Name)
	return kind.Of[S]{
		Model: schema,
		Create: func(ctx context.Context, h *kind.Host, s plan.Step, _ *S) error {
			return provision.Create(ctx, h, s)
		},
		Update: func(ctx context.Context, h *kind.Host, s plan.Step, _, _ *S) error {
			return provision.Update(ctx, h, s)
		},
		Adopt: provision.Adopt, Forget: provision.Forget,
		Before: provision.AwaitOwnTasks,
		Remove: func(ctx context.Context, h *kind.Host, s plan.Step) error {
			return lifecycle.Destroy(ctx, h, s, func(ctx context.Context, at api.GuestRef, script string) error {
				return runInside(ctx, openGuest(h, s.Address, at, nil), script)
			})
		},
		Privileges: func(_ *S, n *kind.Needs) { guest.Needs(guest.TargetOf(n.From), n) },
		More:       guest.NeedsMore,
	}
}
