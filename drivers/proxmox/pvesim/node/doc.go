// Package node is what belongs to one node: its settings, services, hardware, package
// repositories and subscription.
package node
