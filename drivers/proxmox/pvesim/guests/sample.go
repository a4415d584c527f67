package guests

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// beginSamples lets the status daemons look at guests.
func beginSamples(w *core.World) {
	w.Hooks.Sampled = func(g *core.Guest) core.Sample { return Sample(w, g) }
}

// Sample looks at a guest.
func Sample(w *core.World, g *core.Guest) core.Sample {
	s := core.Sample{Vmid: g.Vmid, Name: g.Conf["name"], Status: "stopped", Template: g.Conf["template"] == "1", Cpus: float64(Cpus(w, g))}
	if g.Kind == "lxc" {
		s.Name = g.Conf["hostname"]
		ctSize(w, &s, g)
	} else {
		s.Maxmem = int64(property.MemoryMiB(g.Conf["memory"])) << 20
		s.Maxdisk = bootDiskSize(g.Conf)
	}
	if s.Name == "" {
		s.Name = fmt.Sprintf("VM %d", g.Vmid)
		if g.Kind == "lxc" {
			s.Name = fmt.Sprintf("CT%d", g.Vmid)
		}
	}
	if g.Run != nil {
		s.Status, s.Qmp, s.Since = "running", g.Run.Qmp, g.Run.Since
	}
	return s
}

// ctSize fills in the sizes of a container. While it runs its file system is asked.
func ctSize(w *core.World, s *core.Sample, g *core.Guest) {
	s.Maxmem = int64(512) << 20
	if mib := perl.Atoi(g.Conf["memory"]); mib > 0 {
		s.Maxmem = int64(mib) << 20
	}
	if limit, err := strconv.ParseFloat(g.Conf["cpulimit"], 64); err == nil && limit > 0 && perl.Atoi(g.Conf["cores"]) == 0 {
		s.Cpus = limit
	}
	if s.Maxdisk, _ = property.ParseSize(perl.OptionOf(g.Conf["rootfs"], "size")); s.Maxdisk == 0 {
		s.Maxdisk = 4 << 30 // What PVE takes it for.
	}
	if g.Run != nil {
		s.Disk = min(2150400, s.Maxdisk)
		if !strings.Contains(g.Conf["rootfs"], "subvol-") {
			made := s.Maxdisk
			if v := w.Volume(g.Node, property.ParseMount("rootfs", g.Conf["rootfs"]).Volume); v != nil && v.Made > 0 {
				made = v.Made
			}
			s.Maxdisk = NewExt4(made).usable(s.Maxdisk)
		}
	}
}

// bootDiskSize is the size of the first disk to boot from.
func bootDiskSize(conf property.Config) int64 {
	for _, key := range property.BootOrder(conf["boot"]) {
		value, ok := conf[key]
		if !ok || !property.IsDrive(key) {
			continue
		}
		if d := property.ParseDrive(key, value); !d.Cdrom() {
			size, _ := property.ParseSize(d.Opts["size"])
			return size
		}
	}
	return 0
}

// The figures of a running guest are invented, but steady: the same for the
// same guest at the same time.
