// Package sections describes what a simulated host answers: an [Area] is a part of
// Proxmox VE with its routes, and a [Table] finds the method and the handler of a request.
//
// The API table leaves whole families out (software networks, mappings, metrics,
// notifications, ACME, disks). Their methods are described here by what the Perl code of
// Proxmox VE registers: a [PastCall] is one method, a [SectionFile] is a file with sections
// and the five calls on it (PVE/SectionConfig.pm).
package sections
