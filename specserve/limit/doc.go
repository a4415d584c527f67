// Package limit bounds what one client takes from a server: its request rate (Rates) and its connections
// (Listener). Both count by the client's address; for IPv6 by its /64 network, since one machine can have all
// addresses of it.
//
// A client over a limit is refused at once and cheaply, without effect on others. Silent knows the connections that
// a server may close without waiting at shutdown.
package limit

import "net/netip"

// Client is whom limits count as one, from the address of a connection, with or without a port. An
// address that cannot be read is the zero Prefix: such clients share their limits.
func Client(remote string) netip.Prefix {
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		ip, err := netip.ParseAddr(remote)
		if err != nil {
			return netip.Prefix{}
		}
		peer = netip.AddrPortFrom(ip, 0)
	}
	ip := peer.Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	network, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return network
}
