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

// baseOf turns a volume into a base of clones: it gets another name
// (vdisk_create_base in PVE/Storage.pm). The new one is returned.
func (w *world) baseOf(g *guest, volid string) string {
	storage, name, _ := volumeID(volid)
	st := w.stores[storage]
	if st == nil || st.Type == "lvm" {
		return volid
	}
	v, last := st.find(g.node, name), path.Base(name)
	for plain, base := range map[string]string{"vm-": "base-", "subvol-": "basevol-"} {
		rest, found := strings.CutPrefix(last, plain)
		if v == nil || !found {
			continue
		}
		delete(st.volumes, st.key(g.node, name))
		v.name = strings.TrimSuffix(name, last) + base + rest
		v.ctime = w.now.Unix()
		st.put(g.node, v)
		return storage + ":" + v.name
	}
	return volid
}
