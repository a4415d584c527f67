package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// ErrNotServing says that the server has no address for nodes yet.
var ErrNotServing = errors.New("the server for nodes does not run")

// Parent returns this server for a new node or child: its URL, its pins, and a new token. Earlier reports of the
// node are dropped. The error is ErrNotServing while the server does not serve.
func (s *Server) Parent(node, spec string) (wire.Parent, error) {
	p, err := s.Known()
	if err != nil {
		return wire.Parent{}, err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.server == nil {
		return wire.Parent{}, ErrNotServing
	}
	minted, err := keys.Folder(s.o.Access.Dir).Mint(node, spec, keys.TokenLifetime, time.Now())
	if err != nil {
		return wire.Parent{}, err
	}
	s.server.Forget(node)
	p.Identity, p.Token = node, minted.Token
	return p, p.Check()
}

// Known returns what children know of this server now, without identity and token. The error is ErrNotServing while the
// server does not serve. It may block, without holding a lock, to resolve a name.
func (s *Server) Known() (wire.Parent, error) {
	s.mutex.Lock()
	serving, site, state := s.server != nil, s.commit.Site, s.state
	s.mutex.Unlock()
	if !serving || site == nil {
		return wire.Parent{}, ErrNotServing
	}
	address, err := s.url(site, state.Address)
	if err != nil {
		return wire.Parent{}, err
	}
	pins, err := wire.ParsePins(state.Pins)
	return wire.Parent{Server: address, Pins: pins}, err
}

// URLForHosts is where hosts below reach a server: as the site says, else at the address of the host's API; "" where neither is
// known.
func URLForHosts(s *Server) string {
	s.mutex.Lock()
	site, listens := s.commit.Site, s.state.Address
	s.mutex.Unlock()
	if site == nil || site.Hosts[s.o.Identity] == nil {
		return ""
	}
	h := site.Hosts[s.o.Identity]
	api, err := url.Parse(h.API)
	_, port, errPort := net.SplitHostPort(listens)
	switch {
	case h.Server != "":
		return strings.TrimRight(h.Server, "/")
	case h.Local || err != nil || errPort != nil:
		return ""
	default:
		return "https://" + net.JoinHostPort(api.Hostname(), port)
	}
}

// Forget drops what a child reported: it came from another machine, or from another state of this one.
func (s *Server) Forget(child string) {
	s.o.Reports.Keep(func(identity string) bool { return identity != child })
}

// Revoke revokes the tokens of a node or host, and drops what it reported.
func (s *Server) Revoke(name string) error {
	_, err := keys.Folder(s.o.Access.Dir).Revoke(name, time.Now())
	if err == nil {
		s.Forget(name)
	}
	return err
}

// LetGo revokes the tokens of a host that left the site and is empty, and reports whether they are revoked. One that is not empty
// is let go if a person revoked them.
func LetGo(s *Server, host string, empty bool) (revoked bool, err error) {
	s.mutex.Lock()
	revoked = s.credentials != nil && s.credentials.Book().Barred(host)
	s.mutex.Unlock()
	switch {
	case revoked:
		s.Forget(host)
	case empty:
		err = s.Revoke(host)
		revoked = err == nil
	}
	return revoked, err
}

// HasReported reports whether a node has reported since it was created, as far as this server knows.
func (s *Server) HasReported(node string) bool {
	_, has := s.o.Reports.Get(node)
	return has
}

// Reported says what a node reported last: that it is ready, or an error why it is not; of a child, that its agent reports.
func (s *Server) Reported(node string) (saw string, err error) {
	s.mutex.Lock()
	server := s.server
	s.mutex.Unlock()
	if server == nil {
		return "", ErrNotServing
	}
	return server.Reported(node)
}

// url is the URL of the server for guests: by its listen address, by the site's setting for its hosts, or at the
// address of the host's API, if the agent runs there. A child's is at the first address of its machine.
func (s *Server) url(site *model.Site, listens string) (string, error) {
	host, port, err := net.SplitHostPort(listens)
	if err != nil {
		return "", fmt.Errorf("find out where nodes reach the server: %w", err)
	}
	ip := net.ParseIP(host)
	h := site.HostFor(s.o.Identity)
	switch {
	case host != "" && (ip == nil || !ip.IsUnspecified()):
		return "https://" + net.JoinHostPort(host, port), nil
	case h != nil && h.Local: // a child, whose API is at the address that only it has
		if at, ok := s.way.here(h, s.o.Above); ok {
			return "https://" + net.JoinHostPort(at.String(), port), nil
		}
		return "", fmt.Errorf("it is not known where nodes reach the server of this agent\nset an address of this machine in listen of agent.hcl: bridge %s has none", cmp.Or(h.Bridge, "vmbr0"))
	case site.ServerURL != "" && h != nil:
		return strings.TrimRight(site.ServerURL, "/"), nil
	case h != nil:
		if u, err := url.Parse(h.API); err == nil && isHere(u.Hostname()) {
			return "https://" + net.JoinHostPort(u.Hostname(), port), nil
		}
	default: // the agent of a child serves those that are on its machine
		for _, ip := range keys.HostNames().IPs {
			if ip.To4() != nil && ip.IsGlobalUnicast() {
				return "https://" + net.JoinHostPort(ip.String(), port), nil
			}
		}
	}
	return "", errors.New("it is not known where nodes reach the server of this agent\nset server_url in the site, or an address of this machine in listen of agent.hcl")
}

// here is the address of a child: that of the bridge on which its guests are, or else that by which it reaches
// its parent.
func (w *way) here(h *model.Host, above string) (netip.Addr, bool) {
	if bridge, err := net.InterfaceByName(cmp.Or(h.Bridge, "vmbr0")); err == nil {
		all, _ := bridge.Addrs() // none: the parent knows another
		for _, a := range all {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
				return p.Addr(), true
			}
		}
	}
	at := w.address(above)
	return at, at.IsValid()
}

const (
	wayTime = 2 * time.Second  // how long a resolver may take
	wayKept = 30 * time.Second // how long what was found counts: a machine has another address after a while at most
)

// way is by which address the machine reaches its parent. All who ask at once get the answer of one; its lock is held while a
// name is resolved, wayTime at most.
type way struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mutex sync.Mutex
	found netip.Addr // not valid if none was ever found
	next  time.Time  // when it is to be found out again
}

// address finds it; not valid if it is not known. While the resolver does not answer, what it answered before counts.
func (w *way) address(above string) netip.Addr {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if time.Now().Before(w.next) {
		return w.found
	}
	u, err := url.Parse(above)
	if err != nil || u.Host == "" {
		return netip.Addr{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), wayTime)
	defer cancel()
	c, err := w.dial(ctx, "udp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))) // nothing is sent
	if err != nil {
		w.next = time.Now().Add(wayTime)
		return w.found
	}
	w.next = time.Now().Add(wayKept)
	defer func() { _ = c.Close() }()
	if at, err := netip.ParseAddrPort(c.LocalAddr().String()); err == nil {
		if w.found = at.Addr().Unmap(); w.found.IsLoopback() {
			w.found = netip.Addr{}
		}
	}
	return w.found
}

// isHere reports whether a name or an address is one of this machine.
func isHere(host string) bool {
	n := keys.HostNames()
	return slices.Contains(n.DNS, host) || slices.ContainsFunc(n.IPs, func(ip net.IP) bool { return ip.String() == host })
}
