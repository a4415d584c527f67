package hcl

import (
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// decodeJobs decodes the jobs. Their nodes are names until checkJobs.
func (l *load) decodeJobs() {
	for _, b := range l.Blocks["job"] {
		j := &model.Job{At: lang.DiagRange(b.At)}
		l.decodeBlock(b, j, false)
		if b.Invalid {
			continue
		}
		if len(j.Command) == 0 || slices.ContainsFunc(j.Command, func(arg string) bool { return strings.ContainsRune(arg, 0) }) {
			l.Errorf(b.At, "job "+lang.Quote(b.Name)+" has no command", `Write the program and its arguments: command = ["systemctl", "restart", "nginx"].`)
		}
		if l.site.Jobs == nil {
			l.site.Jobs = map[string]*model.Job{}
		}
		l.site.Jobs[b.Name] = j
	}
}

// checkJobs makes the names in jobs those of instances, and checks their times.
func checkJobs(rs *rules) {
	for name, j := range rs.site.Jobs {
		block := rs.Named["job"][name]
		at := block.At
		if err := j.CheckSchedule(rs.site.Timezone); err != nil {
			when := at
			if attr := block.Body.Attributes["schedule"]; attr != nil {
				when = attr.SrcRange
			}
			rs.Errorf(when, "job "+lang.Quote(name)+" has no time to run", "%s.", lang.UpperFirst(err.Error()))
		}
		var nodes []string
		for _, of := range j.Nodes {
			found := false
			for _, m := range rs.deployed() {
				for _, n := range m.Nodes {
					if n.Name == of || n.Block == of {
						nodes, found = append(nodes, n.Name), true
					}
				}
			}
			if rs.site.Hosts[of] != nil {
				nodes, found = append(nodes, of), true
			}
			if !found && rs.Complete {
				rs.Errorf(at, "job "+lang.Quote(name)+" names "+lang.Quote(of)+", which is not deployed", "Its nodes are those of manifests with a host, and hosts.")
			}
		}
		slices.Sort(nodes)
		j.Nodes = slices.Compact(nodes)
	}
}
