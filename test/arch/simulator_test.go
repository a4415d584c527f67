package arch_test

import "slices"

// simulator is the packages below sim/pve, bottom first: each may use those
// before it and the API table, and sim/pve itself puts all of them together. They know
// nothing else of ours, so that what the simulator does cannot lean on what the driver
// believes.
var simulator = []string{
	"sim/pve/perl", "sim/pve/content", "sim/pve/core", "sim/pve/guests", "sim/pve/host", "sim/pve/qemu",
	"sim/pve/lxc", "sim/pve/transfer", "sim/pve/cluster", "sim/pve/node",
}

// simulatorLayers are their rows in the table.
func simulatorLayers() []layer {
	var rows []layer
	below := []string{"drivers/proxmox/pveapi"}
	for _, pkg := range simulator {
		rows = append(rows, layer{pkg: pkg, may: slices.Clip(below), tests: []string{"sim/pve"}})
		below = append(below, pkg)
	}
	return append(rows, layer{pkg: "sim/pve", may: below, tests: []string{"sim/pve/simtest"}})
}
