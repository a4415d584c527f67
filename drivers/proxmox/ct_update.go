package proxmox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// updateCT writes exactly the keys that the plan shows, in one request that carries
// the digest of what was observed, then does what is no key: volumes moved and
// grown, power, restart.
func updateCT(ctx context.Context, d *Driver, s plan.Step, want, have *CT) error {
	at := place{node: s.Have.Guest.Node, vmid: s.Have.Guest.VMID, lxc: true}
	m := want.mark
	m.Owner = d.id.owner
	if have.mark.bare() { // a clone whose making was cut off: what is missing of it is done now
		if err := d.dressCT(ctx, want, at, m); err != nil {
			return err
		}
		return d.completeCT(ctx, s, want, at)
	}
	m.Slots, m.Keys, m.MAC = slotsCT(want, have.observe, have.remembered(want)), have.mark.Keys, have.mark.MAC
	m.Detached = map[string]string{}
	ch := &ctChange{
		want: want, have: have, m: m, writing: writing{params{}, map[string]bool{}}, drop: map[string]string{},
		sight: sight{cfg: have.observe, unsure: map[string]bool{}},
	}
	for _, c := range s.Changes {
		ch.add(c.Path)
	}
	ch.describe()
	if ch.empty() || len(ch.move) > 0 { // no request with a digest says that it still is what was observed
		if err := d.stillOurs(ctx, at, s.Address); err != nil {
			return fmt.Errorf("changing %s: %w", at, err)
		}
	}
	running := s.Have.Guest.Running
	if len(ch.move) > 0 && running { // PVE moves no volume of a running container; and what waits for a start would name the old one
		if err := d.stop(ctx, at, have.mark); err != nil {
			return err
		}
		running = false
	}
	if err := d.write(ctx, at, ch.writing, s.Have, have.observe); err != nil {
		return fmt.Errorf("changing %s: %w", at, err)
	}
	if err := d.moveVolumes(ctx, at, ch); err != nil {
		return err
	}
	if err := d.settleReturned(ctx, at, ch, running); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(ch.drop)) {
		if err := d.dropVolume(ctx, at, ch, name); err != nil {
			return fmt.Errorf("removing the data of disk %s of %s (%s): %w", name, at, ch.drop[name], err)
		}
	}
	switch {
	case want.Power == "stopped" && running:
		return d.stop(ctx, at, have.mark)
	case want.Power == "running" && !running:
		return d.start(ctx, at)
	case s.Class == model.ClassRestart && running:
		return d.restart(ctx, at, have.mark)
	}
	return nil
}

// ctChange collects what the changes of a step mean for PVE.
type ctChange struct {
	want, have *CT
	m          mark
	writing
	grow, move []string          // names of disks
	back       []string          // of disks whose old volume is mounted again
	drop       map[string]string // name of a disk → volume to be freed
	sight      sight
}

// add translates the path of one change.
func (c *ctChange) add(path string) {
	head, rest, _ := strings.Cut(path, ".")
	w := c.want
	switch head {
	case "cores":
		c.set["cores"] = w.Cores
	case "memory":
		c.set["memory"] = w.Memory
	case "swap":
		c.set["swap"] = w.Swap
	case "hostname":
		c.set["hostname"] = w.Hostname
	case "tags":
		c.set["tags"] = strings.Join(w.Tags, ";")
	case "onboot":
		c.set["onboot"] = w.OnBoot
	case "protection":
		c.set["protection"] = w.Protection
	case "startup":
		c.text("startup", w.Startup.text())
	case "features":
		c.text("features", featuresText(w.Features))
	case "nameserver":
		c.text("nameserver", strings.Join(w.Nameserver, " "))
	case "searchdomain":
		c.text("searchdomain", w.Searchdomain)
	case "timezone":
		c.text("timezone", w.Timezone)
	case "options":
		c.text(rest, w.Options[rest])
	case "nic":
		name, _, _ := strings.Cut(rest, ".")
		c.nic(name)
	case "disk":
		name, attr, _ := strings.Cut(rest, ".")
		c.disk(name, attr)
	}
}

