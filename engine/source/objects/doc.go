// Package objects reads what git keeps: commits, their history and their files. A Store
// reads from a Storage, which is a copy on a disk, maps in memory or somebody else's
// repository; what it reads is compared with its id, and bounded, since anybody may have
// filled it. A Graph says which commits are between two, Files is the fs.FS of a commit, and
// an Inventory gathers what WritePack puts into a pack.
package objects
