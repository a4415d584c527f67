// Package guests is what VMs and containers have in common: reading configurations,
// starting and ending processes, volumes, snapshots, and what status daemons see of them.
// Packages qemu and lxc are built on it.
package guests
