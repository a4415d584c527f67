// Package disks is the disks of nodes and what is made of them: volume groups, thin pools,
// directories, ZFS pools. Ceph is not installed.
package disks

import (
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is the disks of nodes.
func Area() sections.Area {
	return sections.Area{
		Calls: slices.Concat(diskCalls(), cephCalls()),
	}
}
