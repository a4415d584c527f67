package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/simnode"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/config"
	"github.com/homestak/homestak-gitops/drivers/proxmox/simhost"
	"github.com/homestak/homestak-gitops/drivers/simworld"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
)

// network is where the hosts of a run are; the zero value is the real one.
type network struct {
	transport drivers.Transport
	reaches   func(netip.Addr) error                                               // see health.Prober.Simulated
	dial      func(ctx context.Context, network, address string) (net.Conn, error) // to guests
	key       string                                                               // that logs in to them
	parent    *lazyParent                                                          // of nodes in mode pull; nil: this run serves none
	world     *simnode.World                                                       // that it is; nil: the real one
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

// serve adds to an access the parent of nodes in mode pull, if there is one and the site has any.
func (n network) serve(a *drivers.Access, d engine.Desired, policies *policy.Set) error {
	if n.parent == nil {
		return nil
	}
	p, err := n.parent.serve(d, policies, a.Guests)
	if p != nil {
		a.Parent = p
	}
	return err
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

// networkOf is the network of simulators, and of what runs in their guests: an agent on each that is a host in turn.
func networkOf(hosts simhost.Hosts) (network, error) {
	w, err := simnode.NewWorld(simnode.Options{Hosts: hosts, Log: slog.New(slog.DiscardHandler), Version: buildOf(debug.ReadBuildInfo()).Version})
	if err != nil {
		return network{}, err
	}
	parent := &lazyParent{}
	w.Others = parent.dial
	return network{
		transport: w.Transport, reaches: hosts.Reaches, dial: w.Dial, key: w.Key(), parent: parent, world: w,
		close: func() {
			_ = w.Close() // what they kept is gone with the run
			parent.close()
		},
	}, nil
}

// lazyParent is the parent of simulated nodes, once there are any.
type lazyParent struct {
	mu     sync.Mutex // simulated nodes dial while a pass begins
	parent *simnode.Parent
}

// serve makes a site the one that nodes get their specs from. Without nodes that do it gives nil.
func (l *lazyParent) serve(d engine.Desired, policies *policy.Set, guests config.Config) (*simnode.Parent, error) {
	pulls, silent := false, map[string]bool{}
	for _, m := range d.Site.Manifests {
		for _, n := range m.Nodes {
			spec := d.Site.Specs[n.Spec]
			if n.Mode != model.ModePull || spec == nil {
				continue
			}
			pulls = true
			silent[n.Name] = guests.Unsimulated(d.Site, n.Resource) != ""
		}
	}
	if !pulls {
		return nil, nil //nolint:nilnil // nobody asks for it
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.parent == nil {
		var err error
		if l.parent, err = simnode.New(slog.New(slog.DiscardHandler)); err != nil {
			return nil, err
		}
	}
	if err := l.parent.Publish(d.Site, d.Commit, policies, silent); err != nil {
		for name := range silent {
			silent[name] = true // as a push is not applied where secrets are not known
		}
		return l.parent, l.parent.Publish(&model.Site{}, d.Commit, policies, silent)
	}
	return l.parent, nil
}

func (l *lazyParent) get() *simnode.Parent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parent
}

// dial connects a node to it.
func (l *lazyParent) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if p := l.get(); p != nil {
		return p.Dial(ctx, network, address)
	}
	return nil, syscall.ECONNREFUSED
}

// reported is as health.Prober wants it.
func (l *lazyParent) reported(node string) (saw string, err error) {
	if p := l.get(); p != nil {
		return p.Reported(node)
	}
	return "", errors.New("nobody serves it its spec")
}

func (l *lazyParent) close() {
	if p := l.get(); p != nil {
		_ = p.Close() // its keys are gone with the run
	}
}
