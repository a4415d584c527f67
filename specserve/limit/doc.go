// Package limit bounds what one client takes from a server: how often it may ask (Rates), and how
// many connections it may have (Listener). Both go by the address of the client. Of IPv6 that is the
// network of 64 bits, since one machine can have all addresses of it.
//
// Who goes beyond a limit is refused at once and cheaply, and nobody else notices. Silent knows the connections that
// a server which ends need not wait for.
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
