package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Conditions of a guest's ownership tag for its removal. The tag counts and not the files: they are gone when a
// guest is removed.

// RefuseRemoval says in the plan what would be refused by the step: all that can be known
// without asking the host once more.
func RefuseRemoval(m owner.Tag, g *model.Guest, next map[string]string) []model.Problem {
	problem := func(why, fix string) []model.Problem {
		return []model.Problem{{Path: "decommission.policy", Summary: why, Detail: fix}}
	}
	switch p := m.RemovalPolicy(); {
	case p != owner.RemoveAtOnce && p != owner.RemoveBackedUp && p != owner.RemoveUnused:
		return problem("its decommission policy "+p+" is not known here", "use the version of this program that wrote it, or declare another policy and apply it first")
	case p == owner.RemoveUnused && g.Running:
		return problem("it runs, and its decommission policy is "+p, moveFirst)
	case p == owner.RemoveBackedUp && notBackedUp(next) != "":
		return problem("no backup would hold its "+notBackedUp(next)+", and its decommission policy is "+p, saveAll)
	default:
		return nil
	}
}

const moveFirst = "move what it does elsewhere, set power = \"stopped\", apply it, and remove it then"

const saveAll = "attach it without backup=0 (a mount point with backup=1), move it to another guest, or remove it by hand"

