// Package cluster is what concerns the cluster as a whole: its status, options and log,
// its tasks, its nodes, mappings of devices; and the guests that a host had before.
package cluster
