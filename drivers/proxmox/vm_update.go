package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// updateVM writes exactly the keys that the plan shows, in one request that
// carries the digest of what was observed, then does what is no key: disks moved
// and grown, power, restart.
func updateVM(ctx context.Context, d *Driver, s plan.Step, want, have *VM) error {
	at := place{node: s.Have.Guest.Node, vmid: s.Have.Guest.VMID}
	m := want.mark
	m.Owner, m.UUID, m.Linked = d.id.owner, have.mark.UUID, have.mark.Linked
	if m.UUID == "" { // a clone whose making was cut off: what is missing of it is done now
		m.UUID, m.Seed = or(uuidOf(have.observe.next["smbios1"]), uuid.NewString()), newSeed(s.Want)
		if err := d.dress(ctx, want, at, m); err != nil {
			return err
		}
		return d.complete(ctx, s, want, at)
	}
	m.Slots, m.Detached = slots(want, have.observe, have.remembered(want)), map[string]string{}
	m.Seeded, m.Seed = have.mark.Seeded, have.mark.Seed // what no file says must not be lost by a write
	ch := newChange(want, have, m)
	for _, c := range s.Changes {
		ch.add(c.Path)
		if s.Have.Guest.Running && seeds(s.Want, s.Have, c.Path) {
			ch.m.Seeded = time.Now().Unix()
		}
	}
	ch.describe()
	if ch.empty() { // no request with a digest says that it still is what was observed
		if err := d.stillOurs(ctx, at, s.Address); err != nil {
			return fmt.Errorf("changing VM %d: %w", at.vmid, err)
		}
	}
	ch.sight.fresh = ch.empty()
	if err := d.write(ctx, at, ch.writing, s.Have, have.observe); err != nil {
		return fmt.Errorf("changing VM %d: %w", at.vmid, err)
	}
	if err := d.settleDisks(ctx, at, ch); err != nil {
		return err
	}
	if ch.set[seedSlot] != nil { // out of the drive first: a machine does not start with an image that is not there
		if err := d.removeSeed(ctx, at.node, have.Seed); err != nil {
			return err
		}
	}
	switch {
	case ch.power && want.Power == "stopped":
		return d.stop(ctx, at, have.mark)
	case ch.power:
		return d.start(ctx, at)
	case s.Have.Guest.Running && slices.ContainsFunc(s.Changes, func(c plan.Change) bool { return c.Class == model.ClassRestart }):
		return d.restart(ctx, at, have.mark)
	}
	return nil
}

// change collects what the changes of a step mean for PVE.
type change struct {
	want, have *VM
	m          mark
	writing
	power bool

	move  map[string]string // slot → storage
	grow  map[string]int    // slot → GiB
	back  map[string]Disk   // slot → a disk whose old volume is attached again
	drop  map[string]string // name of a disk → volume to be freed
	sight sight
}

func newChange(want, have *VM, m mark) *change {
	return &change{
		want: want, have: have, m: m, writing: writing{params{}, map[string]bool{}},
		move: map[string]string{}, grow: map[string]int{}, back: map[string]Disk{}, drop: map[string]string{},
		sight: sight{cfg: have.observe, fresh: true, unsure: map[string]bool{}},
	}
}

// add translates the path of one change.
func (c *change) add(path string) {
	head, rest, _ := strings.Cut(path, ".")
	w := c.want
	switch head {
	case "cores":
		c.set["cores"] = w.Cores
	case "memory":
		c.set["memory"] = fmt.Sprint(w.Memory)
	case "name":
		c.set["name"] = w.Name
	case "tags":
		c.set["tags"] = strings.Join(w.Tags, ";")
	case "onboot":
		c.set["onboot"] = w.OnBoot
	case "protection":
		c.set["protection"] = w.Protection
	case "agent":
		c.set["agent"] = agentText(c.have.observe.next["agent"], w.Agent)
	case "startup":
		c.text("startup", w.Startup.text())
	case "ci_user":
		c.text("ciuser", w.User)
	case "ssh_keys":
		c.text("sshkeys", encodeKeys(w.Keys))
	case "dns":
		c.text("nameserver", strings.Join(w.DNS, " "))
	case "domain":
		c.text("searchdomain", w.Domain)
	case "power":
		c.power = true
	case "seed":
		c.set[seedSlot] = emptyDrive
	case "options":
		if stateDrive(rest) && w.Options[rest] != "" && c.have.observe.next[rest] != "" {
			c.move[rest] = storageOf(w.Options[rest]) // its content goes along; the order again would be an empty one
			return
		}
		c.text(rest, w.Options[rest])
	case "nic":
		name, attr, _ := strings.Cut(rest, ".")
		c.nic(name, attr)
	case "disk":
		name, attr, _ := strings.Cut(rest, ".")
		c.disk(name, attr)
	}
}

func (c *change) text(key, val string) {
	if val == "" {
		if _, there := c.have.observe.next[key]; there {
			c.gone[key] = true
		}
		return
	}
	c.set[key] = val
}

// describe writes notes and mark where either differs: the mark also holds slots,
// options and detached disks, which the other changes may have moved.
func (c *change) describe() {
	c.m.Options = slices.Sorted(maps.Keys(c.want.Options))
	c.keepDetached(false)
	if describe(c.want.Description, c.m) == strings.TrimRight(c.have.observe.next["description"], " \t\r\n") {
		return
	}
	c.keepDetached(true)
	c.set["description"] = describe(c.want.Description, c.m)
}

func (c *change) nic(name, attr string) {
	i := slices.IndexFunc(c.want.NICs, func(n NIC) bool { return n.Name == name })
	if i < 0 { // left the files, or was added by hand
		slot := or(c.have.mark.Slots["nic."+name], name)
		c.gone[slot] = true
		if ip := "ipconfig" + strings.TrimPrefix(slot, "net"); c.have.observe.next[ip] != "" {
			c.gone[ip] = true
		}
		return
	}
	n, slot := c.want.NICs[i], c.m.Slots["nic."+name]
	if attr == "ip" || attr == "gateway" {
		key := "ipconfig" + strings.TrimPrefix(slot, "net")
		c.text(key, n.ipconfig(c.have.observe.next[key]))
		return
	}
	c.set[slot] = card(c.have.observe.next[slot], n)
}

// heldBack explains the one refusal after which the work is done: PVE has the new
// values, but the running guest did not take one of them. The next plan finds them
// pending, and tries nothing again.
func heldBack(err error) error {
	api, ok := errors.AsType[*apiError](err)
	if !ok || !slices.ContainsFunc(slices.Collect(maps.Values(api.Params)), func(s string) bool { return strings.HasPrefix(s, "hotplug problem") }) {
		return err
	}
	return fmt.Errorf("the running guest did not take it, so it waits for a restart now: %w", err)
}
