package objects

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// BackupKind is the kind backup: the jobs that the backup blocks of nodes, manifests and the site become.
var BackupKind = kind.Of[model.BackupJob]{
	Model: model.Kind{
		Name: model.BackupKind, Doc: "A job of Proxmox VE that backs up guests.",
		New:     func() any { return &model.BackupJob{} },
		Resolve: resolveBackup,
		Brief: func(r *model.Resource) string {
			j := r.Spec.(*model.BackupJob)
			return fmt.Sprintf("%s to %s, of %s", j.Schedule, j.Storage, strings.Join(j.VMIDs, ", "))
		},
	},
	List: listBackups,
	Privileges: func(j *model.BackupJob, n *kind.Needs) {
		n.Add(kind.Need{Grant: kind.Grant{Path: "/", Priv: "Sys.Audit"}, Role: kind.RoleCluster, For: "reading backup jobs"}, "")
		n.Add(kind.Need{Grant: kind.Grant{Path: "/", Priv: "Sys.Modify"}, Role: kind.RoleStartup, For: "creating, changing and removing backup jobs"}, "")
		n.Add(kind.Need{Grant: kind.Grant{Path: "/storage/" + j.Storage, Priv: "Datastore.Allocate"}, Role: kind.RoleBackupJobs, For: "backup jobs to it, which may prune"}, "storage")
		n.Uses = append(n.Uses, kind.StorageUse{Storage: j.Storage, Content: "backup", By: n.From, Attr: "storage"})
	},
	Create: func(ctx context.Context, h *kind.Host, s plan.Step, want *model.BackupJob) error {
		return writeBackup(ctx, h, s.Address.Name, want)
	},
	Update: func(ctx context.Context, h *kind.Host, s plan.Step, want, _ *model.BackupJob) error {
		return writeBackup(ctx, h, s.Address.Name, want)
	},
	Remove: func(ctx context.Context, h *kind.Host, s plan.Step) error {
		name := s.Address.Name
		jobs, err := readBackups(ctx, h)
		if err != nil {
			return attempt("reading backup jobs", err)
		}
		job, there := jobs[backupID(h, name)]
		switch {
		case !there:
			return nil
		case !job.ours:
			return fmt.Errorf("backup job %s: %w", backupID(h, name), errUnmanagedJob)
		}
		_, err = h.API.Delete(ctx, api.Path("cluster", "backup", backupID(h, name)), nil)
		if api.ClassOf(err) == api.OutcomeUnknown || err != nil && strings.Contains(err.Error(), "No such job") {
			if jobs, readErr := readBackups(ctx, h); readErr == nil && jobs[backupID(h, name)].id == "" {
				return nil // the removal of its last guest took it along, or the answer was lost
			}
		}
		return attempt("removing backup job "+backupID(h, name), err)
	},
}

var errUnmanagedJob = errors.New("it is not managed any more (no valid ownership tag in its comment): not changed")

// longestID is the longest ID of a job that can be changed and removed; creating one with a longer ID succeeds (PVE/API2/Backup.pm).
const longestID = 50

// backupID is the ID of a job: no other site and no other host has it in a cluster that they share.
func backupID(h *kind.Host, name string) string {
	parts := []string{"homestak", h.ID.Site, h.Model.Name, name}
	id := strings.Join(parts, "-")
	if len(id) > longestID {
		sum := fmt.Sprintf("-%x", sha256.Sum256([]byte(strings.Join(parts, "\x00"))))[:13]
		id = id[:longestID-len(sum)] + sum
	}
	return id
}

// backupTag is the ownership tag of a job. It names the job, and the job's ID follows from it: so a copy of the tag on another job
// proves nothing.
func backupTag(h *kind.Host, name string) owner.Tag {
	return h.ID.Sign(owner.Tag{Site: h.ID.Site, Type: model.BackupKind, Node: name, Owner: h.Model.Name}, api.GuestRef{}, api.GuestConfig{})
}

