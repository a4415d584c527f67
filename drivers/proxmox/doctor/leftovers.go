package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/rights"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
)

// leftovers looks for volumes without a guest, and says which privilege would show them.
func (e *exam) leftovers(ctx context.Context) {
	if !e.seen || e.bad["privileges"] != "" {
		return
	}
	by := map[string]bool{}
	for _, u := range proxmox.DeriveNeeds(e.Of, e.Want, cmp.Or(e.major, 9)).Uses {
		if u.Content == "images" || u.Content == "rootdir" {
			by[u.Storage] = true
		}
	}
	if len(by) == 0 || e.readRight(ctx, "/vms") != nil {
		return
	}
	known := map[string]bool{}
	for _, storage := range slices.Sorted(maps.Keys(by)) {
		path := "/storage/" + storage
		if err := e.readRight(ctx, path); err != nil {
			continue
		}
		audit, disk := e.can(rights.Grant{Path: path, Priv: "Datastore.Audit"}), e.can(rights.Grant{Path: "/vms", Priv: "VM.Config.Disk"})
		if !e.can(rights.Grant{Path: path, Priv: "Datastore.Allocate"}) && (!audit || !disk) {
			e.unseenVolumes(ctx, storage, audit, disk)
			continue
		}
		for _, node := range e.host.AllNodes() {
			if e.dark(node) {
				continue
			}
			left, err := proxmox.LeftVolumes(ctx, e.d.Client(), view.NodeStorage{Node: node, Storage: storage}, e.Want, 0, e.have.Taken)
			left = slices.DeleteFunc(left, func(v string) bool { return known[v] })
			if err != nil || len(left) == 0 { // the checks of storages report what is wrong with one
				continue
			}
			for _, v := range left {
				known[v] = true
			}
			e.warn("leftovers", fmt.Sprintf("no guest has the VMIDs of these volumes on node %s: %s", node, strings.Join(left, ", ")),
				"they are left over from a creation or removal that died; free them if nothing uses them", proxmox.FreeCommands(left)...)
		}
	}
}

// unseenVolumes says which privileges would show what lies on a storage.
func (e *exam) unseenVolumes(ctx context.Context, storage string, audit, disk bool) {
	path := "/storage/" + storage
	var lacks []string
	c := Check{Name: "leftovers", Result: NotChecked, Why: "volumes that a failed creation left, and linked clones of other people, are not seen; the site converges without"}
	if !audit {
		lacks = append(lacks, "Datastore.Audit on "+path)
		c.Fix = e.grant([]rights.Need{{Grant: rights.Grant{Path: path, Priv: "Datastore.AllocateSpace"}, Role: rights.RoleDisks}, {Grant: rights.Grant{Path: path, Priv: "Datastore.Audit"}, Role: rights.RoleDisks}}, e.roles(ctx))
	}
	if !disk {
		lacks = append(lacks, "VM.Config.Disk on /vms, since a guest that is not there is in no pool")
	}
	c.Seen = fmt.Sprintf("the token may not list the disks on storage %s: %s", storage, strings.Join(lacks, "; and "))
	e.Add(c)
}
