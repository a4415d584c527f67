package main

import (
	"net/netip"

	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/proxmox/simhost"
	"github.com/homestak/homestak-gitops/engine/model"
)

// network is where the hosts of a run are; the zero value is the real one.
type network struct {
	transport drivers.Transport
	reaches   func(netip.Addr) error // see health.Prober.Simulated
}

// kinds are those of a site whose hosts are there.
func (n network) kinds() model.Kinds { return drivers.Access{Transport: n.transport}.Kinds() }

// simulatedNetwork is the network of --sim: every host of the site is a fresh simulator, embedded
// in this run.
func simulatedNetwork() network {
	hosts := simhost.Hosts{}
	return network{transport: hosts.Transport, reaches: hosts.Reaches}
}
