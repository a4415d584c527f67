package cluster

import (
	"fmt"
	"strconv"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Populate makes foreign guests: things that were there before, of the kinds
// that a host collects over the years.
func Populate(w *core.World, n int) {
	roles := []string{"mail", "files", "backup", "git", "media", "dns", "monitor", "build", "cache", "test"}
	tags := []string{"", "prod", "old;windows", "critical;prod", "lab"}
	notes := []string{"", "Do not touch.", "# Runbook\n\nAsk Anna before any change: 100% hers.", "migrated 2019"}
	nodes, bridge := w.NodeNames(), "vmbr0"
	if len(w.Bridges) > 0 {
		bridge = w.Bridges[0]
	}
	for i := range n {
		vmid := 100 + i
		node := nodes[i%len(nodes)]
		name := fmt.Sprintf("%s-%d", roles[w.Rng.IntN(len(roles))], i+1)
		kind := "qemu"
		if w.Rng.IntN(4) == 0 {
			kind = "lxc"
		}
		g := core.NewGuest(node, kind, vmid)
		if kind == "lxc" {
			fillContainer(w, g, name, bridge)
		} else {
			fillVM(w, g, name, bridge)
		}
		set := func(key, value string) {
			if value != "" {
				g.Conf[key] = value
			}
		}
		set("tags", tags[w.Rng.IntN(len(tags))])
		set("description", notes[w.Rng.IntN(len(notes))])
		if w.Rng.IntN(3) > 0 {
			g.Conf["onboot"] = "1"
		}
		w.Add(g)
		w.Write(g)
		if w.Rng.IntN(10) < 6 {
			guests.PowerOn(w, g)
			g.Run.Since = w.Now.Add(-time.Duration(1+w.Rng.IntN(90)) * time.Hour)
			g.Run.Booted = g.Run.Since
		}
	}
}

func fillVM(w *core.World, g *core.Guest, name, bridge string) {
	g.Conf["name"] = name
	g.Conf["cores"] = strconv.Itoa(1 << w.Rng.IntN(4))
	g.Conf["memory"] = strconv.Itoa(1024 << w.Rng.IntN(4))
	g.Conf["net0"] = "virtio=" + w.MAC() + ",bridge=" + bridge
	g.Conf["ostype"] = "l26"
	g.Conf["scsihw"] = "virtio-scsi-single"
	g.Conf["smbios1"] = "uuid=" + w.Rng.UUID()
	g.Conf["vmgenid"] = w.Rng.UUID()
	g.Conf["meta"] = fmt.Sprintf("creation-qemu=7.2.0,ctime=%d", w.Boot.Unix()-int64(w.Rng.IntN(1e8)))
	if volid, size := oldDisk(w, g); volid != "" {
		g.Conf["scsi0"] = volid + ",size=" + perl.FormatSize(size)
		g.Conf["boot"] = "order=scsi0"
	}
}

func fillContainer(w *core.World, g *core.Guest, name, bridge string) {
	g.Conf["hostname"] = name
	g.Conf["arch"] = "amd64"
	g.Conf["cores"] = strconv.Itoa(1 + w.Rng.IntN(4))
	g.Conf["memory"] = strconv.Itoa(512 << w.Rng.IntN(3))
	g.Conf["swap"] = "512"
	g.Conf["ostype"] = "debian"
	g.Conf["unprivileged"] = "1"
	g.Conf["net0"] = "name=eth0,bridge=" + bridge + ",hwaddr=" + w.MAC() + ",ip=dhcp,type=veth"
	if volid, size := oldDisk(w, g); volid != "" {
		g.Conf["rootfs"] = volid + ",size=" + perl.FormatSize(size)
	}
}

// oldDisk gives a foreign guest a disk on the first storage that takes one.
func oldDisk(w *core.World, g *core.Guest) (volid string, size int64) {
	size = int64(8<<w.Rng.IntN(4)) << 30
	for _, c := range w.Cfg.Storages {
		s := w.Stores[c.Name]
		if !s.Holds("images") {
			continue
		}
		v := &core.Volume{
			Name: s.DiskName(g.Vmid, 0, "raw"), Content: "images", Format: "raw", Size: size, Vmid: g.Vmid, System: true,
			Ctime: w.Boot.Unix(), Used: 1 << 20,
		}
		s.Put(g.Node, v)
		return s.Name + ":" + v.Name, size
	}
	return "", 0
}
