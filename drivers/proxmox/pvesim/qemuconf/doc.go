// Package qemuconf is the configuration of VMs: checks, privileges, volumes that an option
// makes, pending changes, what is plugged in at once, and cloud-init.
package qemuconf
