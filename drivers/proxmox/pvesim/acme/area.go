// Package acme is accounts with authorities that issue certificates automatically, and the
// orders of nodes.
package acme

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is ACME accounts and certificates.
func Area() sections.Area {
	return sections.Area{
		Files: acmeFiles(),
		Calls: acmeCalls(),
		Begin: beginACME,
	}
}
