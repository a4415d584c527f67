package pvesim

import (
	"fmt"
	"time"
)

// apiTemplateCT is POST /nodes/{node}/lxc/{vmid}/template. It starts a task and
// does not tell its name.
func apiTemplateCT(w *world, c *call) (any, error) {
	g, err := c.ct()
	if err != nil {
		return nil, err
	}
	if err := c.lockFile(g); err != nil {
		return nil, err
	}
	if err := g.checkLock(); err != nil {
		return nil, err
	}
	switch {
	case len(g.snapshots) > 0:
		return nil, fail("unable to create template, because CT contains snapshots")
	case g.conf["template"] == "1":
		return nil, fail("you can't convert a template to a template")
	case g.run != nil:
		return nil, fail("you can't convert a CT to template if the CT is running")
	}
	// Its worker keeps the lock file that the call took. Nobody is told when it ends, so that
	// a client that asks at once sees the container as it was.
	takes := max(w.taskTime("vztemplate"), templateTime)
	w.fork(c, g.node, job{kind: "vztemplate", id: fmt.Sprint(g.vmid), guest: g, takes: takes, end: func(*task) error {
		if err := w.templateCT(g); err != nil {
			return err
		}
		w.write(g)
		return nil
	}})
	return nil, nil
}

// templateTime is the least that the worker takes to make a container a template.
const templateTime = 50 * time.Millisecond

// templateCT makes bases of the volumes of a container, and it a template (template_create
// in PVE/LXC.pm).
func (w *world) templateCT(g *guest) error {
	for _, key := range mountNames(g.conf) {
		if volid := parseMount(key, g.conf[key]).volume; !w.canBeBase(volid) {
			return fail("Template feature is not available for '%s'", volid)
		}
	}
	for _, key := range mountNames(g.conf) {
		m := parseMount(key, g.conf[key])
		if w.volume(g.node, m.volume) == nil {
			return fail("volume '%s' does not exist", m.volume)
		}
		m.volume = w.baseOf(g, m.volume)
		g.conf[key] = m.String()
	}
	g.conf["template"] = "1"
	return nil
}

// canBeBase says whether a volume can become the base of clones: one of a storage that has
// such, and that is none yet (volume_has_feature in the plugins of PVE/Storage).
func (w *world) canBeBase(volid string) bool {
	storage, _, managed := volumeID(volid)
	st := w.stores[storage]
	return managed && st != nil && st.Type != "lvm" && st.Type != "iscsi" && !w.based(volid)
}
