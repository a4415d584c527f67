package guests

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// UnusedID fails when a guest has the id, on whatever node (check_vmid_unused
// in PVE/Cluster.pm).
func UnusedID(w *core.World, vmid int) error {
	g := w.Guests[vmid]
	if g == nil {
		return nil
	}
	return perl.Fail("%s %d already exists on node '%s'", g.Title(), vmid, g.Node)
}

// MayCreate checks pool, storage and the right to make a guest, to let HA manage it, and,
// since qemu-server 9.1.11, to start it.
func MayCreate(c *core.Call, vmid int, pool, storage string) error {
	if pool != "" && c.W.Access.Pools[pool] == nil {
		return perl.Forbidden("pool '" + pool + "' does not exist")
	}
	if storage != "" {
		if err := c.Need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
			return err
		}
	}
	if c.Flag("ha-managed") {
		if err := c.Need("/", "Sys.Console"); err != nil {
			return err
		}
	}
	if c.Flag("start") && c.W.V92() {
		if err := c.NeedVM(vmid, pool, "VM.PowerMgmt"); err != nil {
			return err
		}
	}
	if c.Can(core.VMPath(vmid), "VM.Allocate") || pool != "" && c.Can("/pool/"+pool, "VM.Allocate") {
		return nil
	}
	return perl.Forbidden("")
}

// Change is a requested update of a configuration.
type Change struct {
	Set    map[string]string
	Remove []string
	Revert []string
	Force  bool // Free the volumes of removed drives.
	Null   []string
}

// Has says whether a key is set.
func (ch *Change) Has(key string) bool {
	_, ok := ch.Set[key]
	return ok
}

// CleanupPending drops waiting changes that change nothing.
func CleanupPending(g *core.Guest) {
	for key, value := range g.Pend {
		if old, ok := g.Conf[key]; ok && old == value {
			delete(g.Pend, key)
		}
	}
	going := g.Deletions()
	for key := range going {
		if _, ok := g.Conf[key]; !ok {
			delete(going, key)
		}
	}
	g.SetDeletions(going)
}

// IsPublicKey says whether a line of authorized_keys holds a key: its type and
// a base64 blob that begins with the same type (RFC 4253, section 6.6).
func IsPublicKey(line string) bool {
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

// CheckHookscript fails unless a volume is a script that is there (check_hookscript in
// pve-guest-common, PVE/GuestHelpers.pm). It does not matter whether the storage is enabled.
func CheckHookscript(w *core.World, volid string) error {
	storage, name, managed := core.VolumeID(volid)
	if !managed {
		return perl.Fail("unable to parse volume ID '%s'", volid)
	}
	st := w.Stores[storage]
	if st == nil {
		return perl.Fail("storage '%s' does not exist", storage)
	}
	parsed, err := st.ParseName(name)
	switch {
	case err != nil:
		return err
	case parsed.Content != "snippets":
		return perl.Fail("'%s' is not in the snippets directory", volid)
	case st.Find(w.Cfg.Node, name) == nil:
		return perl.Fail("script '%s' does not exist", volid)
	}
	return nil
}

// apiGetConfig is GET /nodes/{node}/qemu/{vmid}/config: with waiting changes
// made, unless current is asked for.
func apiGetConfig(_ *core.World, c *core.Call) (any, error) {
	if c.Flag("current") && c.Has("snapshot") {
		wrong := "cannot use 'snapshot' parameter with 'current'"
		return nil, &perl.APIError{Status: 400, Errors: map[string]string{"snapshot": wrong, "current": wrong}}
	}
	g, err := c.Guest()
	if err != nil {
		return nil, err
	}
	hidden := hiddenOfCT(c, g)
	if name := c.In["snapshot"]; name != "" {
		shown, err := snapshotConfig(g, name)
		maps.DeleteFunc(shown, func(key string, _ any) bool { return hidden[key] })
		return shown, err
	}
	conf := g.Conf
	if !c.Flag("current") {
		conf = g.Present()
	}
	result := make(map[string]any, len(conf)+1)
	for key, value := range conf {
		if !hidden[key] {
			result[key] = core.Masked(key, perl.Typed(g.Kind, key, value))
		}
	}
	result["digest"] = g.Sum()
	return result, nil
}

// apiPending is GET …/pending: each key with what waits for it
// (config_with_pending_array in PVE/GuestHelpers.pm). It has no order, since the hashes of Perl have none: of 62 recorded
// answers whose content did not change 55 were in another order.
func apiPending(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	hidden, going := hiddenOfCT(c, g), g.Deletions()
	list := []map[string]any{{"key": "digest", "value": g.Sum()}}
	for _, key := range core.Unordered(w, maps.Keys(g.Conf)) {
		if hidden[key] {
			continue
		}
		item := map[string]any{"key": key, "value": core.Masked(key, perl.Typed(g.Kind, key, g.Conf[key]))}
		if waiting, ok := g.Pend[key]; ok {
			item["pending"] = core.Masked(key, perl.Typed(g.Kind, key, waiting))
		}
		if force, ok := going[key]; ok {
			item["delete"] = 1 + perl.BoolInt(force)
		}
		list = append(list, item)
	}
	for _, key := range core.Unordered(w, maps.Keys(g.Pend)) {
		if _, ok := g.Conf[key]; !ok && key != "delete" && !hidden[key] {
			list = append(list, map[string]any{"key": key, "pending": core.Masked(key, perl.Typed(g.Kind, key, g.Pend[key]))})
		}
	}
	return list, nil
}

// snapshotConfig is the configuration of a snapshot, with the digest of the file.
func snapshotConfig(g *core.Guest, name string) (map[string]any, error) {
	s := g.Snapshot(name)
	if s == nil {
		return nil, perl.Fail("snapshot '%s' does not exist", name)
	}
	result := shown(s, g.Kind)
	result["digest"] = g.Sum()
	return result, nil
}

// hiddenOfCT are the keys of a container that some of its readers do not see, for
// they may hold secrets (delete_read_restricted_options in PVE/LXC.pm, since 6.0.15).
func hiddenOfCT(c *core.Call, g *core.Guest) map[string]bool {
	if g.Kind != "lxc" || c.NeedVM(g.Vmid, "", "VM.Config.Options") == nil {
		return nil
	}
	return map[string]bool{"env": true}
}

// replicationJobs are the ids of the jobs of a guest.
func replicationJobs(w *core.World, vmid int) []string {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(w.Sections["replication"])) {
		if strings.HasPrefix(id, fmt.Sprint(vmid, "-")) {
			ids = append(ids, id)
		}
	}
	return ids
}

// NotReplicated fails for a guest that is to go while a job copies it
// (check_for_existing_jobs in PVE/ReplicationConfig.pm).
func NotReplicated(w *core.World, g *core.Guest) error {
	if ids := replicationJobs(w, g.Vmid); len(ids) > 0 {
		return perl.Fail("There is a replication job '%s' for guest '%d' - Please remove that first.", ids[0], g.Vmid)
	}
	return nil
}

// Purge removes a guest that goes from what names it elsewhere.
func Purge(w *core.World, g *core.Guest) {
	w.HA.Forget(g)
	for id, job := range w.Sections["jobs"] {
		list := perl.SplitList(job["vmid"])
		if left := slices.DeleteFunc(slices.Clone(list), func(word string) bool { return perl.Atoi(word) == g.Vmid }); len(left) < len(list) {
			if job["vmid"] = strings.Join(left, ","); len(left) == 0 {
				delete(w.Sections["jobs"], id)
			}
		}
	}
	for _, id := range replicationJobs(w, g.Vmid) {
		delete(w.Sections["replication"], id)
	}
}
