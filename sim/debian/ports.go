package debian

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
)

// Listen lets a program of the machine serve a port, at all of its addresses, until it is closed or the
// machine halts.
func (m *Machine) Listen(port uint16) (net.Listener, error) {
	if m.down.Err() != nil {
		return nil, syscall.ENETDOWN
	}
	return m.ports.Listen(netip.AddrPortFrom(netip.Addr{}, port), netip.AddrPortFrom(m.Address(), port))
}

// Address is that of the machine in its network; not valid if it has none.
func (m *Machine) Address() netip.Addr { return m.Network.Address() }

// Connect connects to what serves a port of the machine, which the caller knows by an address.
func (m *Machine) Connect(ctx context.Context, as netip.AddrPort) (net.Conn, error) {
	return m.ports.Dial(ctx, netip.AddrPortFrom(netip.Addr{}, as.Port()), as)
}

// Dial connects a program of the machine to an address of the network, or of the machine itself. It ends with
// ctx, whatever the network does.
func (m *Machine) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %s: %w", port, err)
	}
	if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.IsLoopback() {
		return m.Connect(ctx, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(number)))
	}
	if m.disk.network == nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ENETUNREACH}
	}
	type answer struct {
		conn net.Conn
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		conn, err := m.disk.network(ctx, network, address)
		got <- answer{conn, err}
	}()
	select {
	case a := <-got:
		return a.conn, a.err
	case <-ctx.Done():
		go func() { // a host may be busy with halting this machine
			if a := <-got; a.conn != nil {
				_ = a.conn.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}
