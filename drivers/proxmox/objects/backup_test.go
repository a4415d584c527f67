package objects_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// backupJobs are the jobs of the host, by their IDs.
func backupJobs(t *testing.T, w *proxmoxtest.World) map[string]map[string]any {
	t.Helper()
	var list []map[string]any
	require.NoError(t, w.Driver.Client().Get(t.Context(), "/cluster/backup", &list))
	out := map[string]map[string]any{}
	for _, j := range list {
		out[j["id"].(string)] = j
	}
	return out
}

const siteJob = "homestak-home-father-site"

func TestBackupJobLife(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		w.Root("POST", "/cluster/backup", url.Values{"id": {"theirs"}, "schedule": {"daily"}, "all": {"1"}})
		theirs := backupJobs(t, w)["theirs"]
		w.Node("web", nil)
		db := w.Node("db", nil)
		w.Site.Backup = &model.Backup{Schedule: "02:30", Storage: "local", Keep: map[string]string{"daily": "7", "last": "2"}}
		db.Backup = &model.Backup{Schedule: "02:30", Storage: "local", Keep: map[string]string{"last": "2", "daily": "7"}} // the same values
		p := w.Apply()
		job := backupJobs(t, w)[siteJob]
		require.Len(t, backupJobs(t, w), 2)
		require.Equal(t, "10000,10001", job["vmid"], "known in the plan that creates the guests")
		require.Equal(t, "zstd", job["compress"])
		require.Equal(t, []string{"10000", "10001"}, stepOf(p, "site").Want.Spec.(*model.BackupJob).VMIDs)
		w.Converged()

		db.Backup.Mode = "stop" // other values: a job of its own
		db.Backup.MaxAge, db.Backup.Verify, db.Backup.Window = 26*time.Hour, "restore", "03:00-05:00"
		p = w.Apply()
		var text strings.Builder
		p.Text(&text, plan.TextOptions{All: true})
		require.Contains(t, text.String(), "\n          max_age 26h, verify restore every 720h in 03:00-05:00: vm.db\n", "how they are proved")
		db.Backup.Verify = ""
		require.Equal(t, "10001", backupJobs(t, w)[siteJob]["vmid"])
		require.Equal(t, "10000", backupJobs(t, w)["homestak-home-father-vm-db"]["vmid"])
		w.Converged()

		w.Root("PUT", "/cluster/backup/"+siteJob, url.Values{"schedule": {"weekly"}, "enabled": {"0"}, "prune-backups": {"keep-all=1"}, "node": {"father"}, "vmid": {"10001,105"}})
		p = w.Plan()
		require.Equal(t, []string{"schedule", "keep", "vmid", "enabled", "node"}, proxmoxtest.Paths(p.Steps[0]), "drift")
		w.Run(p)
		w.Converged()

		off := false
		db.Backup.Enabled = &off
		w.Drop("web")
		w.Node("new", nil)
		w.Apply() // the removal of its last guest takes the job along, and the new one brings it back
		require.Equal(t, "10002", backupJobs(t, w)[siteJob]["vmid"])
		require.Len(t, backupJobs(t, w), 2)
		w.Converged()

		w.Site.Backup = nil
		w.Apply()
		require.Equal(t, map[string]map[string]any{"theirs": theirs}, backupJobs(t, w))
		w.Converged()
	})
}

// TestBackupJobsAreReadOnlyWhereOneMayBe: a pass that remembers of the last one that no job was left asks for none. A job that the
// site no longer declares is found by one that remembers it, and by one that remembers nothing.
func TestBackupJobsAreReadOnlyWhereOneMayBe(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		var remembered []string
		pass := func() (steps, requests int) {
			want, _ := w.Site.Want("father")
			own := *want
			own.SweepHints = remembered
			const read = "GET /cluster/backup"
			before := w.Host.Snapshot().Requests[read]
			have, err := w.Driver.Observe(t.Context(), &own)
			require.NoError(t, err)
			remembered = have.SweepHints
			requests = w.Host.Snapshot().Requests[read] - before
			p := w.PlanFor(&own, have)
			require.Empty(t, w.Run(p))
			return len(p.Steps), requests
		}
		expect := func(steps, requests int, when string) {
			t.Helper()
			isSteps, isRequests := pass()
			require.Equal(t, []int{steps, requests}, []int{isSteps, isRequests}, "steps and requests: %s", when)
		}
		w.Node("web", nil)
		w.Apply()
		expect(0, 1, "nothing is remembered")
		for range 3 {
			expect(0, 0, "no job was left")
		}
		w.Site.Backup = &model.Backup{Schedule: "02:30", Storage: "local"}
		expect(1, 1, "the site declares one")
		expect(0, 1, "it is compared")
		w.Site.Backup = nil
		expect(1, 1, "it was remembered, and is removed")
		require.Empty(t, backupJobs(t, w))
		expect(0, 1, "whether it went")
		expect(0, 0, "no job was left")

		w.Site.Backup = &model.Backup{Schedule: "02:30", Storage: "local"}
		expect(1, 1, "the site declares one again")
		w.Site.Backup, remembered = nil, nil
		expect(1, 1, "the memory was lost, or the pass is one by hand")
		require.Empty(t, backupJobs(t, w))
	})
}

