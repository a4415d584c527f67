package proxmox

// Access to guests: through the guest agent of a VM (API2/Qemu/Agent.pm), and what PVE reports of a container.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
)

// openGuest is the way into the guest of an address. Before anything is asked of it, it is verified
// once more that it is that guest. Near are gateways that the files speak of. It sends no
// request; what it gives is safe for concurrent use.
func openGuest(h *kind.Host, addr model.Address, at api.GuestRef, near []netip.Addr) guest.Machine {
	return &machine{h: h, addr: addr, at: at, near: near}
}

type machine struct {
	h    *kind.Host
	addr model.Address
	at   api.GuestRef
	near []netip.Addr

	mu   sync.Mutex // so that commands that run at once verify once
	nics []nic      // nil until it was read
	deaf bool       // its configuration has no agent that is switched on
}

// mostNICs is the maximum number of NICs of a guest (qemu-server $MAX_NETS).
const mostNICs = 32

// verify verifies that it still is the guest of its address, and reads its cards, once.
func (g *machine) verify(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.nics != nil {
		return nil
	}
	cfg, err := g.h.API.ReadConfig(ctx, g.at)
	if err != nil {
		return lasting(fmt.Errorf("reading %s: %w", g.at, err))
	}
	if is := g.h.ID.Check(cfg, g.at); !is.IsOwnedAs(g.addr) {
		return &health.HopelessError{Text: fmt.Sprintf("%s can no longer be verified as %s (%s): nothing is asked of it", g.at, g.addr, is.Why())}
	}
	g.deaf = api.PropertyFirst(cfg.Now["agent"], "enabled") != "1"
	g.nics = []nic{}
	for i := range mostNICs {
		if val := cfg.Now[fmt.Sprintf("net%d", i)]; val != "" {
			g.nics = append(g.nics, cardOf(fmt.Sprintf("net%d", i), val, cfg.Now[fmt.Sprintf("ipconfig%d", i)]))
		}
	}
	return nil
}

// reachable verifies that it is the guest of its address, and can have an agent.
func (g *machine) reachable(ctx context.Context) error {
	if g.at.LXC {
		return &health.HopelessError{Text: fmt.Sprintf("%s has no guest agent, since it is a container: the API runs nothing in it", g.at)}
	}
	return g.verify(ctx)
}

// cardOf reads a card: addresses of a VM are in ipconfigN, those of a container in the
// card itself.
func cardOf(name, val, ipconfig string) nic {
	p := api.ParseProperty(val)
	n := nic{Name: name, MAC: p.MAC()}
	for _, values := range []map[string]string{p.Values, api.ParseProperty(ipconfig).Values} {
		for _, key := range []string{"ip", "ip6"} {
			if ip, err := netip.ParsePrefix(values[key]); err == nil {
				n.Static = append(n.Static, ip)
			}
		}
		for _, key := range []string{"gw", "gw6"} {
			if ip, err := netip.ParseAddr(values[key]); err == nil {
				n.Gateways = append(n.Gateways, ip)
			}
		}
	}
	return n
}

// Address is as guest.Machine wants it: the declared address of the first card, else
// what the guest reports.
func (g *machine) Address(ctx context.Context) (guest.Address, error) {
	if err := g.verify(ctx); err != nil {
		return guest.Address{}, err
	}
	if at, ok := declaredAddress(g.nics); ok {
		return at, nil
	}
	seen, by, err := g.interfaces(ctx)
	if err != nil {
		return guest.Address{}, err
	}
	at, ok := chooseAddress(g.nics, seen, g.near, by)
	if !ok {
		return at, fmt.Errorf("%s reports no address yet on any network card of %s (%s declared)", by, g.at, cards(len(g.nics)))
	}
	return at, nil
}

