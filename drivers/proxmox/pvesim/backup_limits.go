package pvesim

import "strings"

// stopsManaged refuses to stop a guest that the HA manager keeps running, be it running
// or not (exec_backup_task in PVE/VZDump.pm).
func (d *dump) stopsManaged(g *guest) error {
	if d.mode == "stop" && d.w.ha.state(g) == "started" {
		return fail("Cannot execute a backup with stop mode on a HA managed and enabled Service. Use snapshot mode or disable the Service.")
	}
	return nil
}

// tooMany refuses a backup beyond those that a storage may keep of a guest: where it is to
// be protected those that are, else without pruning those that would be pruned
// (exec_backup_task in PVE/VZDump.pm).
func (d *dump) tooMany(st *store, g *guest) error {
	all, protected := st.backupsOf(d.node, g)
	limit := 0
	for _, n := range retentionOf(st.extra["prune-backups"]) {
		limit += n
	}
	switch {
	case d.protected:
		return d.c.mayProtect(st, protected)
	case d.c.has("remove") && !d.c.flag("remove") && limit > 0 && all-protected >= limit:
		return fail("There is a max backup limit of %d enforced by the target storage or the vzdump parameters. Either increase the limit or delete old backups.", limit)
	}
	return nil
}

// backupsOf counts the backups of a guest of its kind, and of these the protected ones.
func (s *store) backupsOf(node string, g *guest) (all, protected int) {
	for _, v := range s.list(node) {
		if v.content == "backup" && v.vmid == g.vmid && strings.HasPrefix(v.name, "backup/vzdump-"+g.kind+"-") {
			all++
			if v.protected {
				protected++
			}
		}
	}
	return all, protected
}

// mayProtect refuses one more protected backup where there are as many as there may be:
// five, unless the storage says otherwise, for who may not allocate in it whatever he
// wants (get_max_protected_backups in PVE/Storage.pm).
func (c *call) mayProtect(s *store, have int) error {
	most := 5
	switch said := s.extra["max-protected-backups"]; {
	case said != "":
		most = atoi(said)
	case c.can("/storage/"+s.Name, "Datastore.Allocate"):
		return nil
	}
	if most >= 0 && have >= most {
		return fail("The number of protected backups per guest is limited to %d on storage '%s'", most, s.Name)
	}
	return nil
}

// protectedLike counts the protected backups of the same guest and kind as another backup
// (update_volume_attribute in PVE/Storage.pm).
func (s *store) protectedLike(node string, like *volume) int {
	kind, _, _ := strings.Cut(strings.TrimPrefix(like.name, "backup/vzdump-"), "-")
	_, protected := s.backupsOf(node, &guest{vmid: like.vmid, kind: kind})
	return protected
}

// apiUpdateVolume is PUT …/content/{volume}: notes and protection, of backups.
func apiUpdateVolume(_ *world, c *call) (any, error) {
	s, name, err := c.callVolume()
	if err != nil {
		return nil, err
	}
	parsed, err := s.parseName(name)
	if err != nil {
		return nil, err
	}
	if c.has("notes") && parsed.content != "backup" {
		return nil, fail("only backups can have notes")
	}
	if c.has("protected") && parsed.content != "backup" {
		return nil, fail("only backups support attribute 'protected'")
	}
	v := s.find(c.in["node"], name)
	if v == nil {
		return nil, nil // Files beside one that is not there: nothing shows them.
	}
	if c.has("notes") {
		v.notes = c.in["notes"]
	}
	if c.flag("protected") && !v.protected {
		if err := c.mayProtect(s, s.protectedLike(c.in["node"], v)); err != nil {
			return nil, err
		}
	}
	if c.has("protected") {
		v.protected = c.flag("protected")
	}
	return nil, nil
}
