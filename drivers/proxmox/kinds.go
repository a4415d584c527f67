package proxmox

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/seed"
	"github.com/homestak/homestak-gitops/engine/model"
)

// table lists every kind, in the order of the reference page. A kind is a file of its own.
func table() []kind.Kind {
	return []kind.Kind{
		&vmKind,
		&pveKind,
		&ctKind,
		&objects.ImageKind,
		&templateKind,
		&objects.PoolKind,
		&objects.IPSetKind,
		&seed.Kind,
	}
}

// kindsByName is the same by what addresses say.
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
