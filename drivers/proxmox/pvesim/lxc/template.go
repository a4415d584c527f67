package lxc

import (
	"fmt"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// apiTemplateCT is POST /nodes/{node}/lxc/{vmid}/template. It starts a task and
// does not tell its name.
func apiTemplateCT(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	if err := c.LockFile(g); err != nil {
		return nil, err
	}
	if err := g.CheckLock(); err != nil {
		return nil, err
	}
	switch {
	case len(g.Snapshots) > 0:
		return nil, perl.Fail("unable to create template, because CT contains snapshots")
	case g.Conf["template"] == "1":
		return nil, perl.Fail("you can't convert a template to a template")
	case g.Run != nil:
		return nil, perl.Fail("you can't convert a CT to template if the CT is running")
	}
	// Its worker keeps the lock file that the call took. Nobody is told when it ends, so that
	// a client that asks at once sees the container as it was.
	takes := max(w.Cfg.TaskTimeOf("vztemplate"), templateTime)
	w.Fork(c, g.Node, core.Job{Kind: "vztemplate", ID: fmt.Sprint(g.Vmid), Guest: g, Takes: takes, End: func(*core.Task) error {
		if err := templateCT(w, g); err != nil {
			return err
		}
		w.Write(g)
		return nil
	}})
	return nil, nil
}

// templateTime is the least that the worker takes to make a container a template.
const templateTime = 50 * time.Millisecond

// templateCT makes bases of the volumes of a container, and it a template (template_create
// in PVE/LXC.pm).
func templateCT(w *core.World, g *core.Guest) error {
	for _, key := range property.MountNames(g.Conf) {
		if volid := property.ParseMount(key, g.Conf[key]).Volume; !canBeBase(w, volid) {
			return perl.Fail("Template feature is not available for '%s'", volid)
		}
	}
	for _, key := range property.MountNames(g.Conf) {
		m := property.ParseMount(key, g.Conf[key])
		if w.Volume(g.Node, m.Volume) == nil {
			return perl.Fail("volume '%s' does not exist", m.Volume)
		}
		m.Volume = guests.BaseOf(w, g, m.Volume)
		g.Conf[key] = m.String()
	}
	g.Conf["template"] = "1"
	return nil
}

// canBeBase says whether a volume can become the base of clones: one of a storage that has
// such, and that is none yet (volume_has_feature in the plugins of PVE/Storage).
func canBeBase(w *core.World, volid string) bool {
	storage, _, managed := core.VolumeID(volid)
	st := w.Stores[storage]
	return managed && st != nil && st.Type != "lvm" && st.Type != "iscsi" && !guests.Based(w, volid)
}
