package qemu

import (
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// apiTemplate is POST /nodes/{node}/qemu/{vmid}/template.
func apiTemplate(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	only := c.In["disk"]
	check := func() error {
		if err := g.CheckLock(); err != nil {
			return err
		}
		if len(g.Snapshots) > 0 {
			return perl.Fail("unable to create template, because VM contains snapshots")
		}
		if g.Conf["template"] == "1" && only == "" {
			return perl.Fail("you can't convert a template to a template")
		}
		if g.Run != nil {
			return perl.Fail("you can't convert a VM to template if VM is running")
		}
		return nil
	}
	if err := check(); err != nil {
		return nil, err
	}
	return w.Fork(c, g.Node, core.Job{Kind: "qmtemplate", ID: fmt.Sprint(g.Vmid), Guest: g, Begin: func(*core.Task) error {
		if err := check(); err != nil {
			return err
		}
		g.Conf["template"] = "1"
		w.Write(g)
		return nil
	}, End: func(*core.Task) error {
		templateVM(w, g, only)
		w.Write(g)
		return nil
	}}), nil
}

// templateVM makes bases of the disks of a VM, or of one of them.
func templateVM(w *core.World, g *core.Guest, only string) {
	for _, key := range property.DriveNames(g.Conf) {
		d := property.ParseDrive(key, g.Conf[key])
		if d.Cdrom() || only != "" && only != key {
			continue
		}
		d.File = guests.BaseOf(w, g, d.File)
		g.Conf[key] = d.String()
	}
}
