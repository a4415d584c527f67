package pvesim

import (
	"fmt"
	"strconv"
	"strings"
)

// beginSamples lets the status daemons look at guests.
func beginSamples(w *world) { w.hooks.sampled = w.sample }

// sample looks at a guest.
func (w *world) sample(g *guest) sample {
	s := sample{vmid: g.vmid, name: g.conf["name"], status: "stopped", template: g.conf["template"] == "1", cpus: float64(w.cpus(g))}
	if g.kind == "lxc" {
		s.name = g.conf["hostname"]
		w.ctSize(&s, g)
	} else {
		s.maxmem = int64(memoryMiB(g.conf["memory"])) << 20
		s.maxdisk = bootDiskSize(g.conf)
	}
	if s.name == "" {
		s.name = fmt.Sprintf("VM %d", g.vmid)
		if g.kind == "lxc" {
			s.name = fmt.Sprintf("CT%d", g.vmid)
		}
	}
	if g.run != nil {
		s.status, s.qmp, s.since = "running", g.run.qmp, g.run.since
	}
	return s
}

// ctSize fills in the sizes of a container. While it runs its file system is asked.
func (w *world) ctSize(s *sample, g *guest) {
	s.maxmem = int64(512) << 20
	if mib := atoi(g.conf["memory"]); mib > 0 {
		s.maxmem = int64(mib) << 20
	}
	if limit, err := strconv.ParseFloat(g.conf["cpulimit"], 64); err == nil && limit > 0 && atoi(g.conf["cores"]) == 0 {
		s.cpus = limit
	}
	if s.maxdisk, _ = parseSize(optionOf(g.conf["rootfs"], "size")); s.maxdisk == 0 {
		s.maxdisk = 4 << 30 // What PVE takes it for.
	}
	if g.run != nil {
		s.disk = min(2150400, s.maxdisk)
		if !strings.Contains(g.conf["rootfs"], "subvol-") {
			made := s.maxdisk
			if v := w.volume(g.node, parseMount("rootfs", g.conf["rootfs"]).volume); v != nil && v.made > 0 {
				made = v.made
			}
			s.maxdisk = newExt4(made).usable(s.maxdisk)
		}
	}
}

// bootDiskSize is the size of the first disk to boot from.
func bootDiskSize(conf config) int64 {
	for _, key := range bootOrder(conf["boot"]) {
		value, ok := conf[key]
		if !ok || !isDrive(key) {
			continue
		}
		if d := parseDrive(key, value); !d.cdrom() {
			size, _ := parseSize(d.opts["size"])
			return size
		}
	}
	return 0
}

// The figures of a running guest are invented, but steady: the same for the
// same guest at the same time.
