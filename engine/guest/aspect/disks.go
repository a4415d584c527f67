package aspect

// DiskAspects lists the aspects of disks, in the order of the probe: which disks are formatted and mounted, and
// the swap file. Read mounts.go, then device.go, which finds a disk.
func DiskAspects() []Aspect { return []Aspect{mounts.Aspect(), swap.Aspect()} }
