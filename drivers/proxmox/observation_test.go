package proxmox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// What lies on a storage is asked once in a pass where that is cheap, whoever wants to
// know, and by its kind where all of it would be dear.
func TestAStorageIsListedOnce(t *testing.T) {
	const listing = "GET /nodes/{node}/storage/{storage}/content"
	local := pve.Storage{Name: "local", Type: "dir", Content: []string{"iso", "vztmpl", "backup", "snippets", "import"}}
	disks := pve.Storage{Name: "local-lvm", Type: "lvmthin", Content: []string{"images", "rootdir"}}
	with := func(s pve.Storage, edit func(*pve.Storage)) pve.Storage {
		edit(&s)
		return s
	}
	for name, c := range map[string]struct {
		storage pve.Storage
		asked   int
	}{
		"a folder of a node":     {local, 1},
		"one that holds disks":   {with(local, func(s *pve.Storage) { s.Content = append([]string{"images"}, s.Content...) }), 3},
		"one beyond a network":   {with(local, func(s *pve.Storage) { s.Type = "nfs" }), 3},
		"one that nodes share":   {with(local, func(s *pve.Storage) { s.Shared = true }), 3},
		"one that holds volumes": {with(local, func(s *pve.Storage) { s.Content = append([]string{"rootdir"}, s.Content...) }), 3},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{Storages: []pve.Storage{c.storage, disks}}, func(t *testing.T, w *world) {
				w.Node("web", func(v *guest.VM) { v.UserData = "#cloud-config\n" })
				w.Apply()
				w.Apply() // what a first boot leaves to do
				before := w.Host.Snapshot().Requests[listing]
				w.Converged()
				require.Equal(t, c.asked, w.Host.Snapshot().Requests[listing]-before, "images, templates and seeds")
			})
		})
	}
}
