package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Backup is what a node, a manifest or the site declares about backups. The nearest block counts, as a whole.
type Backup struct {
	Enabled     *bool             `hcl:"enabled,optional" doc:"false: not backed up, whatever manifest and site declare."`
	Schedule    string            `hcl:"schedule,optional" doc:"Calendar event of Proxmox VE, such as \"sat 04:00\", in the host's time. Required unless enabled is false."`
	Storage     string            `hcl:"storage,optional" doc:"Storage of the backups (default: backups in storage of the host)."`
	Keep        map[string]string `hcl:"keep,optional" doc:"How many stay, such as { daily = 7, weekly = 4 }; also last, hourly, monthly, yearly, all (default: as the storage says)."`
	Mode        string            `hcl:"mode,optional" doc:"snapshot (default), suspend or stop."`
	MaxAge      time.Duration     `hcl:"max_age,optional" doc:"Age from which the newest backup is reported as stale, such as \"26h\" (default: never)."`
	Verify      string            `hcl:"verify,optional" doc:"restore: the newest backup is restored into another VMID, booted without network cards, and destroyed. Needs window."`
	VerifyEvery time.Duration     `hcl:"verify_every,optional" doc:"Time between successful verifications (default: 720h)."`
	Window      string            `hcl:"window,optional" doc:"When verifications begin, such as 03:00-05:00, in the site's time zone."`

	Ranges []AttrRange // of its attributes, as backup.schedule, and of the block

	zone string // of Window; see Want.Backups
}

// RangeOf finds where an attribute was declared, else the block.
func (b *Backup) RangeOf(attr string) diag.Range {
	return (&Resource{Ranges: b.Ranges}).RangeOf("backup." + attr)
}

// Off reports that the block switches backups off.
func (b *Backup) Off() bool { return b.Enabled != nil && !*b.Enabled }

// BackupIn returns the block that counts for a node, and the name of the job that it would become on its own: of equal blocks
// the first one by this name gives the job its name. It is nil if the node is not backed up.
func (n *Node) BackupIn(s *Site) (b *Backup, name string) {
	switch {
	case n.Backup != nil:
		b, name = n.Backup, n.Resource.Addr.Kind+"-"+n.Name
	case n.Manifest != nil && n.Manifest.Backup != nil:
		b, name = n.Manifest.Backup, backupOfManifest+n.Manifest.Name
	case s.Backup != nil:
		b, name = s.Backup, "site"
	}
	if b == nil || b.Off() {
		return nil, ""
	}
	return b, name
}

const backupOfManifest = "manifest-"

// BackupKind is the kind of backup jobs.
const BackupKind = "backup"

// BackupJob is a job that backs up guests: one for each distinct set of values on a host. No block declares it; backup blocks do.
type BackupJob struct {
	Schedule string   `plan:"schedule"`
	Storage  string   `plan:"storage"`
	Mode     string   `plan:"mode"`
	Keep     string   `plan:"keep"` // as PVE writes it: keep-daily=7,keep-weekly=4; "" as the storage says
	VMIDs    []string `plan:"vmid"`
	Enabled  bool     `plan:"enabled"`
	Repeats  bool     `plan:"repeat_missed"` // it runs as soon as the host is up, where its time passed meanwhile
	Node     string   `plan:"node"`          // the only PVE node where it runs; "" wanted
	Signed   bool     `plan:"signed"`        // its ownership tag is signed by the current key of the site

	Guests []Address            // wanted: whose backups these are
	Proofs map[string][]Address // wanted: how the backups of which guests are proved, in words
}

// Number writes the VMIDs of the guests; vmid returns 0 for one that has none.
func (j *BackupJob) Number(vmid func(Address) int) {
	j.VMIDs = nil
	for _, addr := range j.Guests {
		if id := vmid(addr); id != 0 {
			j.VMIDs = append(j.VMIDs, strconv.Itoa(id))
		}
	}
	slices.SortFunc(j.VMIDs, CompareNames)
}

// BackupStorage is the storage for backups of a host that names no other.
func (h *Host) BackupStorage() string {
	if h != nil && h.Storage != nil && h.Storage.Backups != "" {
		return h.Storage.Backups
	}
	return "local"
}

