package backup

import (
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/storage"
)

// stopsManaged refuses to stop a guest that the HA manager keeps running, be it running
// or not (exec_backup_task in PVE/VZDump.pm).
func (d *dump) stopsManaged(g *core.Guest) error {
	if d.mode == "stop" && d.w.HA.State(g) == "started" {
		return perl.Fail("Cannot execute a backup with stop mode on a HA managed and enabled Service. Use snapshot mode or disable the Service.")
	}
	return nil
}

// tooMany refuses a backup beyond those that a storage may keep of a guest: where it is to
// be protected those that are, else without pruning those that would be pruned
// (exec_backup_task in PVE/VZDump.pm).
func (d *dump) tooMany(st *core.Store, g *core.Guest) error {
	all, protected := backupsOf(st, d.node, g)
	limit := 0
	for _, n := range RetentionOf(st.Extra["prune-backups"]) {
		limit += n
	}
	switch {
	case d.protected:
		return mayProtect(d.c, st, protected)
	case d.c.Has("remove") && !d.c.Flag("remove") && limit > 0 && all-protected >= limit:
		return perl.Fail("There is a max backup limit of %d enforced by the target storage or the vzdump parameters. Either increase the limit or delete old backups.", limit)
	}
	return nil
}

// backupsOf counts the backups of a guest of its kind, and of these the protected ones.
func backupsOf(s *core.Store, node string, g *core.Guest) (all, protected int) {
	for _, v := range s.List(node) {
		if v.Content == "backup" && v.Vmid == g.Vmid && strings.HasPrefix(v.Name, "backup/vzdump-"+g.Kind+"-") {
			all++
			if v.Protected {
				protected++
			}
		}
	}
	return all, protected
}

// mayProtect refuses one more protected backup where there are as many as there may be:
// five, unless the storage says otherwise, for who may not allocate in it whatever he
// wants (get_max_protected_backups in PVE/Storage.pm).
func mayProtect(c *core.Call, s *core.Store, have int) error {
	most := 5
	switch said := s.Extra["max-protected-backups"]; {
	case said != "":
		most = perl.Atoi(said)
	case c.Can("/storage/"+s.Name, "Datastore.Allocate"):
		return nil
	}
	if most >= 0 && have >= most {
		return perl.Fail("The number of protected backups per guest is limited to %d on storage '%s'", most, s.Name)
	}
	return nil
}

// protectedLike counts the protected backups of the same guest and kind as another backup
// (update_volume_attribute in PVE/Storage.pm).
func protectedLike(s *core.Store, node string, like *core.Volume) int {
	kind, _, _ := strings.Cut(strings.TrimPrefix(like.Name, "backup/vzdump-"), "-")
	_, protected := backupsOf(s, node, &core.Guest{Vmid: like.Vmid, Kind: kind})
	return protected
}

// apiUpdateVolume is PUT …/content/{volume}: notes and protection, of backups.
func apiUpdateVolume(_ *core.World, c *core.Call) (any, error) {
	s, name, err := storage.CallVolume(c)
	if err != nil {
		return nil, err
	}
	parsed, err := s.ParseName(name)
	if err != nil {
		return nil, err
	}
	if c.Has("notes") && parsed.Content != "backup" {
		return nil, perl.Fail("only backups can have notes")
	}
	if c.Has("protected") && parsed.Content != "backup" {
		return nil, perl.Fail("only backups support attribute 'protected'")
	}
	v := s.Find(c.In["node"], name)
	if v == nil {
		return nil, nil // Files beside one that is not there: nothing shows them.
	}
	if c.Has("notes") {
		v.Notes = c.In["notes"]
	}
	if c.Flag("protected") && !v.Protected {
		if err := mayProtect(c, s, protectedLike(s, c.In["node"], v)); err != nil {
			return nil, err
		}
	}
	if c.Has("protected") {
		v.Protected = c.Flag("protected")
	}
	return nil, nil
}
