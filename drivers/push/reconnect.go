package push

import (
	"cmp"
	"fmt"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A child that left the site empties itself and reports that, so it has to find its parent. If that has lost its data folder it has
// other keys, and the child does not know them. No file says any more how its machine is entered: what is observed of the guest
// does, and the usual port of SSH.

// reconnects returns the desired state inside the children on the host that left the site and have not reported: that they find their parent.
func (d *Driver) reconnects(w *model.Want, have model.State) []*model.Resource {
	if d.cfg.Children == nil || !d.cfg.hasKey(d.host) {
		return nil
	}
	var out []*model.Resource
	for _, name := range w.Withdrawn(have) {
		of := have[model.Address{Kind: model.PVEType, Name: name}]
		if of == nil || !of.Guest.Running || of.Guest.Orphan == model.OrphanDestroy || !hasAddress(of) || d.cfg.Children().Runs(name) != "" {
			continue
		}
		out = append(out, &model.Resource{
			Addr: model.Address{Kind: kindName, Name: name}, Inside: of.Addr, Node: name, Manifest: of.Manifest, Spec: WantedAgent(name),
			Private: &agentWay{way: &way{
				guest: of.Addr, via: model.ViaSSH, user: cmp.Or(model.TextOf(of.Spec, "ci_user"), root), ports: []int{sshPort}, agent: hasAgent(of),
			}},
		})
	}
	return out
}

// addReconnect adds what was seen inside a child that is leaving: a step is wanted only if it does not find its
// parent. A child that cannot be entered delays nothing, since it may be gone for good.
func addReconnect(have *model.Observed, r *model.Resource, seen model.Observed) {
	switch at := seen.State[r.Addr]; {
	case len(seen.Unknown) > 0:
		have.Findings = append(have.Findings, diag.Finding{
			Severity: diag.Warning, Source: diag.FromSite, Address: r.Inside.String(), Summary: r.Node + " left the site, does not report, and cannot be entered to see why",
			Detail: fmt.Sprintf("%s. Start it, or let it go as the line about %s says.", seen.Unknown[0].Why, r.Inside),
		})
	case at != nil && !reaches(at.Spec.(*Agent), r.Node):
		want := *r
		want.Spec = reconnected(at.Spec.(*Agent), r.Node)
		have.State[r.Addr] = at
		have.Further = append(have.Further, &want)
	}
}
