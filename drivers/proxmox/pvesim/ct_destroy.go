package pvesim

import "fmt"

// apiDestroyLXC is DELETE /nodes/{node}/lxc/{vmid}.
func apiDestroyLXC(w *world, c *call) (any, error) {
	g, err := c.ct()
	if err != nil {
		return nil, err
	}
	force, purge, unreferenced := c.flag("force"), c.flag("purge"), c.flag("destroy-unreferenced-disks")
	early := func() error {
		if g.conf["protection"] == "1" {
			return fail("can't remove CT %d - protection mode enabled", g.vmid)
		}
		if err := g.checkLock(); err != nil {
			return err
		}
		if w.ha.managed(g) && !purge {
			return fail("unable to remove CT %d - used in HA resources and purge parameter not set.", g.vmid)
		}
		if err := w.notReplicated(g); err != nil && !purge {
			return err
		}
		if g.run != nil && !force {
			return fail("unable to destroy CT %d - container is running", g.vmid)
		}
		return nil
	}
	if err := early(); err != nil {
		return nil, err
	}
	return w.fork(c, g.node, job{kind: "vzdestroy", id: fmt.Sprint(g.vmid), guest: g, begin: func(t *task) error {
		if err := early(); err != nil {
			return err
		}
		if g.run != nil {
			t.logf("forced to stop CT %d before destroying!", g.vmid)
			w.powerOff(g, c)
		}
		if err := w.mayFree(g); err != nil {
			return err
		}
		return w.needWritable(g)
	}, end: func(t *task) error {
		w.freeDisks(g, unreferenced, t.logf)
		if purge {
			t.logf("purging CT %d from related configurations..", g.vmid)
			w.purge(g)
		}
		w.remove(g)
		return nil
	}}), nil
}