// TestABackupJobWithALongNameIsChangedAndRemoved: Proxmox VE creates a job with an ID of any length, and then refuses to change it.
func TestABackupJobWithALongNameIsChangedAndRemoved(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		name := "database-of-the-accounting-department"
		w.Node(name, nil).Backup = &model.Backup{Schedule: " 02:30\n", Storage: "local"}
		w.Node(name+"-2", nil).Backup = &model.Backup{Schedule: "03:30", Storage: "local"}
		w.Apply()
		require.Len(t, backupJobs(t, w), 2)
		w.Converged()
		for _, n := range w.Site.Manifests["web"].Nodes {
			n.Backup.Mode = "stop"
		}
		w.Apply()
		w.Converged()
		for _, n := range w.Site.Manifests["web"].Nodes {
			n.Backup = nil
		}
		w.Apply()
		require.Empty(t, backupJobs(t, w))
	})
}

func stepOf(p *plan.Plan, job string) *plan.Step {
	for i := range p.Steps {
		if p.Steps[i].Address == (model.Address{Kind: "backup", Name: job}) {
			return &p.Steps[i]
		}
	}
	return nil
}

// TestAReplacedGuestStaysInItsJob: Proxmox VE takes a guest that it destroys out of all jobs.
func TestAReplacedGuestStaysInItsJob(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		w.Node("web", nil)
		w.Node("db", nil)
		w.Site.Backup = &model.Backup{Schedule: "02:30"}
		w.Apply()
		w.VM("web").Recreate = "1"
		p := w.Apply()
		require.Len(t, p.Steps, 2)
		require.Contains(t, stepOf(p, "site").Reason, "vm.web is replaced")
		require.Equal(t, "10000,10001", backupJobs(t, w)[siteJob]["vmid"])
		w.Converged()
	})
}

// TestUnmanagedBackupJobsAreNotChanged: neither one that took our ID, nor one whose tag was copied, edited or removed.
func TestUnmanagedBackupJobsAreNotChanged(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		w.Root("POST", "/cluster/backup", url.Values{"id": {siteJob}, "schedule": {"daily"}, "all": {"1"}, "comment": {"by hand"}})
		before := backupJobs(t, w)
		w.Node("web", nil)
		w.Site.Backup = &model.Backup{Schedule: "02:30"}
		p := w.Apply()
		require.Nil(t, stepOf(p, "site"))
		require.True(t, p.Findings.HasErrors())
		require.Contains(t, p.Findings.Sorted()[0].Detail, "pvesh delete /cluster/backup/"+siteJob)
		require.Equal(t, before, backupJobs(t, w))

		w.Root("DELETE", "/cluster/backup/"+siteJob, nil)
		w.Apply()
		comment := backupJobs(t, w)[siteJob]["comment"].(string)
		w.Root("POST", "/cluster/backup", url.Values{"id": {"copy"}, "schedule": {"daily"}, "vmid": {"10000"}, "comment": {comment}})
		for name, edited := range map[string]string{"removed": "", "edited": strings.Replace(comment, `"owner":"father"`, `"owner":"fathef"`, 1), "unsigned": strings.Split(comment, `,"sig"`)[0] + "}"} {
			p = w.Plan()
			require.Empty(t, p.Steps, name)
			w.Site.Backup.Schedule = "03:30"
			p = w.Plan()
			require.Len(t, p.Steps, 1)
			if edited == "" {
				w.Root("PUT", "/cluster/backup/"+siteJob, url.Values{"delete": {"comment"}})
			} else {
				w.Root("PUT", "/cluster/backup/"+siteJob, url.Values{"comment": {edited}})
			}
			require.ErrorContains(t, w.Run(p)[model.Address{Kind: "backup", Name: "site"}], "not managed any more", name)
			require.Equal(t, "02:30", backupJobs(t, w)[siteJob]["schedule"])
			w.Site.Backup.Schedule = "02:30"
			w.Root("PUT", "/cluster/backup/"+siteJob, url.Values{"comment": {comment}})
		}
		w.Site.Backup = nil
		w.Apply()
		require.Len(t, backupJobs(t, w), 1, "a copy of the tag proves nothing")
	})
}

// TestBadBackups are reported at their lines, by what Proxmox VE accepts.
func TestBadBackups(t *testing.T) {
	for path, j := range map[string]model.BackupJob{
		"schedule": {Schedule: "sometimes", Storage: "local"},
		"storage":  {Schedule: "02:30", Storage: "9 lives"},
		"keep":     {Schedule: "02:30", Storage: "local", Keep: "keep-all=1,keep-last=3"},
	} {
		problems := objects.BackupKind.Model.Resolve(&model.Resource{Spec: &j}, model.Scope{})
		require.Len(t, problems, 1, path)
		require.Equal(t, path, problems[0].Path)
	}
}