// addBackups adds the backup jobs of a host. Nodes of manifests that are suspended stay in their jobs.
func addBackups(s *Site, w *Want) diag.List {
	kind := s.Kinds.Get(BackupKind)
	if kind == nil || s.Left == w.Host.Name {
		return nil
	}
	type group struct {
		name string
		of   *Backup
		job  *BackupJob
	}
	groups := map[string]*group{}
	w.Backups = map[Address]*Backup{}
	for _, name := range slices.Sorted(maps.Keys(s.Manifests)) {
		m := s.Manifests[name]
		for _, n := range m.Nodes {
			b, name := n.BackupIn(s)
			if b == nil || m.On(n) != w.Host.Name {
				continue
			}
			job := &BackupJob{
				Schedule: strings.TrimSpace(b.Schedule), Storage: cmp.Or(b.Storage, w.Host.BackupStorage()), Mode: cmp.Or(b.Mode, "snapshot"), Keep: b.keep(),
				Enabled: true, Repeats: true, Signed: true, Proofs: map[string][]Address{},
			}
			if w.Nodes[n.Resource.Addr] != nil {
				own := *b
				own.Storage, own.zone = job.Storage, s.Timezone
				w.Backups[n.Resource.Addr] = &own
			}
			values := strings.Join([]string{job.Schedule, job.Storage, job.Mode, job.Keep}, "\x00")
			g := groups[values]
			if g == nil {
				g = &group{name, b, job}
				groups[values] = g
			}
			if name < g.name {
				g.name, g.of = name, b
			}
			g.job.Guests = append(g.job.Guests, n.Resource.Addr)
			if proof := b.proof(); proof != "" {
				g.job.Proofs[proof] = append(g.job.Proofs[proof], n.Resource.Addr)
			}
		}
	}
	var found diag.List
	for _, g := range groups {
		slices.SortFunc(g.job.Guests, Address.Compare)
		r := &Resource{Addr: Address{BackupKind, g.name}, Spec: g.job, Needs: g.job.Guests, At: g.of.RangeOf("")}
		for _, a := range g.of.Ranges {
			r.Ranges = append(r.Ranges, AttrRange{strings.TrimPrefix(a.Path, "backup."), a.At})
		}
		bound, l := s.Resolve(r, w.Host, nil)
		found = append(found, l...)
		w.State[r.Addr] = bound
	}
	return found
}

// keep is how many backups stay, as PVE writes it.
func (b *Backup) keep() string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(b.Keep)) {
		parts = append(parts, fmt.Sprintf("keep-%s=%s", key, b.Keep[key]))
	}
	return strings.Join(parts, ",")
}

// proof says in words how the backups are proved: max_age 26h, verify restore every 720h in 03:00-05:00; "" if they are not.
func (b *Backup) proof() string {
	var parts []string
	if b.MaxAge != 0 {
		parts = append(parts, "max_age "+ShortDuration(b.MaxAge))
	}
	if b.Verify != "" {
		parts = append(parts, fmt.Sprintf("verify %s every %s in %s", b.Verify, ShortDuration(cmp.Or(b.VerifyEvery, verifyEvery)), b.Window))
	}
	return strings.Join(parts, ", ")
}

// BackupManifest is the manifest whose block a job is named after; "" for none.
func BackupManifest(job string) string {
	m, ok := strings.CutPrefix(job, backupOfManifest)
	if !ok {
		return ""
	}
	return m
}

// verifyEvery is the time between two verifications unless it is set, and verifyAgain that after one that failed.
const (
	verifyEvery = 30 * 24 * time.Hour
	verifyAgain = 20 * time.Hour
)

// BackupState is what the storage lists of the backups of a guest, and what is known of their verification.
type BackupState struct {
	Storage string     `json:"storage"`
	Newest  *time.Time `json:"newest"` // null: it has none
	Archive string     `json:"archive"`
	Size    int        `json:"size"`  // of the archive, in bytes
	Stale   string     `json:"stale"` // why it counts as stale; "" if it does not
	Proved  *time.Time `json:"proved"`
	Failed  string     `json:"failed"` // why the last verification failed; "" if it did not
}

// Restored is what an agent remembers of the verifications of a guest's backups.
type Restored struct {
	Tried, Proved time.Time // the last attempt, and the last one that succeeded
	Archive       string    // of the last attempt
	Error         string    // of the last attempt, "" if it succeeded
}

// Due reports whether a backup is to be verified at a time. What is remembered of the future shows a clock that was wrong, and does not
// count.
func (b *Backup) Due(was Restored, now time.Time) bool {
	passed := func(since time.Time, least time.Duration) bool { return since.After(now) || now.Sub(since) >= least }
	return b.Verify == "restore" && passed(was.Proved, cmp.Or(b.VerifyEvery, verifyEvery)) && passed(was.Tried, min(verifyAgain, cmp.Or(b.VerifyEvery, verifyAgain))) &&
		opens(b.Window, b.zone, now)
}

// RestoreKind is the kind of verifications by restore.
const RestoreKind = "restore"

// RestoreTest is the restore of a backup into another VMID. It is wanted while it is due. The host has one only if it was
// interrupted.
type RestoreTest struct {
	Archive string `plan:"archive"`
	Left    string `plan:"left"` // the guest that an earlier one left behind, such as VM 10007; wanted: none

	Of   Address // the guest of the backup
	At   Guest   // observed: where the guest is that was left
	Disk string  // storage of a container's disks
}

// RestoreName is the name of the verification of a guest's backups.
func (a Address) RestoreName() string { return a.Kind + "-" + a.Name }
