package guest

import "github.com/homestak/homestak-gitops/drivers/proxmox/owner"

// CloudInitPending is whether the documents of a guest that runs for so many seconds, which were written at that time, wait for
// a restart.
func CloudInitPending(seeded int64, uptime int) bool {
	return (&Observation{Tag: owner.Tag{Seeded: seeded}, uptime: uptime}).cloudInitPending()
}
