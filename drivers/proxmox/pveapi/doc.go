// Package pveapi is the API of Proxmox VE as a table that a program can check
// against: which methods there are, what they take, what they promise to answer
// and which privileges they need.
//
// # The model
//
// A [Method] is one verb of one path. Its parameters, and what it returns, are
// described by [Value], a subset of JSON Schema with Proxmox's additions: named
// formats, and property strings such as "virtio,bridge=vmbr0,tag=5". Families of
// parameters are described once, "net[n]" for net0 to net31; [Method.Param] knows
// how far each goes. [Perm] is the privilege check that PVE declares beside a
// method.
//
// # What it is for
//
// A client's test hands every request it sends to proxmoxtest.ValidateRequest, so that a
// misspelt parameter or a boolean written "true" is found without a server. A
// simulated server finds its methods with [Lookup] and refuses parameters with
// [Method.Check], in PVE's own words; what it answers is held against
// [Method.CheckReturn]. [Perm.Permitted] tells which privileges a call needs.
//
// # Where it comes from
//
// The table is distilled by ./gen from the schema that pve-manager 9.2.11 itself
// answers with (434 methods on 296 paths, without Ceph, SDN, ACME, metrics,
// notifications and disks). It remembers what is newer than 8.4, and
// [Method.CheckFor] and its like take the version of a host into account: there
// a newer parameter is unknown. Enumerations, limits and the members of property
// strings are those of the newest version only. A method that PVE 9 dropped is not in the table; a dropped
// parameter is, and any string passes for it.
//
// What the schema leaves to code is in the files format*.go and property.go, and
// follows Proxmox's Perl sources, which the comments name. Checks behind the
// schema are not here: whether a storage exists, whether the caller is root.
//
// # Cost
//
// The table is part of the program, packed to 32 KB. Nothing is done until the
// first use, which unpacks it in about 1 ms; a method is parsed when it is first
// looked up.
package pveapi
