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
						if why := neverTakes(rs.site, n); why != "" && !found {
							where := at
							if attr := block.Body.Attributes["nodes"]; attr != nil {
								where = attr.SrcRange
							}
							rs.Warnf(where, "job "+lang.Quote(name)+" does not reach node "+lang.Quote(n.Name), "%s", why)
						}
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

// neverTakes is why no command reaches a node between two boots, and what to do; "" if one does.
func neverTakes(site *model.Site, n *model.Node) string {
	s := site.Specs[n.Spec]
	switch {
	case n.Type == typePVE:
		return ""
	case n.Spec == "":
		return "It has no spec, which says how commands reach it: name one in the node."
	case s != nil && n.TakesCommands() && n.Mode == model.ModePull && (s.Run == nil || s.Run.Trigger == "" || s.Run.Trigger == "manual"):
		return "It asks for commands only when it boots: set trigger in run of spec " + n.Spec + ", or run = \"push\" in execution of the node."
	}
	return ""
}
