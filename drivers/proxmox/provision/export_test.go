package provision

import (
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Attributes are those of a kind of guest that are one key each.
func Attributes(kind string) []guest.Attribute {
	if kind == "ct" {
		return guest.CTAttributes().All
	}
	return guest.VMAttributes().All
}

// CreateParams are the parameters that create a guest.
func CreateParams(spec any) map[string]any {
	switch v := spec.(type) {
	case *guest.CT:
		p := ctParams(v, &owner.Tag{}, api.GuestConfig{})
		maps.Copy(p, guest.CTAttributes().Creation(v))
		return p
	default:
		return vmParams(spec.(*guest.VM), owner.Tag{})
	}
}

// UpdateParams are the keys that a change of one attribute sets, and those that it deletes.
func UpdateParams(want, have any, cfg map[string]string, path string) (set map[string]any, deleted []string) {
	seen := &guest.Observation{Tag: owner.Tag{UUID: "x", MAC: "x"}, Config: api.GuestConfig{Now: cfg, Next: cfg}}
	running := &model.Resource{Spec: have, Private: seen, Guest: &model.Guest{}}
	c, kind := changeOf(owner.Identity{}, api.GuestRef{}, owner.Tag{}, plan.Step{Have: running}, guest.TargetOf(&model.Resource{Spec: want}), guest.StateOf(running))
	kind.add(path)
	return c.set, slices.Sorted(maps.Keys(c.del))
}

// ReadConfig reads a guest's configuration as that of a guest of ours.
func ReadConfig(kind string, cfg map[string]string) any {
	c := api.GuestConfig{Now: cfg, Next: cfg}
	return guest.FromConfig(api.ListedGuest{LXC: kind == "ct"}, c, "", owner.Tag{Type: kind, UUID: "x", MAC: "x"}).Spec
}
