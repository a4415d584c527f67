// Package firewall keeps and shows the files of the firewall: of the cluster, of nodes and
// of guests. No packet is ever filtered.
package firewall
