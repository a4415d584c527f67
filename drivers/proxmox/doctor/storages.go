package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// storages checks the storages that the site names, and finds volumes on them that no guest has.
type storages struct {
	*subject
	session *session
	token   *token
	nodes   *nodes
	guests  *guests
}

// check checks that the storages of the site exist, are enabled, accept the right content, and have
// room for what is not created yet.
func (s *storages) check(ctx context.Context) {
	n := proxmox.DeriveNeeds(s.site, s.want, s.session.major())
	byStorage := map[string][]kind.StorageUse{}
	for _, u := range n.Uses {
		byStorage[u.Storage] = append(byStorage[u.Storage], u)
	}
	for _, node := range s.host.AllNodes() {
		if s.nodes.dark(node) {
			s.skip("storages", "node %s cannot be queried", node)
			continue
		}
		list, err := s.list(ctx, api.Path("nodes", node, "storage"))
		if err != nil {
			s.unread("storages", err)
			continue
		}
		on := map[string]map[string]json.RawMessage{}
		for _, row := range list {
			on[api.Text(row["storage"])] = row
		}
		for _, name := range slices.Sorted(maps.Keys(byStorage)) {
			s.storage(ctx, node, name, byStorage[name], on)
		}
	}
	s.leftVolumes(ctx)
}

func (s *storages) storage(ctx context.Context, node, name string, uses []kind.StorageUse, on map[string]map[string]json.RawMessage) {
	label := "storage " + name
	if len(s.host.AllNodes()) > 1 {
		label += " on " + node
	}
	by, want := askers{}, map[string]bool{}
	for _, u := range uses {
		by.add(u.By, u.Attr)
		want[u.Content] = true
	}
	why := "used by " + by.String()
	row, there := on[name]
	if !there {
		path := "/storage/" + name
		sees, err := s.token.may(ctx, kind.Grant{Path: path, Priv: "Datastore.Audit"}, kind.Grant{Path: path, Priv: "Datastore.AllocateSpace"})
		if err != nil || !sees {
			s.skip(label, "the token may not see it: see the privileges on %s", path)
			return
		}
		known := slices.Sorted(maps.Keys(on))
		s.fail(label, "there is no such storage, or it is disabled; "+diag.DidYouMean(name, known), why,
			append([]string{"on the host: pvesm status"}, s.otherStorage(uses, on)...)...)
		return
	}
	switch {
	case api.Text(row["enabled"]) == "0":
		s.fail(label, "it is disabled", why, "pvesm set "+name+" --disable 0")
		return
	case api.Text(row["active"]) == "0":
		s.fail(label, "it is not active: the node cannot access it", why, "on node "+node+": pvesm status; is it mounted, is its server up?")
		return
	}
	has := api.ContentTypes(api.Text(row["content"]))
	lacks := slices.DeleteFunc(slices.Sorted(maps.Keys(want)), func(c string) bool { return slices.Contains(has, c) })
	if len(lacks) > 0 {
		s.fail(label, fmt.Sprintf("it does not accept %s, only %s", strings.Join(lacks, ", "), cmp.Or(strings.Join(has, ", "), "nothing")), why,
			fmt.Sprintf("pvesm set %s --content %s", name, api.AddContentTypes(has, lacks...)))
		return
	}
	if api.Text(row["avail"]) == "" {
		s.warn(label, "accepts what is needed; the node does not report how much is free", why, "on node "+node+": pvesm status --storage "+name)
		return
	}
	s.room(label, name, api.Number(row["avail"]), uses, why)
}

// otherStorage is the line of the host block that names a storage which takes what
// the missing one was to hold.
func (s *storages) otherStorage(uses []kind.StorageUse, on map[string]map[string]json.RawMessage) []string {
	attrs := map[string]string{"images": "disks", "rootdir": "disks", "import": "images", "vztmpl": "images", "iso": "iso", "backup": "backups", "snippets": "snippets"}
	content := uses[0].Content
	for _, name := range slices.Sorted(maps.Keys(on)) {
		if slices.Contains(strings.Split(api.Text(on[name]["content"]), ","), content) && attrs[content] != "" {
			return []string{fmt.Sprintf("storage { %s = %q }    # in host %q, or storage of what uses it", attrs[content], name, s.host.Name)}
		}
	}
	return nil
}

