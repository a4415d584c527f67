package inventory

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Places returns the nodes of the host with what new guests may take of them. The cluster's list has it all, so this
// sends no request. have is what was observed: what its guests take is worked out from their configurations.
func Places(obs *kind.Observation, have model.State) []model.Place {
	managed := map[int]bool{}
	for _, r := range have {
		if r.Guest != nil {
			managed[r.Guest.VMID] = true
		}
	}
	others := map[string]*model.Size{}
	var out []model.Place
	for _, name := range obs.Host.Model.AllNodes() {
		p, known := obs.View.Places[name]
		if !known {
			continue // the view reports it
		}
		p.Rooms = map[string]model.Room{}
		for at, room := range obs.View.Rooms {
			if at.Node == name {
				p.Rooms[at.Storage] = room
			}
		}
		out = append(out, p)
		others[name] = &model.Size{}
	}
	for id, g := range obs.View.Guests {
		runs := g.Running
		if now, listed := obs.Guests[id]; listed {
			runs = now.Running
		}
		if g.LXC && g.Size.Cores >= obs.View.Places[g.Node].Cores {
			g.Size.Cores = 0 // PVE shows all of the node for a container without a limit (PVE/LXC.pm, vmstatus)
		}
		if of := others[g.Node]; of != nil && !managed[id] && !g.Template && (runs || g.QMP != "") {
			of.Add(g.Size)
		}
	}
	for i := range out {
		out[i].Others = *others[out[i].Name]
	}
	return out
}
