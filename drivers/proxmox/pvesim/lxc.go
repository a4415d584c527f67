package pvesim

// Containers can be there (foreign ones, see Config.Guests and Edit.Add) and be
// read. Their own life is not simulated: what would change one answers 501, once
// PVE's own reasons to refuse are ruled out.

// apiNodeLXC is GET /nodes/{node}/lxc: foreign containers are listed.
func apiNodeLXC(w *world, c *call) (any, error) {
	list := []map[string]any{}
	for _, vmid := range w.vmids {
		g := w.guests[vmid]
		if g.node != c.in["node"] || g.kind != "lxc" || !c.can(vmPath(vmid), "VM.Audit") {
			continue
		}
		list = append(list, w.ctStatus(g))
	}
	return list, nil
}

// ctStatus is what vmstatus in PVE/LXC.pm says about a container.
func (w *world) ctStatus(g *guest) map[string]any {
	s := g.sample()
	entry := map[string]any{
		"vmid": g.vmid, "name": s.name, "status": s.status, "type": "lxc", "cpus": s.cpus, "cpu": s.cpu(w.now), "mem": s.mem(w.now),
		"maxmem": s.maxmem, "disk": 0, "maxdisk": s.maxdisk, "swap": 0, "maxswap": 0, "netin": s.traffic(w.now), "netout": s.traffic(w.now) / 2,
		"diskread": 0, "diskwrite": 0, "uptime": s.uptime(w.now),
	}
	for _, key := range []string{"tags", "lock"} {
		if value, ok := g.conf[key]; ok {
			entry[key] = value
		}
	}
	return entry
}

// ct is the container that a call is about.
func (c *call) ct() (*guest, error) {
	if g := c.w.guest(c.in["node"], "lxc", c.vmid()); g != nil {
		return g, nil
	}
	return nil, missing(c.in["node"], "lxc", c.vmid())
}

// apiLXCConfig is GET /nodes/{node}/lxc/{vmid}/config.
func apiLXCConfig(_ *world, c *call) (any, error) {
	g, err := c.ct()
	if err != nil {
		return nil, err
	}
	result := map[string]any{"digest": g.sum()}
	for key, value := range g.conf {
		result[key] = typed(g.kind, key, value)
	}
	return result, nil
}

// apiLXCCurrent is GET /nodes/{node}/lxc/{vmid}/status/current.
func apiLXCCurrent(w *world, c *call) (any, error) {
	g, err := c.ct()
	if err != nil {
		return nil, err
	}
	entry := w.ctStatus(g)
	entry["ha"] = map[string]any{"managed": 0}
	return entry, nil
}

// apiCreateLXC is POST /nodes/{node}/lxc.
func apiCreateLXC(w *world, c *call) (any, error) {
	if err := c.mayCreate(c.vmid(), c.in["pool"], ""); err != nil {
		return nil, err
	}
	if err := w.unusedID(c.vmid()); err != nil {
		return nil, err
	}
	return nil, c.unimplemented("containers cannot be created")
}

// apiDestroyLXC is DELETE /nodes/{node}/lxc/{vmid}.
func apiDestroyLXC(_ *world, c *call) (any, error) {
	if _, err := c.ct(); err != nil {
		return nil, err
	}
	return nil, c.unimplemented("containers cannot be destroyed")
}
