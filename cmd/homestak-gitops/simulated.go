package main

import (
	"log/slog"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/sim"
)

// simulatedNetwork is the network of --sim: every host of the site is a fresh simulator, embedded
// in this run.
func simulatedNetwork() (session.Network, error) {
	w, err := worldOf(sim.Hosts{})
	if err != nil {
		return session.Network{}, err
	}
	return w.Network(), nil
}

// twinNetwork is the network of --observed.
func twinNetwork(file string) (session.Network, error) { return sim.Twins(file) }

// worldOf is simulators, and what runs in their guests: an agent on each that is a host in turn.
func worldOf(hosts sim.Hosts) (*sim.World, error) {
	return sim.NewWorld(sim.WorldOptions{Hosts: hosts, Log: slog.New(slog.DiscardHandler), Version: thisBuild().Version})
}
