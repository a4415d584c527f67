package pvesim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// retention says how many backups of a guest stay, by rule: keep-last, keep-daily and
// so on. An empty one keeps all.
type retention map[string]int

// retentionOf reads a property string of the kind of prune-backups.
func retentionOf(text string) retention {
	keep := retention{}
	for _, rule := range splitList(text) {
		name, value, _ := strings.Cut(rule, "=")
		if n := atoi(value); name == "keep-all" && n == 1 {
			return retention{}
		} else if n > 0 {
			keep[name] = n
		}
	}
	return keep
}

// keeps is what a backup of a call leaves of the older ones on a storage: what it says,
// else what the storage says.
func (c *call) keeps(storage string) retention {
	if c.has("remove") && !c.flag("remove") {
		return retention{}
	}
	if c.in["prune-backups"] == "" {
		if s := c.w.stores[storage]; s != nil {
			return retentionOf(s.extra["prune-backups"])
		}
	}
	return retentionOf(c.in["prune-backups"])
}

// spans are the rules in the order in which PVE goes through them, each with what two
// backups must have in common for one to stand for both.
var spans = []struct {
	rule string
	name func(at time.Time) string
}{
	{"keep-last", nil}, // Each stands for itself.
	{"keep-hourly", func(at time.Time) string { return at.Format("2006-01-02 15") }},
	{"keep-daily", func(at time.Time) string { return at.Format(time.DateOnly) }},
	{"keep-weekly", func(at time.Time) string {
		year, week := at.ISOWeek()
		return fmt.Sprint(year, week)
	}},
	{"keep-monthly", func(at time.Time) string { return at.Format("2006-01") }},
	{"keep-yearly", func(at time.Time) string { return at.Format("2006") }},
}

// marks says of each backup of one guest whether it would stay: keep, remove or
// protected (prune_mark_backup_group in PVE/Storage/Plugin.pm). Of two of one second
// either counts for itself.
func (keep retention) marks(backups []*volume) map[*volume]string {
	list := slices.Clone(backups)
	slices.SortStableFunc(list, func(a, b *volume) int { return int(b.ctime - a.ctime) })
	marks := map[*volume]string{}
	for _, v := range list {
		if v.protected {
			marks[v] = "protected"
		} else if len(keep) == 0 {
			marks[v] = "keep"
		}
	}
	for _, span := range spans {
		keep.markSpan(list, marks, span.rule, span.name)
	}
	for _, v := range list {
		if marks[v] == "" {
			marks[v] = "remove"
		}
	}
	return marks
}

// markSpan applies one rule: the newest of each span that no earlier rule has kept one
// of stays, the others of the span go.
func (keep retention) markSpan(list []*volume, marks map[*volume]string, rule string, name func(time.Time) string) {
	if keep[rule] == 0 {
		return
	}
	spanOf := func(v *volume) string {
		if name == nil {
			return v.name
		}
		return name(time.Unix(v.ctime, 0).UTC())
	}
	had, now := map[string]bool{}, map[string]bool{}
	for _, v := range list {
		if marks[v] == "keep" {
			had[spanOf(v)] = true
		}
	}
	for _, v := range list {
		switch span := spanOf(v); {
		case marks[v] != "" || had[span]:
		case now[span]:
			marks[v] = "remove"
		case len(now) >= keep[rule]:
			return
		default:
			now[span] = true
			marks[v] = "keep"
		}
	}
}
