package pvesim

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// unusedID fails when a guest has the id, on whatever node (check_vmid_unused
// in PVE/Cluster.pm).
func (w *world) unusedID(vmid int) error {
	g := w.guests[vmid]
	if g == nil {
		return nil
	}
	return fail("%s %d already exists on node '%s'", g.title(), vmid, g.node)
}

// mayCreate checks pool, storage and the right to make a guest, to let HA manage it, and,
// since qemu-server 9.1.11, to start it.
func (c *call) mayCreate(vmid int, pool, storage string) error {
	if pool != "" && c.w.pools[pool] == nil {
		return forbidden("pool '" + pool + "' does not exist")
	}
	if storage != "" {
		if err := c.need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
			return err
		}
	}
	if c.flag("ha-managed") {
		if err := c.need("/", "Sys.Console"); err != nil {
			return err
		}
	}
	if c.flag("start") && c.w.v92() {
		if err := c.needVM(vmid, pool, "VM.PowerMgmt"); err != nil {
			return err
		}
	}
	if c.can(vmPath(vmid), "VM.Allocate") || pool != "" && c.can("/pool/"+pool, "VM.Allocate") {
		return nil
	}
	return forbidden("")
}

// change is what an update of a configuration asks for.
type change struct {
	set    map[string]string
	remove []string
	revert []string
	force  bool // Free the volumes of removed drives.
	null   []string
}

func (ch *change) has(key string) bool {
	_, ok := ch.set[key]
	return ok
}

// cleanupPending drops waiting changes that change nothing.
func (g *guest) cleanupPending() {
	for key, value := range g.pend {
		if old, ok := g.conf[key]; ok && old == value {
			delete(g.pend, key)
		}
	}
	going := g.deletions()
	for key := range going {
		if _, ok := g.conf[key]; !ok {
			delete(going, key)
		}
	}
	g.setDeletions(going)
}

// isPublicKey says whether a line of authorized_keys holds a key: its type and
// a base64 blob that begins with the same type (RFC 4253, section 6.6).
func isPublicKey(line string) bool {
	fields := strings.Fields(line)
	for i := 0; i+1 < len(fields); i++ {
		blob, err := base64.StdEncoding.DecodeString(fields[i+1])
		if err != nil || len(blob) < 4 {
			continue
		}
		n := int(binary.BigEndian.Uint32(blob))
		if n > 0 && n <= len(blob)-4 && string(blob[4:4+n]) == fields[i] && len(blob) > 4+n {
			return true
		}
	}
	return false
}

// checkHookscript fails unless a volume is a script that is there (check_hookscript in
// pve-guest-common, PVE/GuestHelpers.pm). It does not matter whether the storage is enabled.
func (w *world) checkHookscript(volid string) error {
	storage, name, managed := volumeID(volid)
	if !managed {
		return fail("unable to parse volume ID '%s'", volid)
	}
	st := w.stores[storage]
	if st == nil {
		return fail("storage '%s' does not exist", storage)
	}
	parsed, err := st.parseName(name)
	switch {
	case err != nil:
		return err
	case parsed.content != "snippets":
		return fail("'%s' is not in the snippets directory", volid)
	case st.find(w.cfg.Node, name) == nil:
		return fail("script '%s' does not exist", volid)
	}
	return nil
}

// apiGetConfig is GET /nodes/{node}/qemu/{vmid}/config: with waiting changes
// made, unless current is asked for.
func apiGetConfig(_ *world, c *call) (any, error) {
	if c.flag("current") && c.has("snapshot") {
		wrong := "cannot use 'snapshot' parameter with 'current'"
		return nil, &apiError{status: 400, errors: map[string]string{"snapshot": wrong, "current": wrong}}
	}
	g, err := c.guestCall()
	if err != nil {
		return nil, err
	}
	hidden := c.hiddenOfCT(g)
	if name := c.in["snapshot"]; name != "" {
		shown, err := g.snapshotConfig(name)
		maps.DeleteFunc(shown, func(key string, _ any) bool { return hidden[key] })
		return shown, err
	}
	conf := g.conf
	if !c.flag("current") {
		conf = g.present()
	}
	result := make(map[string]any, len(conf)+1)
	for key, value := range conf {
		if !hidden[key] {
			result[key] = masked(key, typed(g.kind, key, value))
		}
	}
	result["digest"] = g.sum()
	return result, nil
}

// apiPending is GET …/pending: each key with what waits for it
// (config_with_pending_array in PVE/GuestHelpers.pm).
func apiPending(_ *world, c *call) (any, error) {
	g, err := c.guestCall()
	if err != nil {
		return nil, err
	}
	hidden, going := c.hiddenOfCT(g), g.deletions()
	list := []map[string]any{{"key": "digest", "value": g.sum()}}
	for _, key := range slices.Sorted(maps.Keys(g.conf)) {
		if hidden[key] {
			continue
		}
		item := map[string]any{"key": key, "value": masked(key, typed(g.kind, key, g.conf[key]))}
		if waiting, ok := g.pend[key]; ok {
			item["pending"] = masked(key, typed(g.kind, key, waiting))
		}
		if force, ok := going[key]; ok {
			item["delete"] = 1 + boolInt(force)
		}
		list = append(list, item)
	}
	for _, key := range slices.Sorted(maps.Keys(g.pend)) {
		if _, ok := g.conf[key]; !ok && key != "delete" && !hidden[key] {
			list = append(list, map[string]any{"key": key, "pending": masked(key, typed(g.kind, key, g.pend[key]))})
		}
	}
	return list, nil
}

// snapshotConfig is the configuration of a snapshot, with the digest of the file.
func (g *guest) snapshotConfig(name string) (map[string]any, error) {
	s := g.snapshot(name)
	if s == nil {
		return nil, fail("snapshot '%s' does not exist", name)
	}
	result := s.shown(g.kind)
	result["digest"] = g.sum()
	return result, nil
}

// hiddenOfCT are the keys of a container that not everybody who may look at it sees, for
// they may hold secrets (delete_read_restricted_options in PVE/LXC.pm, since 6.0.15).
func (c *call) hiddenOfCT(g *guest) map[string]bool {
	if g.kind != "lxc" || c.needVM(g.vmid, "", "VM.Config.Options") == nil {
		return nil
	}
	return map[string]bool{"env": true}
}

// replicationJobs are the ids of the jobs of a guest.
func (w *world) replicationJobs(vmid int) []string {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(w.sections["replication"])) {
		if strings.HasPrefix(id, fmt.Sprint(vmid, "-")) {
			ids = append(ids, id)
		}
	}
	return ids
}

// notReplicated fails for a guest that is to go while a job copies it
// (check_for_existing_jobs in PVE/ReplicationConfig.pm).
func (w *world) notReplicated(g *guest) error {
	if ids := w.replicationJobs(g.vmid); len(ids) > 0 {
		return fail("There is a replication job '%s' for guest '%d' - Please remove that first.", ids[0], g.vmid)
	}
	return nil
}

// purge removes a guest that goes from what names it elsewhere.
func (w *world) purge(g *guest) {
	w.ha.forget(g)
	for id, job := range w.sections["jobs"] {
		list := splitList(job["vmid"])
		if left := slices.DeleteFunc(slices.Clone(list), func(word string) bool { return atoi(word) == g.vmid }); len(left) < len(list) {
			if job["vmid"] = strings.Join(left, ","); len(left) == 0 {
				delete(w.sections["jobs"], id)
			}
		}
	}
	for _, id := range w.replicationJobs(g.vmid) {
		delete(w.sections["replication"], id)
	}
}
