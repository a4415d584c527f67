package guests

import (
	"fmt"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// MovingWhere is the answer of move_disk and move_volume to a call that does not say,
// or says twice, where to.
func MovingWhere(wrong string) error {
	return &perl.APIError{Status: 400, Errors: map[string]string{"target-vmid": wrong, "storage": wrong}}
}

// Reassigning gives a volume of a guest to another one of the same node
// ($load_and_check_reassign_configs in PVE/API2/Qemu.pm and PVE/API2/LXC.pm). The functions
// have what VMs and containers do each in its way.
type Reassigning struct {
	Kind, Task, Owner string // qemu or lxc, the type of the task, and what messages call the guest.
	Key, As           string // The key that has the volume, and that which gets it.
	Wrong             error  // Error of the call itself.
	Templates         string // Error text if one of the guests is a template.
	Volume            func(from *core.Guest) string
	May               func(from, to *core.Guest) error
	Do                func(t *core.Task, from, to *core.Guest)
}

// Start checks a reassignment and starts its task, which checks it again.
func (r Reassigning) Start(c *core.Call, taker int) (any, error) {
	w, giver := c.W, c.Vmid()
	if !c.Root() {
		if err := c.NeedVM(taker, "", "VM.Config.Disk"); err != nil {
			return nil, err
		}
	}
	if r.Wrong != nil {
		return nil, r.Wrong
	}
	digests := [2]string{c.In["digest"], c.In["target-digest"]}
	check := func() (from, to *core.Guest, err error) {
		if from, to, err = both(w, r.Kind, giver, taker); err != nil {
			return nil, nil, err
		}
		if from.Conf["template"] == "1" || to.Conf["template"] == "1" {
			return nil, nil, perl.Fail("%s", r.Templates)
		}
		for i, g := range []*core.Guest{from, to} {
			if digests[i] != "" && digests[i] != g.Sum() {
				return nil, nil, perl.Fail("%s %d: detected modified configuration - file changed by other user? Try again.", r.Owner, g.Vmid)
			}
		}
		return from, to, r.May(from, to)
	}
	from, _, err := check()
	if err != nil {
		return nil, err
	}
	storage, _, _ := core.VolumeID(r.Volume(from))
	if err := c.Need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	return w.Fork(c, from.Node, core.Job{Kind: r.Task, ID: fmt.Sprintf("%d-%s>%d-%s", giver, r.Key, taker, r.As), Guest: from, End: func(t *core.Task) error {
		from, to, err := check()
		if err == nil {
			r.Do(t, from, to)
		}
		return err
	}}), nil
}

// both are the guest that gives a volume and the one that gets it, neither locked.
func both(w *core.World, kind string, giver, taker int) (from, to *core.Guest, err error) {
	title, target, plural := "VM", "target VM", "VMs"
	if kind == "lxc" {
		title, target, plural = "CT", "CT", "containers"
	}
	found := [2]*core.Guest{}
	for i, vmid := range []int{giver, taker} {
		if found[i] = w.Guests[vmid]; found[i] == nil && i == 0 {
			return nil, nil, perl.Fail("could not find %s %d", title, vmid)
		} else if found[i] == nil {
			return nil, nil, perl.Fail("could not find %s %d", target, vmid)
		}
	}
	from, to = found[0], found[1]
	if from.Node != to.Node {
		return nil, nil, perl.Fail("Both %s need to be on the same node (%s != %s)", plural, from.Node, to.Node)
	}
	for _, g := range found {
		if g.Kind != kind {
			return nil, nil, core.Missing(g.Node, kind, g.Vmid)
		}
		if err := g.CheckLock(); err != nil {
			return nil, nil, err
		}
	}
	return from, to, nil
}
