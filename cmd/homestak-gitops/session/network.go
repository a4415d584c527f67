package session

import (
	"context"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/policy"
)

// Network is the network of a run with its hosts. The zero value is the real one.
type Network struct {
	Transport drivers.Transport
	Reaches   func(netip.Addr) error // replaces probes; see health.Prober.Simulated
	Observed  *Observed              // nil: the hosts are not twins of observed ones
	Guests    *push.Config           // how guests are entered there; nil: as on the real network
	Specs     specs                  // nil: this run serves no nodes
	Agents    agents                 // nil: agents are on machines of their own
	// Server lets nodes of the network reach the server of an agent that listens on this machine. It returns where they reach
	// it, and the file that they get as the program. Nil: they reach it as any machine does.
	Server func(listen string) (url, program string, err error)
	Close  func() // ends what runs in guests; nil: nothing does
}

// specs serves nodes in mode pull their specs.
type specs interface {
	// Serve sets the served site. It returns nil if no node of it is in mode pull. guests is how the guests of the
	// site are entered.
	Serve(d engine.Desired, policies *policy.Set, guests push.Config) (drivers.Parent, error)
	// Reported is as health.Prober wants it.
	Reported(node string) (saw string, err error)
}

// agents are those of a network of simulated machines.
type agents interface {
	// Agent makes the agent of a host.
	Agent(cfg *service.Config) (*service.Service, error)
	// Running is the agent of a child that runs now; nil if none does.
	Running(identity string) *service.Service
	// Address is that of a guest on a PVE node; "" where it is not known.
	Address(node string, vmid int) string
}

// End ends a network that belongs to a run.
func (n Network) End() {
	if n.Close != nil {
		n.Close()
	}
}

// Ways returns how guests are entered: as the network says, else with the current user's keys.
func (n Network) Ways(own push.Config) push.Config {
	if n.Guests != nil {
		return *n.Guests
	}
	return own
}

// Access says how hosts of the network are opened, and guests entered.
func (n Network) Access(guests push.Config) drivers.Access {
	return drivers.Access{Transport: n.Transport, Guests: guests, Observed: n.Observed != nil}
}

// Observed is the observation that a network was made from.
type Observed struct {
	Host string // in the site
	At   time.Time
}

// observed is the driver of a twin. What it observes is as old as the observation.
type observed struct {
	engine.Driver
	from *Observed
}

// Observe implements engine.Driver.
func (d observed) Observe(ctx context.Context, w *model.Want) (model.Observed, error) {
	have, err := d.Driver.Observe(ctx, w)
	have.At = d.from.At
	return have, err
}

// Serve adds to an access the parent of nodes in mode pull, if the network has one and the site such nodes.
func (n Network) Serve(a *drivers.Access, d engine.Desired, policies *policy.Set) error {
	if n.Specs == nil {
		return nil
	}
	p, err := n.Specs.Serve(d, policies, a.Guests)
	if p != nil {
		a.Parent = p
	}
	return err
}

// knownHosts is the file of a data folder with the host keys of guests.
const knownHosts = "known_hosts"

// OwnWays says how guests are entered from this machine: with the keys that the environment names.
// The host keys of guests are kept in a data folder, or in memory for "".
func OwnWays(dataDir string, env func(string) string) push.Config {
	keys := &push.KnownHosts{}
	if dataDir != "" {
		keys.Path = filepath.Join(dataDir, knownHosts)
	}
	return push.Config{HostKeys: keys}.WithKeysOf(env)
}
