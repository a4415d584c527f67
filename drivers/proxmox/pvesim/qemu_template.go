package pvesim

import (
	"fmt"
	"path"
	"strings"
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
		for _, key := range driveNames(g.conf) {
			d := parseDrive(key, g.conf[key])
			if d.cdrom() || only != "" && only != key {
				continue
			}
			w.makeBase(g, &d)
			g.conf[key] = d.String()
		}
		w.write(g)
		return nil
	}}), nil
}

// makeBase turns a disk into a base of clones: it gets another name
// (vdisk_create_base in PVE/Storage.pm).
func (w *world) makeBase(g *guest, d *drive) {
	storage, name, _ := volumeID(d.file)
	st := w.stores[storage]
	if st == nil || st.Type == "lvm" {
		return
	}
	v := st.find(g.node, name)
	last := path.Base(name)
	if v == nil || !strings.HasPrefix(last, "vm-") {
		return
	}
	delete(st.volumes, st.key(g.node, name))
	v.name = strings.TrimSuffix(name, last) + "base-" + strings.TrimPrefix(last, "vm-")
	v.ctime = w.now.Unix()
	st.put(g.node, v)
	d.file = storage + ":" + v.name
}
