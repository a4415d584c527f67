package resolve

import (
	"cmp"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/nocloud"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/seed"
)

// seed checks user_data and says where its image goes.
func (r *vmResolver) seed() {
	r.SeedStorage = "local"
	if h := r.in.Host; h != nil && h.Storage != nil {
		r.SeedStorage = cmp.Or(h.Storage.ISO, r.SeedStorage)
	}
	if r.UserData == "" {
		return
	}
	if err := nocloud.Check(r.UserData); err != nil {
		r.errorf("user_data", "user_data that cloud-init would not read", "%s", err)
	}
}

// seedRoom is a record of the greatest length, by which the length of an ownership tag is judged.
func (r *vmResolver) seedRoom() *owner.NocloudISO {
	if r.UserData == "" {
		return nil
	}
	name := seed.Name{Site: r.in.Site.Name, Node: r.in.Name, Owner: strings.Repeat("0", 12), UUID: strings.Repeat("0", 36)}
	return &owner.NocloudISO{Volume: name.Volume(r.SeedStorage), Data: strings.Repeat("0", 12), Net: strings.Repeat("0", 12)}
}
