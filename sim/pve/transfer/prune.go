package transfer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// retention says how many backups of a guest stay, by rule: keep-last, keep-daily and
// so on. An empty one keeps all.
type retention map[string]int

// retentionOf reads a property string of the kind of prune-backups.
func retentionOf(text string) retention {
	keep := retention{}
	for _, rule := range perl.SplitList(text) {
		name, value, _ := strings.Cut(rule, "=")
		if n := perl.Atoi(value); name == "keep-all" && n == 1 {
			return retention{}
		} else if n > 0 {
			keep[name] = n
		}
	}
	return keep
}

// keeps returns the numbers of older backups that a backup leaves on a storage: those of the call,
// else what the storage says.
func keeps(c *core.Call, storage string) retention {
	if c.Has("remove") && !c.Flag("remove") {
		return retention{}
	}
	if c.In["prune-backups"] == "" {
		if s := c.W.Stores[storage]; s != nil {
			return retentionOf(s.Extra["prune-backups"])
		}
	}
	return retentionOf(c.In["prune-backups"])
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

// Verdicts says of each backup of one guest whether it would stay: keep, remove or
// protected (prune_mark_backup_group in PVE/Storage/Plugin.pm). Of two of one second
// either counts for itself.
func (keep retention) Verdicts(backups []*core.Volume) map[*core.Volume]string {
	list := slices.Clone(backups)
	slices.SortStableFunc(list, func(a, b *core.Volume) int { return int(b.Ctime - a.Ctime) })
	verdicts := map[*core.Volume]string{}
	for _, v := range list {
		if v.Protected {
			verdicts[v] = "protected"
		} else if len(keep) == 0 {
			verdicts[v] = "keep"
		}
	}
	for _, span := range spans {
		keep.applyRule(list, verdicts, span.rule, span.name)
	}
	for _, v := range list {
		if verdicts[v] == "" {
			verdicts[v] = "remove"
		}
	}
	return verdicts
}

// applyRule applies one rule: the newest of each span that no earlier rule has kept one
// of stays, the others of the span go.
func (keep retention) applyRule(list []*core.Volume, verdicts map[*core.Volume]string, rule string, name func(time.Time) string) {
	if keep[rule] == 0 {
		return
	}
	spanOf := func(v *core.Volume) string {
		if name == nil {
			return v.Name
		}
		return name(time.Unix(v.Ctime, 0).UTC())
	}
	had, now := map[string]bool{}, map[string]bool{}
	for _, v := range list {
		if verdicts[v] == "keep" {
			had[spanOf(v)] = true
		}
	}
	for _, v := range list {
		switch span := spanOf(v); {
		case verdicts[v] != "" || had[span]:
		case now[span]:
			verdicts[v] = "remove"
		case len(now) >= keep[rule]:
			return
		default:
			now[span] = true
			verdicts[v] = "keep"
		}
	}
}

// pruned are the backups of a storage with what a rule says of each: of every guest
// the newest are kept.
func pruned(c *core.Call) ([]map[string]any, error) {
	s, err := c.W.Store(c.In["storage"])
	if err != nil {
		return nil, err
	}
	text := c.In["prune-backups"]
	switch {
	case !s.Holds("backup"):
		return nil, perl.Fail("storage '%s' does not support backups", s.Name)
	case text == "":
		if text = s.Extra["prune-backups"]; text == "" {
			return nil, perl.Fail("no prune-backups options configured for storage '%s'", s.Name)
		}
	}
	groups, list := map[string][]*core.Volume{}, []map[string]any{}
	for _, v := range s.List(c.In["node"]) {
		if v.Backup == nil || c.Has("vmid") && v.Vmid != c.Vmid() || c.Has("type") && v.Backup.Kind != c.In["type"] {
			continue
		}
		guest := fmt.Sprint(v.Backup.Kind, v.Vmid)
		groups[guest] = append(groups[guest], v)
	}
	keep := retentionOf(text)
	for _, guest := range slices.Sorted(maps.Keys(groups)) {
		verdicts := keep.Verdicts(groups[guest])
		for _, v := range groups[guest] {
			list = append(list, map[string]any{"volid": s.Name + ":" + v.Name, "vmid": v.Vmid, "ctime": v.Ctime, "type": v.Backup.Kind, "mark": verdicts[v]})
		}
	}
	return list, nil
}

// apiPruneInfo is GET …/prunebackups: what a pruning would do.
func apiPruneInfo(_ *core.World, c *core.Call) (any, error) {
	return pruned(c)
}

// apiPrune is DELETE …/prunebackups.
func apiPrune(w *core.World, c *core.Call) (any, error) {
	id := c.In["storage"]
	if c.Has("vmid") {
		id = c.In["vmid"] + "@" + id
	}
	return w.Fork(c, c.In["node"], core.Job{Kind: "prunebackups", ID: id, End: func(t *core.Task) error {
		list, err := pruned(c)
		if err != nil {
			return err
		}
		for _, entry := range list {
			if entry["mark"] == "remove" {
				t.Logf("removing backup '%s'", entry["volid"])
				if err := core.Free(w, t.Node, perl.Text(entry["volid"])); err != nil {
					return err
				}
			}
		}
		return nil
	}}), nil
}
