// Package bridges is what a node has of network interfaces, planned ones too, and what the
// network devices of guests are plugged into.
package bridges