// resolveBackup checks a job by what Proxmox VE accepts.
func resolveBackup(r *model.Resource, _ model.Scope) []model.Problem {
	j := r.Spec.(*model.BackupJob)
	m, _, _ := pveapi.Lookup("POST", "/cluster/backup")
	values := map[string]any{"schedule": j.Schedule, "storage": j.Storage, "vmid": "100"}
	if j.Keep != "" {
		values["prune-backups"] = j.Keep
	}
	var out []model.Problem
	refused := m.Check(values)
	for _, key := range slices.Sorted(maps.Keys(refused)) {
		path := strings.Replace(key, "prune-backups", "keep", 1)
		if path == "schedule" && j.Schedule == "" || path == "keep" && strings.Contains(refused[key], "not defined in schema") {
			continue // the loader reports it
		}
		detail := strings.TrimSpace(refused[key])
		if path == "schedule" && cronForm.MatchString(j.Schedule) {
			detail = "this is the form of cron: write a time of day such as 02:30, or a day and a time such as sat 04:00"
		}
		out = append(out, model.Problem{Path: path, Summary: fmt.Sprintf("Proxmox VE does not accept %s of this backup", path), Detail: detail})
	}
	if m := pastMidnight.FindStringSubmatch(j.Schedule); m != nil && refused["schedule"] == "" {
		out = append(out, model.Problem{Path: "schedule", Severity: diag.Warning, Summary: fmt.Sprintf("schedule %q is minute %s of every hour", j.Schedule, m[1]), Detail: "Proxmox VE reads minutes and seconds there, since a day ends at 23:59"})
	}
	return out
}

var (
	cronForm     = regexp.MustCompile(`^\s*([0-9*/,-]+\s+){3}[A-Za-z0-9*/,-]+\s+[A-Za-z0-9*/,-]+\s*$`)
	pastMidnight = regexp.MustCompile(`^(?:\S+ )?(2[4-9]|[3-5][0-9]):[0-9]+$`)
)

// job is a backup job on the host.
type job struct {
	id    string
	name  string // that its tag gives it
	found bool   // it has an ownership tag
	ours  bool   // which proves that it is ours
	spec  *model.BackupJob
}

// readBackups reads all backup jobs, by their IDs.
func readBackups(ctx context.Context, h *kind.Host) (map[string]job, error) {
	var list []map[string]json.RawMessage
	if err := api.ReadList(ctx, h.API, "/cluster/backup", &list); err != nil {
		return nil, err
	}
	jobs := map[string]job{}
	for _, e := range list {
		_, tag, found := owner.ParseDescription(api.Text(e["comment"]))
		j := job{id: api.Text(e["id"]), name: tag.Node, found: found}
		trust := owner.Unsigned
		if found && tag.Site == h.ID.Site && tag.Owner == h.Model.Name && tag.Type == model.BackupKind && j.id == backupID(h, tag.Node) {
			trust = h.ID.Trust(tag)
			j.ours = trust >= owner.Former || !h.ID.HasKey()
		}
		mode := cmp.Or(api.Text(e["mode"]), "snapshot")
		j.spec = &model.BackupJob{
			Schedule: api.Text(e["schedule"]), Storage: api.Text(e["storage"]), Mode: mode, Keep: retention(e["prune-backups"]), VMIDs: vmids(api.Text(e["vmid"])),
			Enabled: len(e["enabled"]) == 0 || api.Number(e["enabled"]) == 1, Repeats: api.Number(e["repeat-missed"]) == 1, Node: api.Text(e["node"]),
			Signed: trust == owner.Proven || !h.ID.HasKey(),
		}
		jobs[j.id] = j
	}
	return jobs, nil
}

// retention reads how many backups a job keeps: PVE lists it as an object, and stores it as text.
func retention(raw json.RawMessage) string {
	var parts []string
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) == nil {
		for key, n := range object {
			parts = append(parts, key+"="+api.Text(n))
		}
	} else if text := api.Text(raw); text != "" {
		parts = strings.Split(text, ",")
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// vmids reads a list of VMIDs, in the order in which lists are compared.
func vmids(text string) []string {
	ids := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(",; \t\n\x00", r) })
	slices.SortFunc(ids, model.CompareNames)
	return slices.Compact(ids)
}

