package pvesim

import "fmt"

// apiSnapshots is GET /nodes/{node}/qemu/{vmid}/snapshot: of a VM without
// snapshots PVE lists its present state.
func apiSnapshots(_ *world, c *call) (any, error) {
	g, err := c.vm()
	if err != nil {
		return nil, err
	}
	return []map[string]any{{"name": "current", "description": "You are here!", "digest": g.sum(), "running": boolInt(g.run != nil)}}, nil
}

// apiSnapshotVM is POST /nodes/{node}/qemu/{vmid}/snapshot. Snapshots are not
// simulated, but what PVE refuses is refused as PVE does: in the task.
func apiSnapshotVM(w *world, c *call) (any, error) {
	if c.in["snapname"] == "current" {
		return nil, fail("unable to use snapshot name 'current' (reserved name)")
	}
	g, err := c.vm()
	if err != nil {
		return nil, err
	}
	refused := g.checkLock()
	if g.conf["template"] == "1" {
		refused = fail("you can't take a snapshot if it's a template")
	}
	if refused == nil {
		return nil, c.unimplemented("there are no snapshots")
	}
	return w.fork(c, g.node, job{kind: "qmsnapshot", id: fmt.Sprint(g.vmid), guest: g, begin: func(*task) error { return refused }}), nil
}
