// Package firewall keeps and shows the files of the firewall: of the cluster, of nodes and
// of guests. No packet is ever filtered.
package firewall

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is the firewall.
func Area() sections.Area {
	routes := allFirewallRoutes()
	return sections.Area{
		Routes: routes,
		Begin:  beginFirewall,
	}
}
