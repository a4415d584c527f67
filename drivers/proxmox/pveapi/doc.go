// Package pveapi has the API of Proxmox VE as a table: methods, parameters, return values and required privileges.
//
// # The model
//
// A [Method] is one verb of one path. [Value] describes its parameters and return value, a subset of JSON Schema
// with Proxmox's additions: named formats, and property strings such as "virtio,bridge=vmbr0,tag=5". A family of
// parameters is described once, "net[n]" for net0 to net31; [Method.Param] knows its range. [Perm] is the privilege
// check that PVE declares for a method.
//
// # Use
//
// A client's test passes every request to proxmoxtest.ValidateRequest, which finds a misspelt parameter or a
// boolean written "true" without a server. The simulator finds its methods with [Lookup], rejects parameters with
// [Method.Check], in PVE's own words, and checks its responses with [Method.CheckReturn]. [Perm.Permitted]
// evaluates privileges.
//
// # Source
//
// ./gen distils the table from the schema that pve-manager 9.2.11 returns (434 methods on 296 paths, without Ceph,
// SDN, ACME, metrics, notifications and disks). It marks what is newer than 8.4, and [Method.CheckFor] and its like
// take the version of a host into account: there a newer parameter is unknown. Enumerations, limits and the members
// of property strings are those of the newest version only. A method that PVE 9 dropped is not in the table; a
// dropped parameter is, and accepts any string.
//
// Formats that the schema leaves to code are in format*.go and property.go. They follow Proxmox's Perl sources,
// which the comments name. Checks outside the schema are not here: whether a storage exists, whether the caller is
// root.
//
// # Cost
//
// The table is embedded, packed to 32 KB. The first use unpacks it in about 1 ms; a method is parsed on its first
// lookup.
package pveapi
