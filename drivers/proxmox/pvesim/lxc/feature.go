package lxc

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// apiFeature is GET …/feature: whether all disks of a guest can be snapshot, cloned
// or copied.
func apiFeature(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	conf := g.Conf
	if name := c.In["snapname"]; name != "" {
		s := g.Snapshot(name)
		if s == nil {
			return nil, perl.Fail("snapshot '%s' does not exist", name)
		}
		conf = s.Conf
	}
	if g.Kind == "lxc" {
		return map[string]any{"hasFeature": perl.BoolInt(ctFeature(w, g, conf, c.In["feature"]))}, nil
	}
	has := true
	for key, volid := range guests.Disks(g, conf) {
		if property.ParseDrive(key, conf[key]).Cdrom() {
			continue
		}
		switch c.In["feature"] {
		case "snapshot":
			has = has && guests.Snapshotable(w, g) == nil && !guests.Based(w, volid) // A base takes none.
		case "clone":
			has = has && guests.Clonable(w, volid)
		}
	}
	nodes := []string{}
	for _, name := range w.NodeNames() {
		if here := name == g.Node; here || shared(w, g, conf) {
			nodes = append(nodes, name)
		}
	}
	return map[string]any{"hasFeature": perl.BoolInt(has), "nodes": nodes}, nil
}

// shared says whether all disks of a configuration are there on every node.
func shared(w *core.World, g *core.Guest, conf property.Config) bool {
	for _, volid := range guests.Disks(g, conf) {
		if storage, _, _ := core.VolumeID(volid); w.Stores[storage] == nil || !w.Stores[storage].Shared {
			return false
		}
	}
	return true
}

// ctFeature is has_feature in PVE/LXC/Config.pm. A container wants its copies raw or as
// directories, so that files have no linked clones, and directories no copies.
func ctFeature(w *core.World, g *core.Guest, conf property.Config, feature string) bool {
	for _, key := range property.MountNames(conf) {
		m := property.ParseMount(key, conf[key])
		storage, name, managed := core.VolumeID(m.Volume)
		st := w.Stores[storage]
		if m.Kind() != "volume" || !managed || st == nil {
			return false
		}
		has := true
		switch v := st.Find(g.Node, name); feature {
		case "snapshot":
			has = v != nil && guests.Snapshots(st, v) && !guests.Based(w, m.Volume)
		case "clone":
			has = !st.Files() && guests.Clonable(w, m.Volume)
		case "copy":
			has = !st.Files() || v == nil || v.Format != "subvol"
		}
		if !has {
			return false
		}
	}
	return true
}
