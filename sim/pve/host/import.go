package host

import (
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// volumeName is the volume of a call that may be named without its storage.
func volumeName(c *core.Call) string {
	if volume := c.In["volume"]; strings.Contains(volume, ":") {
		return volume
	}
	return c.In["storage"] + ":" + c.In["volume"]
}

// apiRestoreFiles is GET …/file-restore/list and download, for a backup server's
// backups alone (PVE/API2/Storage/FileRestore.pm).
func apiRestoreFiles(_ *core.World, c *core.Call, _ *core.Store) (any, error) {
	if _, err := guests.MayReadVolume(c, 0, volumeName(c), "backup"); err != nil {
		return nil, err
	}
	return nil, perl.BadParam("storage", "Only PBS storages supported for file-restore.")
}

// apiImportMetadata is GET …/import-metadata, of the machines of other hypervisors
// (get_import_metadata in PVE/Storage.pm and PVE/Storage/DirPlugin.pm). There are none.
func apiImportMetadata(_ *core.World, c *core.Call, s *core.Store) (any, error) {
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
