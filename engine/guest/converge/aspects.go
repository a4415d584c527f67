package converge

import (
	"slices"

	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/aspect/network"
)

// aspects are all aspects, in the order of the probe.
func aspects() []aspect.Aspect {
	return slices.Concat(aspect.All(), network.All(), aspect.DiskAspects(), network.PVEAspects())
}
