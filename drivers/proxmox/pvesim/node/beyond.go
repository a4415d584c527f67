package node

import (
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/calendar"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/lxc"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// Calls about something that a host of its own does not have: they answer as PVE does
// where it is not there.

// apiSuspendCT is POST …/lxc/{vmid}/status/suspend. PVE calls it experimental, and
// without CRIU it fails.
func apiSuspendCT(w *core.World, c *core.Call) (any, error) {
	g, err := lxc.RunningCT(c, "CT")
	if err != nil {
		return nil, err
	}
	return checkpoint(w, c, g, "vzsuspend", "-s -D"), nil
}

// apiResumeCT is POST …/lxc/{vmid}/status/resume.
func apiResumeCT(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	if g.Run != nil {
		return nil, perl.Fail("CT %d already running", g.Vmid)
	}
	return checkpoint(w, c, g, "vzresume", "-r --foreground -D"), nil
}

func checkpoint(w *core.World, c *core.Call, g *core.Guest, kind, options string) string {
	return w.Fork(c, g.Node, core.Job{Kind: kind, ID: fmt.Sprint(g.Vmid), Guest: g, End: func(*core.Task) error {
		if err := g.CheckLock(); err != nil {
			return err
		}
		return perl.Fail("command 'lxc-checkpoint -n %d %s /var/lib/vz/dump' failed: exit code 1", g.Vmid, options)
	}})
}

// apiAnalyzeSchedule is GET /cluster/jobs/schedule-analyze: the next times of an event.
func apiAnalyzeSchedule(w *core.World, c *core.Call) (any, error) {
	at := w.Now
	if c.Has("starttime") {
		at = time.Unix(int64(c.Num("starttime", 0)), 0)
	}
	list := []map[string]any{}
	for range c.Num("iterations", 10) {
		next, ok := calendar.NextRun(c.In["schedule"], at)
		if !ok {
			break
		}
		at = next
		list = append(list, map[string]any{"timestamp": at.Unix(), "utc": at.UTC().Format("Mon Jan _2 15:04:05 2006")})
	}
	return list, nil
}

// volumeName is the volume of a call that may be named without its storage.
func volumeName(c *core.Call) string {
	if volume := c.In["volume"]; strings.Contains(volume, ":") {
		return volume
	}
	return c.In["storage"] + ":" + c.In["volume"]
}

// apiRestoreFiles is GET …/file-restore/list and download, for a backup server's
// backups alone (PVE/API2/Storage/FileRestore.pm).
func apiRestoreFiles(w *core.World, c *core.Call) (any, error) {
	if _, err := w.Store(c.In["storage"]); err != nil {
		return nil, err
	}
	if _, err := guests.MayReadVolume(c, 0, volumeName(c), "backup"); err != nil {
		return nil, err
	}
	return nil, perl.BadParam("storage", "Only PBS storages supported for file-restore.")
}

// apiImportMetadata is GET …/import-metadata, of the machines of other hypervisors
// (get_import_metadata in PVE/Storage.pm and PVE/Storage/DirPlugin.pm). There are none.
func apiImportMetadata(w *core.World, c *core.Call) (any, error) {
	s, err := w.Store(c.In["storage"])
	if err != nil {
		return nil, err
	}
	kind, err := guests.MayReadVolume(c, 0, s.Name+":"+c.In["volume"], "")
	switch {
	case err != nil:
		return nil, err
	case !s.Files():
		return nil, perl.Fail("storage does not support the importer API")
	case kind != "import":
		return nil, perl.Fail("invalid content type '%s'", kind)
	}
	return nil, perl.Fail("invalid format")
}
