// Package disks is what a spec says of the disks of a machine: which of them are formatted
// and mounted, and its swap file. Read mounts.go, then device.go, how a disk is found.
package disks

import "github.com/homestak/homestak-gitops/engine/guest/aspect"

// All lists the aspects, in the order of the probe.
func All() []aspect.Aspect { return []aspect.Aspect{mounts.Aspect(), swap.Aspect()} }
