package inventory

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// backups reads how old the backups of guests are. It asks each storage once on each PVE node with such a guest, and none if no
// node says how old they may be or that they are to be verified. Of a PVE node with a stale one it asks once for the last backup.
type backups struct {
	*kind.Observation
	now    time.Time
	listed map[api.NodeStorage]listedArchives
	causes map[string]string // by PVE nodes; see cause
}

type listedArchives struct {
	of  map[int][]map[string]json.RawMessage // by the VMIDs of their guests
	err error
}

// Backups notes on the observed guests what their storages list of their backups. It returns what is stale, and the one
// verification that is due first.
func Backups(ctx context.Context, obs *kind.Observation, have model.State) (out model.Observed, err error) {
	b := backups{obs, time.Now(), map[api.NodeStorage]listedArchives{}, map[string]string{}}
	var due *model.Resource
	var oldest time.Time
	for _, addr := range have.Find(func(r *model.Resource) bool { return r.Guest != nil && obs.Want.Backups[r.Addr] != nil }) {
		of, r := obs.Want.Backups[addr], have[addr]
		if of.MaxAge == 0 && of.Verify == "" || !obs.View.Nodes[r.Guest.Node] {
			continue
		}
		st, damaged, err := b.read(ctx, r, of)
		if err != nil {
			return out, err
		}
		was := obs.Want.Restored[addr]
		if !was.Proved.IsZero() {
			st.Proved = &was.Proved
		}
		st.Failed = was.Error
		r.Guest.Backup = st
		out.Findings = append(out.Findings, b.findings(ctx, r, of, damaged)...)
		if obs.Want.Restored == nil || st.Newest == nil || !of.Due(was, b.now) || !obs.Host.ID.HasKey() {
			continue
		}
		if n := obs.Want.State[addr]; n != nil && n.Guest != nil && (due == nil || was.Proved.Before(oldest)) { // one in a pass: each loads the storage
			oldest, due = was.Proved, &model.Resource{
				Addr: model.Address{Kind: model.RestoreKind, Name: addr.RestoreName()}, At: of.RangeOf("verify"),
				Spec:  &model.RestoreTest{Archive: st.Archive, Of: addr, Disk: api.StorageOf(obs.Configs[api.RefOf(r)].Config.Now["rootfs"])},
				Guest: &model.Guest{Choose: n.Guest.Choose, Node: r.Guest.Node},
			}
		}
	}
	if due != nil {
		out.Further = []*model.Resource{due}
	}
	return out, nil
}

// clockAhead is how far the clock of a storage may be ahead of ours. An archive from later has no age.
const clockAhead = 10 * time.Minute

// archives lists the archives on a storage.
func (b backups) archives(ctx context.Context, at api.NodeStorage) listedArchives {
	all, asked := b.listed[at]
	if asked {
		return all
	}
	list, err := b.Volumes(ctx, at, "backup")
	all = listedArchives{make(map[int][]map[string]json.RawMessage), err}
	for _, e := range list {
		vmid := api.Number(e["vmid"])
		all.of[vmid] = append(all.of[vmid], e)
	}
	b.listed[at] = all
	return all
}

// read finds the newest archive of a guest that its storage lists with a size, and the newest one that a Proxmox Backup Server found
// damaged, "" for none since then.
func (b backups) read(ctx context.Context, r *model.Resource, of *model.Backup) (st *model.BackupState, damaged string, err error) {
	at := api.NodeStorage{Node: r.Guest.Node, Storage: of.Storage}
	all := b.archives(ctx, at)
	st = &model.BackupState{Storage: of.Storage}
	if all.err != nil {
		if api.EndsPass(ctx, all.err) {
			return nil, "", all.err
		}
		st.Stale = fmt.Sprintf("the backups on storage %s cannot be listed: %v", of.Storage, all.err)
		return st, "", nil
	}
	ref := api.RefOf(r)
	made := time.Unix(int64(api.Number(json.RawMessage(`"`+api.PropertyValue(b.Configs[ref].Config.Now["meta"], "ctime")+`"`))), 0)
	future, failed := "", time.Time{}
	for _, e := range all.of[ref.VMID] {
		ctime, volid := time.Unix(int64(api.Number(e["ctime"])), 0).UTC(), api.Text(e["volid"])
		switch {
		case api.Number(e["size"]) < api.LeastArchive, !isArchiveOf(volid, ref.LXC):
		case ctime.Before(made): // of another guest that had this VMID
		case ctime.After(b.now.Add(clockAhead)):
			future = fmt.Sprintf("; %s is dated %s, in the future: set the clocks right, and remove it", volid, ctime.Format(time.DateTime))
		case api.Verified(e["verification"]) == "failed":
			if ctime.After(failed) {
				failed, damaged = ctime, volid
			}
		case st.Newest == nil || ctime.After(*st.Newest):
			st.Newest, st.Archive, st.Size = &ctime, volid, api.Number(e["size"])
		}
	}
	if st.Newest != nil && st.Newest.After(failed) {
		damaged = ""
	}
	switch {
	case of.MaxAge == 0:
	case st.Newest == nil && b.now.Sub(made) > of.MaxAge:
		st.Stale = fmt.Sprintf("storage %s lists no backup of it", of.Storage)
	case st.Newest != nil && b.now.Sub(*st.Newest) > of.MaxAge:
		st.Stale = fmt.Sprintf("the newest on storage %s is %s old, more than max_age %s", of.Storage, b.now.Sub(*st.Newest).Truncate(time.Minute), of.MaxAge)
	}
	if st.Stale != "" {
		st.Stale += future
	}
	return st, damaged, nil
}

