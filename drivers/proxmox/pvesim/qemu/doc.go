// Package qemu is the life of VMs: creation and restore, clones, power, moving of disks,
// templates and removal.
package qemu
