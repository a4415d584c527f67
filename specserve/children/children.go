// Package children is what a server does for the nodes that its host creates: it says where it is and
// by which keys it is known, mints a token for each, and knows what they report.
package children

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/parent"
	"github.com/homestak/homestak-gitops/specserve/pin"
)

// Parent is the server of a host. It is what drivers.Access wants as Parent.
type Parent struct {
	Server *specserve.Server
	URL    string          // where nodes reach it; see URL
	Pins   func() []string // its key and the next one: cert.Keeper.Pins
	Dir    string          // of the signing keys
}

// Child is as drivers.Parent wants it. The token is good for keys.Lifetime; the node renews it.
func (p Parent) Child(node, spec string) (parent.Parent, error) {
	minted, err := keys.Mint(p.Dir, node, spec, keys.Lifetime, time.Now())
	if err != nil {
		return parent.Parent{}, fmt.Errorf("minting a token for %s: %w", node, err)
	}
	pins, err := pin.ParseAll(p.Pins())
	if err != nil {
		return parent.Parent{}, fmt.Errorf("the pins of the server: %w", err)
	}
	p.Server.Forget(node)
	return parent.Parent{Identity: node, Server: p.URL, Pins: pins, Token: minted.Token}, nil
}

// HasReported is as drivers.Parent wants it.
func (p Parent) HasReported(node string) bool {
	_, has := p.Server.Reported(node)
	return has
}

// Reported is as drivers.Parent wants it.
func (p Parent) Reported(node string) (saw string, err error) {
	s, has := p.Server.Reported(node)
	at := s.Received.Format(time.TimeOnly + " UTC")
	switch {
	case !has:
		return "", errors.New("it has not reported yet")
	case s.Stale:
		return "", fmt.Errorf("its last report is of %s", s.Received.Format(time.RFC3339))
	case !s.Ready:
		return "", fmt.Errorf("at %s it reported: %s", at, cmp.Or(s.Error, "not ready, in phase "+string(s.Phase)))
	}
	return "at " + at + " it reported that it is ready", nil
}

// URL is where the nodes of a host reach the server of its agent: server_url of the site, else the
// address of the host, and the port that the server listens on. The address is that of ssh in the
// host's block, else that of its API. One that means the machine itself leads a node nowhere, so that
// is an error.
func URL(site *model.Site, h *model.Host, listen net.Addr) (string, error) {
	if site.ServerURL != "" {
		return site.ServerURL, nil
	}
	name := ""
	if api, err := url.Parse(h.API); err == nil {
		name = api.Hostname()
	}
	if h.SSH != nil {
		name = cmp.Or(h.SSH.Address, name)
	}
	ip, err := netip.ParseAddr(name)
	if name == "" || name == "localhost" || err == nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		return "", fmt.Errorf("nodes cannot reach the server of host %s at %q\nset address in ssh of host %[1]s to the one by which its guests reach it, or server_url of the site", h.Name, name)
	}
	_, port, err := net.SplitHostPort(listen.String())
	if err != nil {
		return "", fmt.Errorf("the port of the server of host %s: %w", h.Name, err)
	}
	return "https://" + net.JoinHostPort(name, port), nil
}
