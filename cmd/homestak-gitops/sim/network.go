package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/sim"
)

// Network makes the world the network of a run, with a parent for nodes in mode pull. It ends with the world.
func (w *World) Network() session.Network {
	p := &lazyParent{}
	w.Others = p.dial
	guests := w.ways(w.Dial, w.key)
	guests.Unserved = "with --sim nothing serves the agents of simulated machines: homestak-gitops test -M MANIFEST --sim makes the whole tree, with its agents"
	return session.Network{
		Transport: w.Transport, Reaches: w.Hosts.Reaches, Guests: &guests, Specs: p, Agents: w, Server: w.server,
		Close: func() {
			_ = w.Close() // what they kept is gone with the run
			p.close()
		},
	}
}

// server is as session.Network has it. It is called before the agent runs.
func (w *World) server(listen string) (url, program string, err error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", "", fmt.Errorf("listen: %w", err)
	}
	dir, err := w.agents.folder()
	if err != nil {
		return "", "", err
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	w.own = net.JoinHostPort(host, port)
	return "https://" + parentAddress, programIn(dir), nil
}

// ways returns how simulated guests are entered. Learned keys are dropped at the end of the run.
func (*World) ways(dial dial, keys ...string) push.Config {
	return push.Config{Dial: dial, Direct: true, Runs: sim.RunsDebian, PrivateKeys: keys, HostKeys: &push.KnownHosts{}}
}

// lazyParent is the parent of simulated nodes, once there are any.
type lazyParent struct {
	mu     sync.Mutex // simulated nodes dial while a pass begins
	parent *Parent
}

// Serve implements session.specs. Guests that are not simulated inside count as ready.
func (l *lazyParent) Serve(d engine.Desired, policies *policy.Set, guests push.Config) (drivers.Parent, error) {
	pulls, silent := false, map[string]bool{}
	for _, m := range d.Site.Manifests {
		for _, n := range m.Nodes {
			spec := d.Site.Specs[n.Spec]
			if n.Mode != model.ModePull && !n.TakesCommands() || spec == nil {
				continue
			}
			pulls = true
			silent[n.Name] = n.Mode == model.ModePull && guests.Unsimulated(d.Site, n.Resource) != ""
		}
	}
	if !pulls {
		return nil, nil //nolint:nilnil // not used
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.parent == nil {
		p, err := NewParent(slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		l.parent = p
	}
	if err := l.parent.Publish(d.Site, d.Commit, policies, silent); err != nil {
		for name := range silent {
			silent[name] = true // as a push is not applied where secrets are not known
		}
		return l.parent, l.parent.Publish(&model.Site{}, d.Commit, policies, silent)
	}
	return l.parent, nil
}

func (l *lazyParent) get() *Parent {
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

// Reported is as session.specs wants it.
func (l *lazyParent) Reported(node string) (saw string, err error) {
	if p := l.get(); p != nil {
		return p.Reported(node)
	}
	return "", errors.New("no server has its spec")
}

func (l *lazyParent) close() {
	if p := l.get(); p != nil {
		_ = p.Close() // its keys are gone with the run
	}
}
