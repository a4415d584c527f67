package pvesim

import (
	"fmt"
	"strconv"
	"time"
)

// populate makes foreign guests: things that were there before, of the kinds
// that a host collects over the years.
func (w *world) populate(n int) {
	roles := []string{"mail", "files", "backup", "git", "media", "dns", "monitor", "build", "cache", "test"}
	tags := []string{"", "prod", "old;windows", "critical;prod", "lab"}
	notes := []string{"", "Do not touch.", "# Runbook\n\nAsk Anna before any change: 100% hers.", "migrated 2019"}
	nodes, bridge := w.nodeNames(), "vmbr0"
	if len(w.bridges) > 0 {
		bridge = w.bridges[0]
	}
	for i := range n {
		vmid := 100 + i
		node := nodes[i%len(nodes)]
		name := fmt.Sprintf("%s-%d", roles[w.rng.IntN(len(roles))], i+1)
		kind := "qemu"
		if w.rng.IntN(4) == 0 {
			kind = "lxc"
		}
		g := newGuest(node, kind, vmid)
		if kind == "lxc" {
			w.fillContainer(g, name, bridge)
		} else {
			w.fillVM(g, name, bridge)
		}
		set := func(key, value string) {
			if value != "" {
				g.conf[key] = value
			}
		}
		set("tags", tags[w.rng.IntN(len(tags))])
		set("description", notes[w.rng.IntN(len(notes))])
		if w.rng.IntN(3) > 0 {
			g.conf["onboot"] = "1"
		}
		w.add(g)
		w.write(g)
		if w.rng.IntN(10) < 6 {
			w.powerOn(g)
			g.run.since = w.now.Add(-time.Duration(1+w.rng.IntN(90)) * time.Hour)
			g.run.booted = g.run.since
		}
	}
}

func (w *world) fillVM(g *guest, name, bridge string) {
	g.conf["name"] = name
	g.conf["cores"] = strconv.Itoa(1 << w.rng.IntN(4))
	g.conf["memory"] = strconv.Itoa(1024 << w.rng.IntN(4))
	g.conf["net0"] = "virtio=" + w.mac() + ",bridge=" + bridge
	g.conf["ostype"] = "l26"
	g.conf["scsihw"] = "virtio-scsi-single"
	g.conf["smbios1"] = "uuid=" + w.uuid()
	g.conf["vmgenid"] = w.uuid()
	g.conf["meta"] = fmt.Sprintf("creation-qemu=7.2.0,ctime=%d", w.boot.Unix()-int64(w.rng.IntN(1e8)))
	if volid, size := w.oldDisk(g); volid != "" {
		g.conf["scsi0"] = volid + ",size=" + formatSize(size)
		g.conf["boot"] = "order=scsi0"
	}
}

func (w *world) fillContainer(g *guest, name, bridge string) {
	g.conf["hostname"] = name
	g.conf["arch"] = "amd64"
	g.conf["cores"] = strconv.Itoa(1 + w.rng.IntN(4))
	g.conf["memory"] = strconv.Itoa(512 << w.rng.IntN(3))
	g.conf["swap"] = "512"
	g.conf["ostype"] = "debian"
	g.conf["unprivileged"] = "1"
	g.conf["net0"] = "name=eth0,bridge=" + bridge + ",hwaddr=" + w.mac() + ",ip=dhcp,type=veth"
	if volid, size := w.oldDisk(g); volid != "" {
		g.conf["rootfs"] = volid + ",size=" + formatSize(size)
	}
}

// oldDisk gives a foreign guest a disk on the first storage that takes one.
func (w *world) oldDisk(g *guest) (volid string, size int64) {
	size = int64(8<<w.rng.IntN(4)) << 30
	for _, c := range w.cfg.Storages {
		s := w.stores[c.Name]
		if !s.holds("images") {
			continue
		}
		v := &volume{
			name: diskName(s, g.vmid, 0, "raw"), content: "images", format: "raw", size: size, vmid: g.vmid, system: true,
			ctime: w.boot.Unix(), used: 1 << 20,
		}
		s.put(g.node, v)
		return s.Name + ":" + v.name, size
	}
	return "", 0
}
