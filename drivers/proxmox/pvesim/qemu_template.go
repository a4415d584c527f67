package pvesim

import (
	"fmt"
)

// apiTemplate is POST /nodes/{node}/qemu/{vmid}/template.
func apiTemplate(w *world, c *call) (any, error) {
	g, err := c.vm()
	if err != nil {
		return nil, err
	}
	only := c.in["disk"]
	check := func() error {
		if err := g.checkLock(); err != nil {
			return err
		}
		if len(g.snapshots) > 0 {
			return fail("unable to create template, because VM contains snapshots")
		}
		if g.conf["template"] == "1" && only == "" {
			return fail("you can't convert a template to a template")
		}
		if g.run != nil {
			return fail("you can't convert a VM to template if VM is running")
		}
		return nil
	}
	if err := check(); err != nil {
		return nil, err
	}
	return w.fork(c, g.node, job{kind: "qmtemplate", id: fmt.Sprint(g.vmid), guest: g, begin: func(*task) error {
		if err := check(); err != nil {
			return err
		}
		g.conf["template"] = "1"
		w.write(g)
		return nil
	}, end: func(*task) error {
		w.templateVM(g, only)
		w.write(g)
		return nil
	}}), nil
}

// templateVM makes bases of the disks of a VM, or of one of them.
func (w *world) templateVM(g *guest, only string) {
	for _, key := range driveNames(g.conf) {
		d := parseDrive(key, g.conf[key])
		if d.cdrom() || only != "" && only != key {
			continue
		}
		d.file = w.baseOf(g, d.file)
		g.conf[key] = d.String()
	}
}
