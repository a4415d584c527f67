package storage

import (
	"crypto/sha512"
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// appliance is a template of containers that can be downloaded by its name.
type appliance struct{ system, release, headline string }

// appliances are a few of those that Proxmox offers.
var appliances = map[string]appliance{
	"alpine-3.22-default_20250617_amd64.tar.xz":   {"alpine", "3.22", "LXC default image for alpine 3.22 (20250617)"},
	"debian-12-standard_12.12-1_amd64.tar.zst":    {"debian-12", "12.12-1", "Debian 12 Bookworm (standard)"},
	"debian-13-standard_13.1-2_amd64.tar.zst":     {"debian-13", "13.1-2", "Debian 13 Trixie (standard)"},
	"ubuntu-24.04-standard_24.04-2_amd64.tar.zst": {"ubuntu-24.04", "24.04-2", "Ubuntu 24.04 Noble (standard)"},
}

// apiAppliances is GET /nodes/{node}/aplinfo.
func apiAppliances(*core.World, *core.Call) (any, error) {
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(appliances)) {
		a := appliances[name]
		list = append(list, map[string]any{
			"template": name, "package": a.system, "os": a.system, "version": a.release, "headline": a.headline, "type": "lxc", "section": "system",
			"source": "http://download.proxmox.com/images", "location": "http://download.proxmox.com/images/system/" + name,
			"architecture": "amd64", "sha512sum": fmt.Sprintf("%x", sha512.Sum512([]byte(name))), "description": a.headline, "infopage": "https://linuxcontainers.org",
			"maintainer": "Proxmox Support Team <support@proxmox.com>",
		})
	}
	return list, nil
}

// apiDownloadAppliance is POST /nodes/{node}/aplinfo.
func apiDownloadAppliance(w *core.World, c *core.Call) (any, error) {
	name := c.In["template"]
	if _, ok := appliances[name]; !ok {
		return nil, perl.BadParam("template", "no such template")
	}
	s, err := w.Store(c.In["storage"])
	if err != nil {
		return nil, err
	}
	if !s.Files() || !s.Holds("vztmpl") {
		return nil, perl.Fail("cannot download to storage type '%s'", s.Type)
	}
	node, volname := c.In["node"], "vztmpl/"+name
	size := w.Sized(name, 100<<10, 300<<10) << 10
	return w.Fork(c, node, core.Job{Kind: "download", ID: name, Begin: func(t *core.Task) error {
		t.Logf("downloading http://download.proxmox.com/images/system/%s to %s", name, s.FilePath(volname))
		return s.Room(node, size)
	}, End: func(t *core.Task) error {
		s.Put(node, &core.Volume{
			Name: volname, Content: "vztmpl", Format: core.FileFormat("vztmpl", name), Size: size, Length: size, Used: size, Ctime: w.Now.Unix(),
		})
		t.Logf("download of '%s' to '%s' finished", name, s.FilePath(volname))
		return nil
	}}), nil
}