// room compares what is still to be created with what is free.
func (s *storages) room(label, name string, free int, uses []kind.StorageUse, why string) {
	gib := 0
	for _, u := range uses {
		if s.guests.have.State[u.By.Addr] == nil {
			gib += u.GiB
		}
	}
	const giB = 1 << 30
	room := "make room: on the host, pvesm list " + name
	switch {
	case free < giB && gib > 0 && s.guests.complete:
		s.fail(label, fmt.Sprintf("it is full (%d MiB free), and what is still to be created needs up to %d GiB", free>>20, gib), why, room)
	case free < giB:
		s.warn(label, fmt.Sprintf("it is full: %d MiB free", free>>20), why+"; downloads, uploads, backups and disks that grow fail there", room)
	case gib > 0 && s.guests.complete && gib > free/giB:
		s.warn(label, fmt.Sprintf("%d GiB are free, and what is still to be created may grow to %d GiB", free/giB, gib), why+"; thin volumes grow with what is written to them",
			room)
	default:
		s.ok(label, "accepts what is needed, %d GiB free", free/giB)
	}
}

// leftVolumes finds volumes without a guest, and says which privilege would show them.
func (s *storages) leftVolumes(ctx context.Context) {
	if !s.guests.complete || s.failed("privileges") {
		return
	}
	by := map[string]bool{}
	for _, u := range proxmox.DeriveNeeds(s.site, s.want, s.session.major()).Uses {
		if u.Content == "images" || u.Content == "rootdir" {
			by[u.Storage] = true
		}
	}
	if len(by) == 0 || s.token.read(ctx, "/vms") != nil {
		return
	}
	known := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		path := "/storage/" + name
		if err := s.token.read(ctx, path); err != nil {
			continue
		}
		audit, disk := s.token.has(kind.Grant{Path: path, Priv: "Datastore.Audit"}), s.token.has(kind.Grant{Path: "/vms", Priv: "VM.Config.Disk"})
		if !s.token.has(kind.Grant{Path: path, Priv: "Datastore.Allocate"}) && (!audit || !disk) {
			s.notListed(ctx, name, audit, disk)
			continue
		}
		for _, node := range s.host.AllNodes() {
			if s.nodes.dark(node) {
				continue
			}
			left, err := s.client().LeftVolumes(ctx, api.NodeStorage{Node: node, Storage: name}, s.want, 0, s.guests.have.Taken)
			left = slices.DeleteFunc(left, func(v string) bool { return known[v] })
			if err != nil || len(left) == 0 { // the checks of storages report what is wrong with one
				continue
			}
			for _, v := range left {
				known[v] = true
			}
			s.warn("leftovers", fmt.Sprintf("no guest has the VMIDs of these volumes on node %s: %s", node, strings.Join(left, ", ")),
				"they are left over from a failed creation or removal; free them if nothing uses them", api.FreeCommands(left)...)
		}
	}
}

// notListed says which privileges would show what is on a storage.
func (s *storages) notListed(ctx context.Context, storage string, audit, disk bool) {
	path := "/storage/" + storage
	var lacks []string
	c := Check{Name: "leftovers", Result: NotChecked, Why: "volumes of failed creations, and linked clones of unmanaged guests, are not detected; the site converges without"}
	if !audit {
		lacks = append(lacks, "Datastore.Audit on "+path)
		c.Fix = s.token.grantCommands([]kind.Need{{Grant: kind.Grant{Path: path, Priv: "Datastore.AllocateSpace"}, Role: kind.RoleDisks}, {Grant: kind.Grant{Path: path, Priv: "Datastore.Audit"}, Role: kind.RoleDisks}}, s.token.roles(ctx))
	}
	if !disk {
		lacks = append(lacks, "VM.Config.Disk on /vms, because a guest that does not exist is in no pool")
	}
	c.Seen = fmt.Sprintf("the token may not list the disks on storage %s: %s", storage, strings.Join(lacks, "; and "))
	s.add(c)
}
