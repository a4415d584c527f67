package guest

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/preflight"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/engine/model"
)

// PreflightFacts are what package preflight needs to know of a guest.
func PreflightFacts(r, have *model.Resource) (preflight.Facts, bool) {
	s, ok := r.Spec.(spec)
	if !ok {
		return preflight.Facts{}, false
	}
	var f preflight.Facts
	for _, p := range s.Ports() {
		f.Cards = append(f.Cards, preflight.Card{Name: p.Name, Bridge: p.Bridge, MAC: p.MAC})
	}
	if o, observed := r.Private.(*Observation); observed {
		for key, val := range o.Config.Now {
			if property.IsNet(key) {
				f.BridgesInUse = append(f.BridgesInUse, property.Parse(val).Values["bridge"])
			}
		}
		return f, true
	}
	want := TargetOf(r)
	f.MustRun = want.Common().Power == "running"
	if v, ok := want.(VMTarget); ok {
		had := map[string]string{}
		if have != nil {
			if h, ok := StateOf(have).(VMState); ok {
				had = h.Config.Next
			}
		}
		f.NewMedia = v.newMedia(had)
	}
	return f, true
}

// newMedia are the images that the CD drives are to get; had is the configuration so far.
func (v VMTarget) newMedia(had map[string]string) []preflight.Medium {
	var out []preflight.Medium
	for _, slot := range v.CDSlots() {
		if volid := property.VolumeOf(v.Options[slot]); volid != drives.EmptyMedium && volid != property.VolumeOf(had[slot]) {
			out = append(out, preflight.Medium{Slot: slot, Volume: volid})
		}
	}
	return out
}