// isArchiveOf reports whether a volume is the backup of a guest of that sort: a file of vzdump, or a snapshot on a Proxmox Backup
// Server (PVE/Storage/Plugin.pm and PBSPlugin.pm, parse_volname).
func isArchiveOf(volid string, lxc bool) bool {
	_, name, _ := strings.Cut(volid, ":")
	if lxc {
		return strings.HasPrefix(name, "backup/vzdump-lxc-") || strings.HasPrefix(name, "backup/ct/")
	}
	return strings.HasPrefix(name, "backup/vzdump-qemu-") || strings.HasPrefix(name, "backup/vm/")
}

// findings are what is wrong with the backups of a guest.
func (b backups) findings(ctx context.Context, r *model.Resource, of *model.Backup, damaged string) (out diag.List) {
	warn := func(at, summary, detail string) {
		out = append(out, diag.Finding{Severity: diag.Warning, Source: diag.FromGuard, Address: r.Addr.String(), At: of.RangeOf(at), Summary: summary, Detail: detail})
	}
	st := r.Guest.Backup
	if st.Stale != "" {
		warn("max_age", fmt.Sprintf("the backup of %s is stale: %s", r.Addr, st.Stale), b.causeOn(ctx, r.Guest.Node))
	}
	if damaged != "" {
		warn("storage", fmt.Sprintf("the backup %s of %s is damaged", damaged, r.Addr), "The Proxmox Backup Server verified it, and that failed: the log of the verification there says why. It does not count. Run the backup job once, and check the disks of the server.")
	}
	was := b.Want.Restored[r.Addr]
	if st.Failed != "" {
		warn("verify", fmt.Sprintf("the backup of %s could not be verified: %s", r.Addr, st.Failed), fmt.Sprintf("tried at %s with %s. It is retried in the window %s.", was.Tried.UTC().Format(time.DateTime), was.Archive, of.Window))
	}
	if of.Verify != "" && !b.Host.ID.HasKey() {
		warn("verify", fmt.Sprintf("the backup of %s is not verified: the site has no ownership key", r.Addr), "Without one an interrupted verification could not be identified, and so not be removed. `homestak-gitops init` makes one: auth.ownership_key in the secrets.")
	}
	return out
}

// causeOn is cause, asked once in a pass.
func (b backups) causeOn(ctx context.Context, node string) string {
	if b.causes[node] == "" {
		b.causes[node] = b.cause(ctx, node)
	}
	return b.causes[node]
}

// cause says how the last backup on a PVE node ended, as far as the token sees it.
func (b backups) cause(ctx context.Context, node string) string {
	const next = "check the backup job and its log (Datacenter, Backup), and run it once"
	var list []api.TaskEntry
	err := api.ReadList(ctx, b.Host.API, api.Path("nodes", node, "tasks")+"?limit=1&source=archive&typefilter=vzdump", &list)
	switch {
	case err != nil:
		return next
	case len(list) == 0:
		return fmt.Sprintf("node %s shows no backup task: %s", node, next)
	case list[0].Status == "OK":
		return fmt.Sprintf("the last backup task on node %s succeeded: %s", node, next)
	}
	return fmt.Sprintf("the last backup task on node %s ended with: %s; `pvenode task log %s` shows why", node, list[0].Status, list[0].UPID)
}
