package proxmox

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/preflight"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/engine/model"
)

// preflightFacts are what package preflight needs to know of a guest.
func preflightFacts(r, have *model.Resource) (preflight.Facts, bool) {
	s, ok := r.Spec.(spec)
	if !ok {
		return preflight.Facts{}, false
	}
	var f preflight.Facts
	for _, p := range s.ports() {
		f.Cards = append(f.Cards, preflight.Card{Name: p.name, Bridge: p.bridge, MAC: p.mac})
	}
	if o, observed := r.Private.(*observation); observed {
		for key, val := range o.observe.Now {
			if property.IsNet(key) {
				f.BridgesInUse = append(f.BridgesInUse, property.Parse(val).Values["bridge"])
			}
		}
		return f, true
	}
	want := targetOf(r)
	f.MustRun = want.common().power == "running"
	if v, ok := want.(vmTarget); ok {
		had := map[string]string{}
		if have != nil {
			if h, ok := stateOf(have).(vmState); ok {
				had = h.observe.Next
			}
		}
		f.NewMedia = v.newMedia(had)
	}
	return f, true
}

// newMedia are the images that the CD drives are to get; had is the configuration so far.
func (v vmTarget) newMedia(had map[string]string) []preflight.Medium {
	var out []preflight.Medium
	for _, slot := range v.cds() {
		if volid := property.VolumeOf(v.Options[slot]); volid != drives.EmptyMedium && volid != property.VolumeOf(had[slot]) {
			out = append(out, preflight.Medium{Slot: slot, Volume: volid})
		}
	}
	return out
}
