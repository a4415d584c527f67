package main

import (
	"context"
	"net"
	"net/netip"

	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/config"
	"github.com/homestak/homestak-gitops/drivers/proxmox/simhost"
	"github.com/homestak/homestak-gitops/drivers/simworld"
	"github.com/homestak/homestak-gitops/engine/model"
)

// network is where the hosts of a run are; the zero value is the real one.
type network struct {
	transport drivers.Transport
	reaches   func(netip.Addr) error                                               // see health.Prober.Simulated
	dial      func(ctx context.Context, network, address string) (net.Conn, error) // to guests
	key       string                                                               // that logs in to them
	close     func()                                                               // ends what runs in guests
}

// kinds are those of a site whose hosts are there, for who has these ways into guests.
func (n network) kinds(guests config.Config) model.Kinds {
	return drivers.Access{Transport: n.transport, Guests: n.guests(guests)}.Kinds()
}

// guests says how guests are entered: those of a simulated network by its own key, and what is learned
// of them ends with the run.
func (n network) guests(c config.Config) config.Config {
	if n.dial == nil {
		return c
	}
	return config.Config{Dial: n.dial, Runs: simworld.Runs, PrivateKeys: []string{n.key}, HostKeys: &config.KnownHosts{}}
}

// end ends a network that belongs to a run.
func (n network) end() {
	if n.close != nil {
		n.close()
	}
}

// simulatedNetwork is the network of --sim: every host of the site is a fresh simulator, embedded
// in this run.
func simulatedNetwork() (network, error) { return networkOf(simhost.Hosts{}) }

// networkOf is the network of simulators.
func networkOf(hosts simhost.Hosts) (network, error) {
	_, key, err := simworld.Key()
	return network{hosts.Transport, hosts.Reaches, hosts.Dial, key, hosts.Close}, err
}
