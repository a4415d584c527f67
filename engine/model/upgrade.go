package model

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// upgrade says when children get another program: that of their parent. Without it, all get it at once.
type upgrade struct {
	Version string         `hcl:"version" quoted:"true" doc:"Version that children may be upgraded to, once their parent runs it."`
	SHA256  []string       `hcl:"sha256,optional" doc:"SHA-256 of that program, one for each architecture. No other is sent."`
	Window  string         `hcl:"window,optional" doc:"When upgrades begin, such as 02:00-05:00, in the site's time zone (default: any time)."`
	Canary  []string       `hcl:"canary,optional" doc:"Children that are upgraded first: pve nodes, and hosts with a parent."`
	Groups  []upgradeGroup `hcl:"group,block" doc:"Children that are upgraded together, one group after the other, between canary and rest."`
}

// upgradeGroup is a group of children.
type upgradeGroup struct {
	Name  string   `hcl:"name,label"`
	Nodes []string `hcl:"nodes" doc:"Names of children."`
}

// stage is when a child has its turn: 0 for the canary, then the groups, and last all others.
func (u *upgrade) stage(child string) int {
	if slices.Contains(u.Canary, child) {
		return 0
	}
	if i := slices.IndexFunc(u.Groups, func(g upgradeGroup) bool { return slices.Contains(g.Nodes, child) }); i >= 0 {
		return i + 1
	}
	return len(u.Groups) + 1
}

// Names are the children that it names, in the order of their turns.
func (u *upgrade) Names() []string {
	out := slices.Clone(u.Canary)
	for _, g := range u.Groups {
		out = append(out, g.Nodes...)
	}
	return out
}

// upgradedBefore lists the children of a parent that have their turn before one of them.
func (s *Site) upgradedBefore(parent, child string) []string {
	var out []string
	u := s.Upgrade
	for _, c := range s.ChildrenOf(parent) {
		if slices.Contains(u.Names(), c.Name) && u.stage(c.Name) < u.stage(child) {
			out = append(out, c.Name)
		}
	}
	return out
}

// KeepsProgram says why a child does not get the program of its parent now; "" if it may. Version and sum are those of the
// parent, and runs is the version that a child reported, "" for one that is silent. Unless a child reports the new version, those
// after it keep theirs: so one on which it does not work halts the upgrade. A nil Site has nothing to say.
func (s *Site) KeepsProgram(parent, child, version, sum string, runs func(child string) string, now time.Time) string {
	if s == nil || s.Upgrade == nil {
		return ""
	}
	u := s.Upgrade
	switch {
	case plainVersion(u.Version) != plainVersion(version):
		return fmt.Sprintf("upgrade of the site is for version %s, and %s runs %s", u.Version, parent, version)
	case len(u.SHA256) > 0 && !slices.Contains(u.SHA256, sum):
		return fmt.Sprintf("the program of %s has SHA-256 %s, which upgrade of the site does not list", parent, sum)
	}
	for _, c := range s.upgradedBefore(parent, child) {
		if has := runs(c); has != version {
			if has == "" {
				return c + " is upgraded before it, and does not report"
			}
			return fmt.Sprintf("%s is upgraded before it, and runs %s", c, has)
		}
	}
	if !opens(u.Window, s.Timezone, now) {
		return fmt.Sprintf("upgrades begin in the window %s", u.Window)
	}
	return ""
}

// plainVersion is a version without the v of Go.
func plainVersion(v string) string { return strings.TrimPrefix(v, "v") }

// opens reports whether a time is in a window by the clock of a time zone. Without a window all times are.
func opens(window, zone string, now time.Time) bool {
	if window == "" {
		return true
	}
	location, err := time.LoadLocation(zone)
	if err != nil {
		location = time.UTC // such as host
	}
	return InWindow(window, now.In(location).Format("15:04"))
}

// InWindow reports whether a time of day, such as 04:30, is in a window, such as 03:00-05:00. A window may include midnight;
// one that ends when it begins is the whole day.
func InWindow(window, at string) bool {
	from, to, _ := strings.Cut(window, "-")
	if from < to {
		return from <= at && at < to
	}
	return at >= from || at < to
}
