package lxc

import (
	"cmp"
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// apiDestroyLXC is DELETE /nodes/{node}/lxc/{vmid}.
func apiDestroyLXC(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	force, purge, unreferenced := c.Flag("force"), c.Flag("purge"), c.Flag("destroy-unreferenced-disks")
	early := func() error {
		if g.Conf["protection"] == "1" {
			return perl.Fail("can't remove CT %d - protection mode enabled", g.Vmid)
		}
		if err := g.CheckLock(); err != nil {
			return err
		}
		if w.HA.Managed(g) && !purge {
			return perl.Fail("unable to remove CT %d - used in HA resources and purge parameter not set.", g.Vmid)
		}
		if err := guests.NotReplicated(w, g); err != nil && !purge {
			return err
		}
		if g.Run != nil && !force {
			return perl.Fail("unable to destroy CT %d - container is running", g.Vmid)
		}
		return nil
	}
	if err := early(); err != nil {
		return nil, err
	}
	return w.Fork(c, g.Node, core.Job{Kind: "vzdestroy", ID: fmt.Sprint(g.Vmid), Guest: g, Begin: func(t *core.Task) error {
		if err := early(); err != nil {
			return err
		}
		if g.Run != nil {
			t.Logf("forced to stop CT %d before destroying!", g.Vmid)
			guests.PowerOff(w, g, c)
		}
		return cmp.Or(guests.MayFree(w, g), w.NeedWritable(g))
	}, End: func(t *core.Task) error {
		guests.FreeDisks(w, g, unreferenced, t.Logf)
		if purge {
			t.Logf("purging CT %d from related configurations..", g.Vmid)
			guests.Purge(w, g)
		}
		w.Remove(g)
		return nil
	}}), nil
}
