package proxmox

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/homestak/homestak-gitops/engine/plan"
)

// updateCT carries out the changes of a plan; see carryOut for the order of things.
func updateCT(ctx context.Context, d *Driver, s plan.Step, want, have *CT) error {
	at := placeOf(s.Have)
	m := want.mark
	m.Owner, m.Born = d.id.owner, at.vmid
	if have.mark.bare() { // a clone whose making was cut off: what is missing of it is done now
		if err := d.dressCT(ctx, want, at, m); err != nil {
			return err
		}
		_, err := d.complete(ctx, at, want.volumes(), want.Tags, want.Power)
		return err
	}
	to, from := want.volumes(), have.volumes()
	old := from.remembered(to)
	maps.Copy(old, rootSlot())
	m.Slots, m.Detached = slots(want.devices(), have.observe, old), map[string]string{}
	m.Keys, m.MAC = have.mark.Keys, have.mark.MAC
	ch := &ctChange{newChange(at, to, from, m), want, have}
	for _, c := range s.Changes {
		ch.add(c.Path)
	}
	ch.m.MAC = ch.proof()
	ch.describe(want.Description, want.declared())
	halted, err := d.carryOut(ctx, s, ch.change)
	if err != nil {
		if halted && want.Power == "running" {
			return d.backUp(ctx, ch.change, err)
		}
		return err
	}
	return d.settlePower(ctx, s, ch.change, halted, want.Power)
}

// ctChange is what the changes of a step mean for a container.
type ctChange struct {
	*change
	want, have *CT
}

// add translates the path of one change.
func (c *ctChange) add(path string) {
	head, rest, _ := strings.Cut(path, ".")
	name, attr, _ := strings.Cut(rest, ".")
	switch head {
	case "options":
		c.text(rest, c.want.Options[rest])
	case "nic":
		c.nic(name)
	case "disk":
		c.disk(name, attr)
	default:
		c.attribute(head, nil, c.want.settings())
	}
}

// nic writes a card whole, with the address it has.
func (c *ctChange) nic(name string) {
	slot := or(c.m.Slots["nic."+name], or(c.have.mark.Slots["nic."+name], name))
	n, wanted := find(c.want.NICs, name)
	if !wanted { // left the files, or was added by hand
		c.gone[slot] = true
		return
	}
	if c.set[slot] == nil {
		there := c.have.observe.next[slot]
		c.set[slot] = n.text(slot, or(readCTNIC(name, there).MAC, newMAC()), c.have.kept(name, there))
	}
}

// proof is the address by which the mark proves the container after this change:
// the one it has as long as some card keeps it, else that of the first card.
func (c *ctChange) proof() string {
	after := map[string]string{}
	for key, val := range c.have.observe.next {
		if isNet(key) && !c.gone[key] {
			after[key] = val
		}
	}
	for key, val := range c.set {
		if isNet(key) {
			after[key] = fmt.Sprint(val)
		}
	}
	for _, val := range after {
		if mac := readCTNIC("", val).MAC; mac == c.m.MAC {
			return mac
		}
	}
	return readCTNIC("", after[c.m.Slots["nic."+c.want.NICs[0].Name]]).MAC
}
