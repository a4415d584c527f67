package pvesim

import (
	"fmt"
	"strings"
	"time"
)

// Calls about something that a host of its own does not have: they answer as PVE does
// where it is not there.

// apiSuspendCT is POST …/lxc/{vmid}/status/suspend. PVE calls it experimental, and
// without CRIU it fails.
func apiSuspendCT(w *world, c *call) (any, error) {
	g, err := c.runningCT("CT")
	if err != nil {
		return nil, err
	}
	return w.checkpoint(c, g, "vzsuspend", "-s -D"), nil
}

// apiResumeCT is POST …/lxc/{vmid}/status/resume.
func apiResumeCT(w *world, c *call) (any, error) {
	g, err := c.ct()
	if err != nil {
		return nil, err
	}
	if g.run != nil {
		return nil, fail("CT %d already running", g.vmid)
	}
	return w.checkpoint(c, g, "vzresume", "-r --foreground -D"), nil
}

func (w *world) checkpoint(c *call, g *guest, kind, options string) string {
	return w.fork(c, g.node, job{kind: kind, id: fmt.Sprint(g.vmid), guest: g, end: func(*task) error {
		if err := g.checkLock(); err != nil {
			return err
		}
		return fail("command 'lxc-checkpoint -n %d %s /var/lib/vz/dump' failed: exit code 1", g.vmid, options)
	}})
}

// apiAnalyzeSchedule is GET /cluster/jobs/schedule-analyze: the next times of an event.
func apiAnalyzeSchedule(w *world, c *call) (any, error) {
	at := w.now
	if c.has("starttime") {
		at = time.Unix(int64(c.num("starttime", 0)), 0)
	}
	list := []map[string]any{}
	for range c.num("iterations", 10) {
		next, ok := nextRun(c.in["schedule"], at)
		if !ok {
			break
		}
		at = next
		list = append(list, map[string]any{"timestamp": at.Unix(), "utc": at.UTC().Format("Mon Jan _2 15:04:05 2006")})
	}
	return list, nil
}

// volumeName is the volume of a call that may be named without its storage.
func (c *call) volumeName() string {
	if volume := c.in["volume"]; strings.Contains(volume, ":") {
		return volume
	}
	return c.in["storage"] + ":" + c.in["volume"]
}

// apiRestoreFiles is GET …/file-restore/list and download, for a backup server's
// backups alone (PVE/API2/Storage/FileRestore.pm).
func apiRestoreFiles(w *world, c *call) (any, error) {
	if _, err := w.store(c.in["storage"]); err != nil {
		return nil, err
	}
	if _, err := c.mayReadVolume(0, c.volumeName(), "backup"); err != nil {
		return nil, err
	}
	return nil, badParam("storage", "Only PBS storages supported for file-restore.")
}

// apiImportMetadata is GET …/import-metadata, of the machines of other hypervisors
// (get_import_metadata in PVE/Storage.pm and PVE/Storage/DirPlugin.pm). There are none.
func apiImportMetadata(w *world, c *call) (any, error) {
	s, err := w.store(c.in["storage"])
	if err != nil {
		return nil, err
	}
	kind, err := c.mayReadVolume(0, s.Name+":"+c.in["volume"], "")
	switch {
	case err != nil:
		return nil, err
	case !s.files():
		return nil, fail("storage does not support the importer API")
	case kind != "import":
		return nil, fail("invalid content type '%s'", kind)
	}
	return nil, fail("invalid format")
}
