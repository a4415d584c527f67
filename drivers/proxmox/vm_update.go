package proxmox

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// updateVM writes exactly the keys that the plan shows, in one request that
// carries the digest of what was observed, then does what is no key: disks moved
// and grown, power, restart.
func updateVM(ctx context.Context, d *Driver, s plan.Step, want, have *VM) error {
	at := place{s.Have.Guest.Node, s.Have.Guest.VMID}
	m := want.mark
	m.Owner, m.UUID = d.id.owner, have.mark.UUID
	if m.UUID == "" { // a clone whose making was cut off: what is missing of it is done now
		m.UUID = or(uuidOf(have.observe.next["smbios1"]), uuid.NewString())
		if err := d.dress(ctx, want, at, m); err != nil {
			return err
		}
		return d.complete(ctx, s, want, at)
	}
	m.Slots = slots(want, have.observe, have.mark.Slots)
	ch := change{want: want, have: have, m: m, set: params{}, gone: map[string]bool{}}
	for _, c := range s.Changes {
		ch.add(c.Path)
	}
	ch.describe()
	if len(ch.set)+len(ch.gone) == 0 { // no request with a digest says that it still is what was observed
		if err := d.stillOurs(ctx, at, s.Address); err != nil {
			return fmt.Errorf("changing VM %d: %w", at.vmid, err)
		}
	}
	if err := d.write(ctx, at, ch, s.Have); err != nil {
		return fmt.Errorf("changing VM %d: %w", at.vmid, err)
	}
	if err := d.moveDisks(ctx, at, ch); err != nil {
		return err
	}
	switch {
	case ch.power && want.Power == "stopped":
		return d.stop(ctx, at, have.mark)
	case ch.power:
		return d.start(ctx, at)
	case s.Class == model.ClassRestart && s.Have.Guest.Running:
		return d.restart(ctx, at, have.mark)
	}
	return nil
}

// stillOurs proves once more that the guest at a place is the one of an address.
func (d *Driver) stillOurs(ctx context.Context, at place, addr model.Address) error {
	cfg, err := d.readConfig(ctx, at.node, at.vmid)
	if err != nil {
		return fmt.Errorf("looking at it first: %w", err)
	}
	if is := d.proof(cfg, at.vmid); !is.of(addr) {
		return fmt.Errorf("it is not provably %s any more (%s): left alone; plan again", addr, is.why())
	}
	return nil
}

// change collects what the changes of a step mean for PVE.
type change struct {
	want, have *VM
	m          mark
	set        params
	gone       map[string]bool // keys to delete
	power      bool
	grow, move []string // names of disks
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
		c.set["agent"] = agentText(w.Agent)
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
	case "options":
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
		c.gone[key] = true
		return
	}
	c.set[key] = val
}

// describe writes notes and mark where either differs: the mark also holds slots
// and options, which the other changes may have moved.
func (c *change) describe() {
	c.m.Options = slices.Sorted(maps.Keys(c.want.Options))
	if text := describe(c.want.Description, c.m); text != strings.TrimRight(c.have.observe.next["description"], " \t\r\n") {
		c.set["description"] = text
	}
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
		c.text("ipconfig"+strings.TrimPrefix(slot, "net"), n.ipconfig())
		return
	}
	c.set[slot] = card(c.have.observe.next[slot], n)
}

func (c *change) disk(name, attr string) {
	isName := func(d Disk) bool { return d.Name == name }
	i, j := slices.IndexFunc(c.want.Disks, isName), slices.IndexFunc(c.have.Disks, isName)
	switch {
	case i < 0: // detached: PVE keeps the volume as an unused disk
		c.gone[c.have.mark.Slots["disk."+name]] = true
	case j < 0:
		d := c.want.Disks[i]
		c.set[c.m.Slots["disk."+name]] = fmt.Sprintf("%s:%d,discard=on,iothread=1,ssd=1", d.Storage, d.Size)
	case attr == "size":
		c.grow = append(c.grow, name)
	case attr == "storage":
		c.move = append(c.move, name)
	}
}

