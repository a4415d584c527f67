package main

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
	"github.com/homestak/homestak-gitops/engine/model"
)

// simOf describes the simulator that stands for a host of the site with --sim: it
// has the nodes, storages and bridges that the site names there, beside those of a
// fresh installation.
func simOf(site *model.Site, h *model.Host) pvesim.Config {
	c := pvesim.Config{Node: h.PVENode(), Storages: pvesim.DefaultStorages(), Bridges: []string{"vmbr0"}}
	for _, n := range h.Nodes {
		if n != c.Node {
			c.Nodes = append(c.Nodes, n)
		}
	}
	if h.Storage != nil {
		c.Storages = holding(c.Storages, h.Storage.Disks, "lvmthin", "images", "rootdir")
		c.Storages = holding(c.Storages, h.Storage.Images, "dir", "import")
		c.Storages = holding(c.Storages, h.Storage.ISO, "dir", "iso")
		c.Storages = holding(c.Storages, h.Storage.Backups, "dir", "backup")
		c.Storages = holding(c.Storages, h.Storage.Snippets, "dir", "snippets")
	}
	want, _ := site.Want(h.Name)
	for _, addr := range want.State.Addresses() {
		r := want.State[addr]
		for _, attr := range model.Attrs(r.Spec) {
			name, _ := attr.Value.(string)
			switch last := attr.Path[strings.LastIndexByte(attr.Path, '.')+1:]; {
			case name == "":
			case last == "bridge" && !slices.Contains(c.Bridges, name):
				c.Bridges = append(c.Bridges, name)
			case last == "storage":
				c.Storages = holding(c.Storages, name, "lvmthin", "images", "rootdir")
			case last == "volume": // STORAGE:CONTENT/FILE
				storage, file, _ := strings.Cut(name, ":")
				content, _, _ := strings.Cut(file, "/")
				c.Storages = holding(c.Storages, storage, "dir", content)
			}
		}
	}
	return c
}

// simulatedGuests tells whether a guest of a simulator is up, by its address: there is
// no network to try it on.
func simulatedGuests(sims map[string]*pvesim.Host) func(netip.Addr) error {
	return func(ip netip.Addr) error {
		for _, h := range sims {
			if h.Reaches(ip) {
				return nil
			}
		}
		return errors.New("no simulated guest with this address is up")
	}
}

// holding makes sure that a storage is there and takes content of these types; an
// empty name is none.
func holding(list []pvesim.Storage, name, kind string, content ...string) []pvesim.Storage {
	if name == "" {
		return list
	}
	i := slices.IndexFunc(list, func(s pvesim.Storage) bool { return s.Name == name })
	if i < 0 {
		list = append(list, pvesim.Storage{Name: name, Type: kind})
		i = len(list) - 1
	}
	for _, c := range content {
		if !slices.Contains(list[i].Content, c) {
			list[i].Content = append(slices.Clone(list[i].Content), c)
		}
	}
	return list
}