// notBackedUp names the volumes of a guest that go with it, but into no backup: detached
// ones, those with backup=0, and mount points without backup=1 (PVE/VZDump/*.pm).
func notBackedUp(next map[string]string) string {
	var out []string
	for key, val := range next {
		mount := strings.HasPrefix(key, "mp")
		if !mount && !api.IsDrive(key) || !api.HoldsData(val) {
			continue
		}
		saved := api.ParseProperty(val).Values["backup"]
		if strings.HasPrefix(key, "unused") || saved == "0" || mount && saved != "1" {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// replication is a job that copies a guest to another node.
type replication struct {
	ID    string          `json:"id"`
	Guest json.RawMessage `json:"guest"`
}

// mustBeUnused refuses while a guest is in use. That is so, as far as a host can know,
// while it runs or is replicated. Its health checks are not asked: they can only pass
// while it runs.
func (r target) mustBeUnused(ctx context.Context) error {
	now, err := r.power().State(ctx)
	if err != nil {
		return fmt.Errorf("cannot check whether %s is in use: %w", r.at, err)
	}
	var jobs []replication
	if err := api.ReadList(ctx, r.host.API, "/cluster/replication", &jobs); err != nil {
		return fmt.Errorf("cannot check whether %s is replicated: %w", r.at, err)
	}
	why := ""
	switch i := slices.IndexFunc(jobs, func(j replication) bool { return api.Number(j.Guest) == r.at.VMID }); {
	case now.Running:
		why = "it runs"
	case i >= 0:
		why = "replication job " + jobs[i].ID + " copies it"
	}
	if why != "" {
		return fmt.Errorf("%s is in use (%s), and its decommission policy is %s: %s", r.at, why, owner.RemoveUnused, moveFirst)
	}
	return nil
}

// archive is a backup as a storage lists it.
type archive struct {
	VolID string          `json:"volid"`
	VMID  json.RawMessage `json:"vmid"`
	Size  json.RawMessage `json:"size"`
	CTime json.RawMessage `json:"ctime"`
	Notes string          `json:"notes"`

	Verification json.RawMessage `json:"verification"`
}

// finalBackup is the final backup of one guest.
type finalBackup struct {
	target
	storage string
	notes   string    // which guest this is the last backup of: of this incarnation, by its uuid
	before  []archive // what was there already
}

// newFinalBackup checks whether a backup can be made and seen, before the guest is shut
// down for it: rights that are missing, a storage that is away or keeps no backups.
func (r target) newFinalBackup(ctx context.Context, m owner.Tag) (*finalBackup, error) {
	f := &finalBackup{target: r, storage: r.host.Model.BackupStorage(), notes: fmt.Sprintf("homestak-gitops final backup of %s (%s)", m.Addr(), m.UUID)}
	for _, need := range []struct {
		path  string
		privs []string
	}{
		{fmt.Sprintf("/vms/%d", r.at.VMID), []string{"VM.Backup"}},
		{"/storage/" + f.storage, []string{"Datastore.AllocateSpace", "Datastore.Audit"}},
	} {
		if missing, err := lacksPrivilege(ctx, r.host.API, need.path, need.privs...); err != nil || missing != "" {
			if err == nil {
				err = fmt.Errorf("the token %s lacks %s on %s: `homestak-gitops doctor` prints the commands that grant it", r.host.API.User(), missing, need.path)
			}
			return nil, fmt.Errorf("a final backup of %s to %s is not possible: %w", r.at, f.storage, err)
		}
	}
	var st struct {
		Content string          `json:"content"`
		Active  json.RawMessage `json:"active"`
	}
	if err := r.host.API.Get(ctx, api.Path("nodes", r.at.Node, "storage", f.storage, "status"), &st); err != nil {
		return nil, fmt.Errorf("a final backup of %s to %s is not possible: %w", r.at, f.storage, err)
	}
	if !slices.Contains(strings.Split(st.Content, ","), "backup") || api.Number(st.Active) != 1 {
		return nil, fmt.Errorf("a final backup of %s is not possible: storage %s on node %s is not active or keeps no backups (it has: %s): set storage { backups } of the host to one that does", r.at, f.storage, r.at.Node, strings.Join(api.ContentTypes(st.Content), ","))
	}
	var err error
	f.before, err = f.list(ctx)
	return f, err
}

// list are the final backups of this guest that can be seen, are not empty, and not found damaged by a Proxmox Backup Server.
func (f *finalBackup) list(ctx context.Context) ([]archive, error) {
	var all []archive
	path := api.Path("nodes", f.at.Node, "storage", f.storage, "content") + "?content=backup&vmid=" + strconv.Itoa(f.at.VMID)
	if err := api.ReadList(ctx, f.host.API, path, &all); err != nil {
		return nil, fmt.Errorf("listing the backups in %s: %w", f.storage, err)
	}
	return slices.DeleteFunc(all, func(a archive) bool {
		return api.Number(a.VMID) != f.at.VMID || api.Number(a.Size) < api.LeastArchive || api.Verified(a.Verification) == "failed" || strings.TrimSpace(a.Notes) != f.notes
	}), nil
}

// recent is the maximum age of a backup of an earlier run to count for this removal.
const recent = 24 * time.Hour

// quiet are the tasks that leave a guest's data as a backup has them.
var quiet = []string{"vzdump", "qmshutdown", "qmstop", "vzshutdown", "vzstop", "hastop", "qmdestroy", "vzdestroy", "imgdel"}

// found searches for a backup that an earlier run of this same removal finished. It
// counts only if the guest was found stopped and nothing was done to it since, which
// takes the right to see other people's tasks; else another backup is made.
func (f *finalBackup) found(ctx context.Context) (string, error) {
	for _, a := range slices.Backward(f.before) {
		// A time in the future shows that our clock is behind, so its age is unknown.
		if time.Since(time.Unix(int64(api.Number(a.CTime)), 0)).Abs() > recent {
			continue
		}
		if missing, err := lacksPrivilege(ctx, f.host.API, "/nodes/"+f.at.Node, "Sys.Audit"); err != nil || missing != "" {
			return "", err
		}
		var since []api.TaskEntry
		path := fmt.Sprintf("%s?limit=500&source=all&vmid=%d&since=%d", api.Path("nodes", f.at.Node, "tasks"), f.at.VMID, api.Number(a.CTime))
		if err := api.ReadList(ctx, f.host.API, path, &since); err != nil {
			return "", fmt.Errorf("asking what was done to %s since its backup: %w", f.at, err)
		}
		if !slices.ContainsFunc(since, func(e api.TaskEntry) bool { return !slices.Contains(quiet, api.TaskType(e.UPID)) }) {
			return a.VolID, nil
		}
	}
	return "", nil
}

// make orders the backup and returns its volume once the storage shows it. Protected,
// or the first backup of whatever guest gets this VMID next would prune it. Whatever the
// mode, a stopped guest is backed up as it is; mode stop is refused though
// while the HA manager has not yet noted that the guest shall be stopped, and snapshot is
// not (PVE/VZDump.pm, exec_backup_task).
func (f *finalBackup) make(ctx context.Context) (string, error) {
	upid, err := f.host.API.Post(ctx, api.Path("nodes", f.at.Node, "vzdump"), api.Params{
		"vmid": strconv.Itoa(f.at.VMID), "storage": f.storage, "mode": "snapshot", "compress": "zstd",
		"notes-template": f.notes, "protected": true, "remove": false,
	})
	err = f.host.API.AwaitWrite(ctx, upid, err)
	if errors.Is(err, api.ErrOutcomeLost) { // it may be at work, or be done
		if _, _, waitErr := f.power().AwaitOwnTasks(ctx); waitErr != nil {
			return "", fmt.Errorf("%w; and %w", err, waitErr)
		}
	} else if err != nil {
		return "", err
	}
	after, listErr := f.list(ctx)
	if listErr != nil {
		return "", errors.Join(err, listErr)
	}
	for _, a := range after {
		if !slices.ContainsFunc(f.before, func(b archive) bool { return b.VolID == a.VolID }) {
			return a.VolID, nil
		}
	}
	if err != nil {
		return "", err
	}
	return "", fmt.Errorf("the task went well, but storage %s shows no backup of it with anything in it: check `pvesm list %s --vmid %d` on node %s", f.storage, f.storage, f.at.VMID, f.at.Node)
}

// lacksPrivilege names the first privilege that the token does not have on a path; "" if it has all.
func lacksPrivilege(ctx context.Context, c *api.Client, path string, privs ...string) (string, error) {
	var rights map[string]map[string]json.RawMessage
	if err := c.Get(ctx, "/access/permissions?path="+path, &rights); err != nil {
		return "", err
	}
	for _, p := range privs {
		if _, has := rights[path][p]; !has {
			return p, nil
		}
	}
	return "", nil
}
