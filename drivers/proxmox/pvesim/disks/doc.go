// Package disks is the disks of nodes and what is made of them: volume groups, thin pools,
// directories, ZFS pools. Ceph is not installed.
package disks
