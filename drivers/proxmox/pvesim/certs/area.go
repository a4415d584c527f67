// Package certs makes the certificate of a host, with an authority of its own, and is the
// API for the certificates of a node.
package certs

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is the certificates of nodes.
func Area() sections.Area {
	return sections.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/certificates/info": apiCertificates,
		},
		Calls: certificateCalls(),
	}
}
