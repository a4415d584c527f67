// Package sdn is software networks: zones, virtual networks, subnets, controllers, fabrics.
// What is written is pending until it is applied as a whole.
package sdn

import (
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is software networks.
func Area() sections.Area {
	return sections.Area{
		Files: slices.Concat(sdnFiles(), fabricFiles()),
		Calls: slices.Concat(sdnCalls(), fabricCalls()),
		Begin: beginSDN,
	}
}
