// Package objects reads git objects: commits, their history and their files. A Store reads from a
// Storage, which is a copy on disk, maps in memory or another repository; it verifies the id of
// each object, and limits its size, because the content is not trusted. A Graph finds the commits
// between two others, Files is the fs.FS of a commit, and an Inventory collects what WritePack
// writes.
package objects