// touched reports whether a key that is about to be written or deleted is not what
// it was when the change was worked out. Attributes do not tell: a disk attached by
// hand is none of ours, but may stand in the slot that was free then.
func (c *change) touched(now config) bool {
	old := c.have.observe.next
	for key := range c.set {
		if key != "digest" && key != "delete" && now.next[key] != old[key] {
			return true
		}
	}
	for key := range c.gone {
		if now.next[key] != old[key] {
			return true
		}
	}
	return false
}

// write sends the keys, with the digest they were planned on. When that digest
// moved although nothing we look at changed (PVE renews it also for its own
// bookkeeping), it is sent once more with the new one.
func (d *Driver) write(ctx context.Context, at place, ch change, have *model.Resource) error {
	if len(ch.gone) > 0 {
		ch.set["delete"] = strings.Join(slices.Sorted(maps.Keys(ch.gone)), ",")
	}
	if len(ch.set) == 0 {
		return nil
	}
	ch.set["digest"] = have.Guest.Digest
	_, err := d.c.put(ctx, at.path("config"), ch.set)
	if classOf(err) != classMoved {
		return err
	}
	cfg, lookErr := d.readConfig(ctx, at.node, at.vmid)
	if lookErr != nil {
		return fmt.Errorf("%w; and it cannot be looked at: %w", err, lookErr)
	}
	is := d.proof(cfg, at.vmid)
	if !is.of(have.Addr) {
		return fmt.Errorf("%w; it is not provably %s any more (%s): left alone", err, have.Addr, is.why())
	}
	fresh := observedVM(listed{vmid: at.vmid, node: at.node, running: have.Guest.Running}, cfg, is.notes, is.mark)
	if ch.touched(cfg) || !reflect.DeepEqual(model.Attrs(fresh.Spec), model.Attrs(have.Spec)) {
		return fmt.Errorf("%w: somebody changed it since the plan was made; plan again", err)
	}
	ch.set["digest"] = cfg.digest
	_, err = d.c.put(ctx, at.path("config"), ch.set)
	return err
}

// moveDisks moves disks to their storage and grows them.
func (d *Driver) moveDisks(ctx context.Context, at place, ch change) error {
	for _, name := range ch.move {
		i := slices.IndexFunc(ch.want.Disks, func(d Disk) bool { return d.Name == name })
		upid, err := d.c.post(ctx, at.path("move_disk"), params{"disk": ch.m.Slots["disk."+name], "storage": ch.want.Disks[i].Storage, "delete": true})
		if err = d.settled(ctx, upid, err); err != nil {
			return fmt.Errorf("moving disk %s of VM %d to %s: %w", name, at.vmid, ch.want.Disks[i].Storage, err)
		}
	}
	digest := ch.have.observe.digest
	if len(ch.set) > 0 || len(ch.move) > 0 {
		digest = "" // our own write moved it
	}
	for _, name := range ch.grow {
		i := slices.IndexFunc(ch.want.Disks, func(d Disk) bool { return d.Name == name })
		if err := d.resize(ctx, at, ch.m.Slots["disk."+name], ch.want.Disks[i].Size, digest); err != nil {
			return err
		}
		digest = ""
	}
	return nil
}

// start starts a guest; one that runs already is success.
func (d *Driver) start(ctx context.Context, at place) error {
	upid, err := d.c.post(ctx, at.path("status", "start"), nil)
	err = d.settled(ctx, upid, err)
	if err != nil && !strings.Contains(err.Error(), "already running") {
		return fmt.Errorf("starting VM %d: %w", at.vmid, err)
	}
	return nil
}