// writeBackup creates a job, or changes the one that is there, after verifying that it is ours.
func writeBackup(ctx context.Context, h *kind.Host, name string, want *model.BackupJob) error {
	id := backupID(h, name)
	jobs, err := readBackups(ctx, h)
	if err != nil {
		return attempt("reading backup jobs", err)
	}
	have, there := jobs[id]
	if there && !have.ours {
		return fmt.Errorf("backup job %s: %w", id, errUnmanagedJob)
	}
	params := api.Params{
		"schedule": want.Schedule, "storage": want.Storage, "mode": want.Mode, "vmid": strings.Join(want.VMIDs, ","), "prune-backups": want.Keep,
		"enabled": true, "repeat-missed": true, "comment": backupTag(h, name).Line(),
	}.OmitEmpty()
	if there {
		var drop []string
		if want.Keep == "" && have.spec.Keep != "" {
			drop = append(drop, "prune-backups")
		}
		if have.spec.Node != "" {
			drop = append(drop, "node")
		}
		if params["delete"] = strings.Join(drop, ","); len(drop) == 0 {
			delete(params, "delete")
		}
		_, err = h.API.Put(ctx, api.Path("cluster", "backup", id), params)
		if err == nil || !strings.Contains(err.Error(), "no such vzdump job") {
			return attempt("changing backup job "+id, err)
		}
		delete(params, "delete") // its last guest was removed meanwhile, and PVE removed the job with it
	}
	params["id"], params["compress"] = id, "zstd"
	_, err = h.API.Post(ctx, "/cluster/backup", params)
	if c := api.ClassOf(err); c == api.Exists || c == api.OutcomeUnknown {
		if jobs, readErr := readBackups(ctx, h); readErr == nil && jobs[id].ours {
			return nil // an earlier attempt succeeded
		}
	}
	return attempt("creating backup job "+id, err)
}

// sweepJobs in Observed.SweepHints asks the next pass to read the backup jobs, also if none is wanted any more.
const sweepJobs = "backup jobs"

// listBackups reads the backup jobs, unless none is wanted and the last observation is known to have left none. A token without
// Sys.Audit on / sees none, and cannot have created one.
func listBackups(ctx context.Context, obs *kind.Observation) (model.Observed, error) {
	h := obs.Host
	out := model.Observed{State: model.State{}}
	wanted, again := obs.Wants(model.BackupKind), []string{sweepJobs}
	switch hints := obs.Want.SweepHints; {
	case wanted:
		out.SweepHints = again
	case hints != nil && !slices.Contains(hints, sweepJobs):
		return out, nil
	case !obs.View.AuditsCluster:
		out.SweepHints = again
		return out, nil
	}
	unknown := func(why string, denied bool) (model.Observed, error) {
		out.SweepHints = again
		out.Unknown = append(out.Unknown, model.Unknown{Scope: "backup jobs", Why: why, Kind: model.BackupKind, Denied: denied})
		return out, nil
	}
	jobs, err := readBackups(ctx, h)
	switch {
	case err != nil && api.EndsPass(ctx, err):
		return out, err
	case err != nil:
		return unknown(err.Error(), api.IsDenied(err))
	}
	for _, id := range slices.Sorted(maps.Keys(jobs)) {
		j := jobs[id]
		switch addr := (model.Address{Kind: model.BackupKind, Name: j.name}); {
		case j.ours:
			out.SweepHints = again
			out.State[addr] = &model.Resource{Addr: addr, Spec: j.spec, Manifest: model.BackupManifest(j.name)}
		case j.found && h.ID.KeyMissing && !h.ID.Believes && j.id == backupID(h, j.name):
			return unknown("the key that verifies their ownership tags is not known here", false)
		default:
			out.Unmanaged = append(out.Unmanaged, claimed(obs, id)...)
		}
	}
	return out, nil
}

// claimed reports a job that is not ours and has the ID of a wanted one.
func claimed(obs *kind.Observation, id string) []model.Unmanaged {
	for addr := range obs.Want.State {
		if addr.Kind == model.BackupKind && backupID(obs.Host, addr.Name) == id {
			return []model.Unmanaged{{
				Name: id, Kind: "backup job", Why: "no valid ownership tag in its comment", Claims: addr,
				Fix: fmt.Sprintf("remove that job: pvesh delete /cluster/backup/%s; if it is this site's, and its comment was edited by hand, make this line its comment:\n%s", id, backupTag(obs.Host, addr.Name).Line()),
			}}
		}
	}
	return nil
}