// interfaces asks for what the guest sees of itself.
func (g *machine) interfaces(ctx context.Context) (seen []seenInterface, by string, err error) {
	type address struct {
		IP     string          `json:"ip-address"`
		Prefix json.RawMessage `json:"prefix"`
	}
	type entry struct {
		MAC       string    `json:"hardware-address"`
		HWAddr    string    `json:"hwaddr"` // of containers
		Inet      string    `json:"inet"`   // of containers before PVE 8.4, with the prefix
		Inet6     string    `json:"inet6"`
		Addresses []address `json:"ip-addresses"`
	}
	var list []entry
	if g.at.LXC {
		by = "its host"
		err = g.h.API.Get(ctx, g.at.Path("interfaces"), &list) // null while it does not run
	} else {
		var doc struct{ Result []entry }
		by = "the guest agent"
		err = g.h.API.Get(ctx, g.at.Path("agent", "network-get-interfaces"), &doc)
		list = doc.Result
	}
	if err != nil {
		return nil, by, g.explain(err)
	}
	for _, e := range list {
		s := seenInterface{MAC: cmp.Or(e.MAC, e.HWAddr)}
		for _, a := range e.Addresses {
			ip, err := netip.ParseAddr(a.IP)
			if err != nil {
				continue
			}
			p := netip.PrefixFrom(ip, api.Number(a.Prefix))
			if !p.IsValid() {
				p = netip.PrefixFrom(ip, ip.BitLen())
			}
			s.IPs = append(s.IPs, p)
		}
		for _, text := range []string{e.Inet, e.Inet6} {
			if p, err := netip.ParsePrefix(text); err == nil && len(e.Addresses) == 0 {
				s.IPs = append(s.IPs, p)
			}
		}
		seen = append(seen, s)
	}
	return seen, by, nil
}

// Ping is as guest.Machine wants it.
func (g *machine) Ping(ctx context.Context) error {
	if err := g.reachable(ctx); err != nil {
		return err
	}
	_, err := g.h.API.Post(ctx, g.at.Path("agent", "ping"), nil)
	return g.explain(err)
}

// explain turns what PVE says of guest agents into what it means.
func (g *machine) explain(err error) error {
	refused, ok := asAPI(err)
	switch {
	case err == nil:
		return nil
	case ok && (strings.Contains(refused.Message, "No QEMU guest agent configured") || g.deaf && strings.Contains(refused.Message, "guest agent is not running")):
		// The first text is for a configuration that has no agent at all; of one that is switched
		// off PVE says what it says of one that does not answer (QemuServer/Agent.pm, assert_agent_available).
		return &health.HopelessError{Text: fmt.Sprintf("%s has no guest agent configured, and no static address on its first card: set agent = true (with the agent in its image), or ip in its first nic", g.at)}
	case ok && strings.Contains(refused.Message, "the command is not allowed"): // qga/main.c of QEMU
		return &health.HopelessError{Text: fmt.Sprintf("the guest agent of %s is configured not to do this (allow-rpcs or block-rpcs in the guest's /etc/qemu/qemu-ga.conf, or its service's options): %v", g.at, err)}
	case ok && strings.Contains(refused.Message, "guest agent is not running"):
		return fmt.Errorf("the guest agent of %s does not answer", g.at)
	case ok && strings.Contains(refused.Message, "is not running"):
		return fmt.Errorf("%s does not run", g.at)
	}
	return lasting(err)
}

func asAPI(err error) (*api.Error, bool) { return errors.AsType[*api.Error](err) }

// lasting wraps an error that no waiting resolves: rights, and what is not there.
func lasting(err error) error {
	switch api.ClassOf(err) {
	case api.Denied, api.NoLogin, api.NotFound, api.Invalid:
		return &lastingError{err}
	default:
		return err
	}
}

// lastingError is an error that stays.
type lastingError struct{ error }

// Unwrap gives it.
func (e *lastingError) Unwrap() error { return e.error }

// Hopeless is true; see guest.Machine.
func (*lastingError) Hopeless() bool { return true }

// cards counts network cards in words.
func cards(n int) string {
	if n == 1 {
		return "1 card"
	}
	return fmt.Sprintf("%d cards", n)
}