// stop shuts a guest down, and stops it hard when its time is up.
func (d *Driver) stop(ctx context.Context, at place, m mark) error {
	upid, err := d.c.post(ctx, at.path("status", "shutdown"), params{"timeout": m.down(), "forceStop": true})
	if err = d.settled(ctx, upid, err); err != nil {
		return fmt.Errorf("shutting VM %d down: %w", at.vmid, err)
	}
	return nil
}

// restart shuts a guest down and starts it, which applies what is pending.
func (d *Driver) restart(ctx context.Context, at place, m mark) error {
	upid, err := d.c.post(ctx, at.path("status", "reboot"), params{"timeout": m.down()})
	if err = d.settled(ctx, upid, err); err != nil {
		return fmt.Errorf("restarting VM %d: %w", at.vmid, err)
	}
	return nil
}

// down is how many seconds a guest gets to shut down.
func (m mark) down() int {
	if m.Destroy != nil && m.Destroy.Down > 0 {
		return m.Destroy.Down
	}
	return 60
}

// removeVM destroys a guest after proving once more that it is ours.
func removeVM(ctx context.Context, d *Driver, s plan.Step) error {
	at := place{vmid: s.VMID}
	for _, r := range []*model.Resource{s.Want, s.Have} {
		if r != nil && r.Guest != nil {
			at.node, at.vmid = r.Guest.Node, or(r.Guest.VMID, at.vmid)
		}
	}
	cfg, err := d.readConfig(ctx, at.node, at.vmid)
	if c := classOf(err); c == classNotFound || c == classDenied {
		return d.mustBeGone(ctx, at, err)
	}
	if err != nil {
		return fmt.Errorf("removing VM %d: looking at it first: %w", at.vmid, err)
	}
	is := d.proof(cfg, at.vmid)
	if !is.of(s.Address) {
		if s.Have == nil || s.Have.Guest.Digest == "" {
			return nil // taking back a create, which was never observed, that did not get far: what stands there is somebody else's
		}
		return fmt.Errorf("VM %d is not provably %s any more (%s): left alone", at.vmid, s.Address, is.why())
	}
	if cfg.next["protection"] == "1" { // asked before the guest is shut down for nothing
		return fmt.Errorf("removing VM %d: it is protected: set protection = false in the files and let that be applied first", at.vmid)
	}
	if err := d.stop(ctx, at, is.mark); err != nil {
		return err
	}
	// Only disks that the configuration names go; PVE's other option also takes every volume that carries the VMID.
	upid, err := d.c.remove(ctx, at.path(), url.Values{"purge": {"1"}, "destroy-unreferenced-disks": {"0"}})
	err = d.settled(ctx, upid, err)
	if err == nil {
		return nil
	}
	if _, lookErr := d.readConfig(ctx, at.node, at.vmid); classOf(lookErr) == classNotFound || classOf(lookErr) == classDenied {
		return d.mustBeGone(ctx, at, err)
	}
	return fmt.Errorf("removing VM %d: %w", at.vmid, err)
}

// mustBeGone asks the list of guests whether one is gone: an error on the guest
// itself proves nothing, since with rights on a pool only a missing guest and a
// hidden one look the same.
func (d *Driver) mustBeGone(ctx context.Context, at place, why error) error {
	v, err := d.readView(ctx)
	if err != nil {
		return err
	}
	for _, u := range v.unknown {
		if u.All {
			return fmt.Errorf("whether VM %d is gone cannot be seen: %s (%w)", at.vmid, u.Why, why)
		}
	}
	if g, there := v.guests[at.vmid]; there {
		return fmt.Errorf("VM %d is on node %s, but cannot be read there: %w", at.vmid, g.node, why)
	}
	if !v.narrow {
		return nil
	}
	switch hidden, err := d.taken(ctx, at.vmid); {
	case err != nil:
		return fmt.Errorf("asking whether VM %d is gone: %w", at.vmid, err)
	case hidden:
		return fmt.Errorf("VM %d exists, but the token may not see it any more (VM.Audit): was it taken out of its pool? (%w)", at.vmid, why)
	}
	return nil
}
