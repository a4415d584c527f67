package host

import (
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

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
