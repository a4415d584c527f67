package proxmox

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, text := range list {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

const mac, mac2 = "BC:24:11:00:00:01", "BC:24:11:00:00:02"

func TestChosenAddress(t *testing.T) {
	lo := seenInterface{MAC: "00:00:00:00:00:00", IPs: prefixes("127.0.0.1/8", "::1/128")}
	docker := seenInterface{MAC: "02:42:00:00:00:01", IPs: prefixes("172.17.0.1/16")}
	one := nic{Name: "net0", MAC: mac}
	two := nic{Name: "net1", MAC: mac2}
	gateway := []netip.Addr{netip.MustParseAddr("10.0.12.1")}
	for name, v := range map[string]struct {
		nics []nic
		seen []seenInterface
		near []netip.Addr
		want string
	}{
		"by its MAC, in any case":     {[]nic{one}, []seenInterface{lo, docker, {MAC: "bc:24:11:00:00:01", IPs: prefixes("fe80::1/64", "10.0.12.7/24")}}, nil, "10.0.12.7 on net0 by the guest agent"},
		"IPv4 before IPv6":            {[]nic{one}, []seenInterface{{MAC: mac, IPs: prefixes("2001:db8::7/64", "10.0.12.7/24")}}, nil, "10.0.12.7 on net0 by the guest agent"},
		"IPv6 alone":                  {[]nic{one}, []seenInterface{{MAC: mac, IPs: prefixes("fe80::7/64", "2001:db8::7/64")}}, nil, "2001:db8::7 on net0 by the guest agent"},
		"the first card":              {[]nic{one, two}, []seenInterface{{MAC: mac2, IPs: prefixes("10.0.13.7/24")}, {MAC: mac, IPs: prefixes("10.0.12.7/24")}}, nil, "10.0.12.7 on net0 by the guest agent"},
		"the subnet of the gateway":   {[]nic{one, two}, []seenInterface{{MAC: mac, IPs: prefixes("192.168.1.7/24")}, {MAC: mac2, IPs: prefixes("2001:db8::7/64", "10.0.12.7/24")}}, gateway, "10.0.12.7 on net1 by the guest agent"},
		"the subnet of a card's own":  {[]nic{one, {Name: "net1", MAC: mac2, Static: prefixes("10.0.12.9/24")}}, []seenInterface{{MAC: mac, IPs: prefixes("192.168.1.7/24")}, {MAC: mac2, IPs: prefixes("10.0.12.9/24")}}, nil, "10.0.12.9 on net1 by the guest agent"},
		"a gateway of the card":       {[]nic{{Name: "net0", MAC: mac, Gateways: gateway}}, []seenInterface{{MAC: mac, IPs: prefixes("192.168.1.7/24", "10.0.12.7/24")}}, nil, "10.0.12.7 on net0 by the guest agent"},
		"nothing but what is useless": {[]nic{one}, []seenInterface{lo, docker, {MAC: mac, IPs: prefixes("fe80::1/64", "169.254.1.1/16", "224.0.0.1/4", "0.0.0.0/0")}}, nil, ""},
		"a card without MAC":          {[]nic{{Name: "net0"}}, []seenInterface{{IPs: prefixes("10.0.12.7/24")}}, nil, ""},
		"nothing yet":                 {[]nic{one}, nil, nil, ""},
	} {
		got, ok := chooseAddress(v.nics, v.seen, v.near, "the guest agent")
		require.Equal(t, v.want != "", ok, name)
		require.Equal(t, v.want, got.Why, name)
		require.False(t, got.Declared, name)
	}
}

func TestDeclaredAddress(t *testing.T) {
	at, ok := declaredAddress([]nic{{Name: "net0", Static: prefixes("2001:db8::5/64", "10.0.12.5/24")}})
	require.True(t, ok)
	require.Equal(t, guest.Address{IP: netip.MustParseAddr("10.0.12.5"), Why: "10.0.12.5 on net0, as declared", Declared: true}, at)
	for _, nics := range [][]nic{nil, {{Name: "net0"}}, {{Name: "net0"}, {Name: "net1", Static: prefixes("10.0.12.5/24")}}} {
		_, ok = declaredAddress(nics)
		require.False(t, ok, "only the first card counts")
	}
}