// nic writes a card whole, with the address it has.
func (c *ctChange) nic(name string) {
	slot := or(c.m.Slots["nic."+name], or(c.have.mark.Slots["nic."+name], name))
	n, wanted := c.want.nic(name)
	if !wanted { // left the files, or was added by hand
		c.gone[slot] = true
		return
	}
	if c.set[slot] == nil {
		c.set[slot] = n.text(slot, or(readCTNIC(name, c.have.observe.next[slot]).MAC, newMAC()))
	}
}

func (c *ctChange) disk(name, attr string) {
	w, wanted := c.want.disk(name)
	h, there := c.have.disk(name)
	slot := c.m.Slots["disk."+name]
	switch {
	case !wanted && !there: // taken out before; its data are to go
		c.drop[name] = c.have.mark.Detached[name]
	case !wanted: // PVE keeps the volume as an unused disk
		old := c.have.mark.Slots["disk."+name]
		c.gone[old] = true
		c.m.Detached[name] = parseProperty(c.have.observe.next[old]).first("volume")
		if h.Remove {
			c.drop[name] = c.m.Detached[name]
		}
	case !there:
		c.set[slot] = c.attach(w, slot)
	case attr == "remove": // only the mark says it
	case attr == "size":
		c.grow = append(c.grow, name)
	case attr == "storage":
		c.move = append(c.move, name)
	default:
		c.set[slot] = w.on(c.have.observe.next[slot])
	}
}

// describe writes notes and mark where either differs: the mark also holds slots,
// options and the address of the first card, which the other changes may have moved.
func (c *ctChange) describe() {
	c.m.Options = slices.Sorted(maps.Keys(c.want.Options))
	c.m.MAC = c.proof()
	c.keepDetached(false)
	if describe(c.want.Description, c.m) == strings.TrimRight(c.have.observe.next["description"], " \t\r\n") {
		return
	}
	c.keepDetached(true)
	c.set["description"] = describe(c.want.Description, c.m)
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

// moveVolumes moves volumes to their storage and grows them.
func (d *Driver) moveVolumes(ctx context.Context, at place, ch *ctChange) error {
	addr := ch.want.mark.addr()
	ch.sight.fresh = ch.empty() && len(ch.move) == 0 // a write, and the stop before a move, renew the digest
	for _, name := range ch.move {
		w, _ := ch.want.disk(name)
		slot := ch.m.Slots["disk."+name]
		err := d.withDigest(ctx, at, addr, &ch.sight, slot, func(digest string) error {
			upid, err := d.c.post(ctx, at.path("move_volume"), params{"volume": slot, "storage": w.Storage, "delete": true, "digest": digest})
			return d.settled(ctx, upid, err)
		})
		if err != nil {
			return fmt.Errorf("moving disk %s of %s to %s: %w", name, at, w.Storage, err)
		}
		ch.sight.unsure[slot] = true
	}
	for _, name := range ch.grow {
		w, _ := ch.want.disk(name)
		if err := d.growVolume(ctx, at, addr, &ch.sight, ch.m.Slots["disk."+name], w.Size); err != nil {
			return err
		}
	}
	return nil
}

// growVolume grows a volume to a size in GiB; one that has it already stays.
func (d *Driver) growVolume(ctx context.Context, at place, addr model.Address, l *sight, slot string, size int) error {
	err := d.withDigest(ctx, at, addr, l, slot, func(digest string) error {
		upid, err := d.c.put(ctx, at.path("resize"), params{"disk": slot, "size": fmt.Sprintf("%dG", size), "digest": digest})
		return d.settled(ctx, upid, err)
	})
	if err != nil && !strings.Contains(err.Error(), "already at specified size") { // where a VM has success
		return fmt.Errorf("growing %s of %s to %d GiB: %w", slot, at, size, err)
	}
	return nil
}
