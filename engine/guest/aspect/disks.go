package aspect

// This part of the package is what a spec says of the disks of a machine: which of them are formatted and
// mounted, and its swap file. Read mounts.go, then device.go, how a disk is found.

// DiskAspects lists the aspects, in the order of the probe.
func DiskAspects() []Aspect { return []Aspect{mounts.Aspect(), swap.Aspect()} }
