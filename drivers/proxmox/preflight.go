package proxmox

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/preflight"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/engine/model"
)

// guestFacts is the preflight.FactsOf of VMs and containers.
func guestFacts(r, have *model.Resource) (preflight.Facts, bool) {
	if _, observed := r.Private.(*guest.Observation); observed {
		return observedFacts(guest.StateOf(r)), true
	}
	want := guest.TargetOf(r)
	if want == nil {
		return preflight.Facts{}, false
	}
	f := preflight.Facts{Cards: cards(want), MustRun: want.Common().Power == "running"}
	if v, ok := want.(guest.VMTarget); ok {
		present := map[string]string{}
		if have != nil {
			if h, ok := guest.StateOf(have).(guest.VMState); ok {
				present = h.Config.Next
			}
		}
		for _, slot := range v.NewMedia(present) {
			f.NewMedia = append(f.NewMedia, preflight.Medium{Slot: slot, Volume: property.VolumeOf(v.Options[slot])})
		}
	}
	return f, true
}

func observedFacts(have guest.State) preflight.Facts {
	f := preflight.Facts{Cards: cards(have)}
	for key, val := range have.Observed().Config.Now {
		if property.IsNet(key) {
			f.BridgesInUse = append(f.BridgesInUse, property.Parse(val).Values["bridge"])
		}
	}
	return f
}

func cards(g guest.Guest) []preflight.Card {
	var out []preflight.Card
	for _, p := range g.Ports() {
		out = append(out, preflight.Card{Name: p.Name, Bridge: p.Bridge, MAC: p.MAC})
	}
	return out
}
