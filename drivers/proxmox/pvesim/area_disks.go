package pvesim

import "slices"

// areaDisks is the disks of nodes.
func areaDisks() area {
	return area{
		calls: slices.Concat(diskCalls(), cephCalls()),
	}
}
