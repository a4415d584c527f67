package hcl

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// keeps are the names of retention options (prune-backups in PVE/Storage/Plugin.pm).
var keeps = []string{"all", "daily", "hourly", "last", "monthly", "weekly", "yearly"}

const day = 24 * time.Hour

// units are names of times for which a retention option has another one.
var units = map[string]string{"hours": "hourly", "days": "daily", "weeks": "weekly", "months": "monthly", "years": "yearly"}

// placeBackup gives a block the ranges of its attributes.
func placeBackup(b *model.Backup, ranges []model.AttrRange) {
	if b == nil {
		return
	}
	for _, r := range ranges {
		if r.Path == "backup" || strings.HasPrefix(r.Path, "backup.") {
			b.Ranges = append(b.Ranges, r)
		}
	}
}

// checkBackups checks the backup blocks of the site, its manifests and its nodes.
func checkBackups(rs *rules) {
	checkBackup(rs, rs.site.Backup)
	for _, m := range rs.manifests {
		checkBackup(rs, m.Backup)
		seen := map[string]bool{}
		for _, n := range m.Nodes {
			if !seen[n.Block] { // all instances have the same block
				checkBackup(rs, n.Backup)
				checkDecommission(rs, n)
			}
			seen[n.Block] = true
		}
	}
}

func checkBackup(rs *rules, b *model.Backup) {
	if b == nil || b.Off() {
		return
	}
	if b.Schedule == "" {
		rs.ErrorAt(b.RangeOf("schedule"), "backup has no schedule", `Write a calendar event of Proxmox VE, such as schedule = "02:30", or enabled = false for no backups.`)
	}
	for _, key := range slices.Sorted(maps.Keys(b.Keep)) {
		at := b.RangeOf("keep." + key)
		if !slices.Contains(keeps, key) {
			rs.ErrorAt(at, "keep has no "+lang.Quote(key), "%s", rs.Nearest(cmp.Or(units[key], key), keeps))
		} else if n, err := strconv.Atoi(b.Keep[key]); err != nil || n < 0 || key == "all" && n > 1 || strconv.Itoa(n) != b.Keep[key] {
			rs.ErrorAt(at, fmt.Sprintf("keep.%s = %s is not valid", key, lang.Quote(b.Keep[key])), "It is a number of backups, such as 7; for all it is 0 or 1.")
		}
	}
	if gap := longestGap(b.Schedule); b.MaxAge != 0 && b.MaxAge <= gap {
		rs.Add(diag.Warnf(b.RangeOf("max_age"), fmt.Sprintf("max_age %s is not longer than the %s between two backups of schedule %s", model.ShortDuration(b.MaxAge), model.ShortDuration(gap), lang.Quote(b.Schedule)),
			"The backup would be reported as stale before each next one: write more, such as %q.", model.ShortDuration(gap+2*time.Hour)))
	}
	switch {
	case b.Verify != "" && b.Window == "":
		rs.ErrorAt(b.RangeOf("verify"), "verify needs a window", `A restore takes long and loads the storage: write the time of day in which it begins, such as window = "03:00-05:00".`)
	case b.Verify == "" && b.Window != "":
		rs.ErrorAt(b.RangeOf("window"), "window has no effect without verify", `Write verify = "restore", or remove it.`)
	case b.Verify == "" && b.VerifyEvery != 0:
		rs.ErrorAt(b.RangeOf("verify_every"), "verify_every has no effect without verify", `Write verify = "restore", or remove it.`)
	}
}

// oneTime matches calendar events of Proxmox VE with one time of day, which may have days of the week before it.
var oneTime = regexp.MustCompile(`^(?:([a-z][a-z,.]*)\s+)?(?:[01]?\d|2[0-3]):[0-5]?\d(?::[0-5]?\d)?$`)

// longestGap is the longest time between two backups of a schedule; 0 if that is neither a word nor one time of day.
func longestGap(schedule string) time.Duration {
	schedule = strings.ToLower(strings.TrimSpace(schedule))
	if gap, ok := map[string]time.Duration{"hourly": time.Hour, "daily": day, "weekly": 7 * day}[schedule]; ok {
		return gap
	}
	m := oneTime.FindStringSubmatch(schedule)
	switch {
	case m == nil:
		return 0
	case m[1] == "":
		return day
	}
	weekDay := func(name string) int {
		return slices.Index([]string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}, name[:min(3, len(name))])
	}
	var days []int
	for part := range strings.SplitSeq(m[1], ",") {
		first, last, isSpan := strings.Cut(part, "..")
		if !isSpan {
			last = first
		}
		from, to := weekDay(first), weekDay(last)
		if from < 0 || to < from {
			return 0
		}
		for ; from <= to; from++ {
			days = append(days, from)
		}
	}
	slices.Sort(days)
	longest := days[0] + 7 - days[len(days)-1]
	for i := range days[1:] {
		longest = max(longest, days[i+1]-days[i])
	}
	return time.Duration(longest) * day
}

// checkDecommission checks what is to happen before a node is destroyed.
func checkDecommission(rs *rules, n *model.Node) {
	d := n.Decomm
	if d == nil {
		return
	}
	if d.Verify != "" && d.Policy != "requires_final_backup" {
		rs.ErrorAt(n.Resource.RangeOf("decommission.verify"), "verify has no effect without a final backup", `Write policy = "requires_final_backup", or remove it.`)
	}
	if len(d.Before) > 0 && n.Type == "ct" {
		rs.ErrorAt(n.Resource.RangeOf("decommission.before_destroy"), "before_destroy in a container", "The guest agent of a VM runs these scripts, and containers have none.")
	}
}
