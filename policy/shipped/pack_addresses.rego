# METADATA
# title: Addresses of nodes
# description: Addresses are in the subnets of the site. That each is used once, the language itself checks.
# scope: package
# schemas:
#   - input: schema.pass
# custom:
#   settings:
#     subnets: networks of all static addresses, such as 192.0.2.0/24
#     dhcp: "no: every network card has a static address"
package homestak.packs.addresses

import data.homestak.packs

# METADATA
# title: A static address is in one of the subnets
# scope: rule
deny contains {
	"rule": "address-subnet",
	"message": sprintf("the address %s of %s is in none of the subnets %s", [ip, name, subnets]),
	"address": packs.address(name),
	"fix": "Give it an address of a subnet, or add its subnet to the settings of the pack addresses.",
} if {
	packs.on("addresses", "address-subnet")
	subnets := packs.settings.addresses.subnets
	some name, ips in static
	some ip in ips
	not covered(ip, subnets)
}

# METADATA
# title: No network card asks for its address
# scope: rule
deny contains {
	"rule": "address-dhcp",
	"message": sprintf("network card %s of %s has no static address", [nic, name]),
	"address": packs.address(name),
	"fix": "Write its address into ip, with its prefix length.",
} if {
	packs.on("addresses", "address-dhcp")
	packs.settings.addresses.dhcp == "no"
	some name, node in input.site.nodes
	some nic, card in node.attributes.nic
	not is_static(object.get(card, "ip", null))
}

# static has the addresses of each node, without prefix lengths.
static[name] contains split(ip, "/")[0] if {
	some name, node in input.site.nodes
	some card in node.attributes.nic
	some field in ["ip", "ip6"]
	ip := object.get(card, field, null)
	is_static(ip)
}

is_static(ip) if {
	is_string(ip)
	contains(ip, "/")
}

covered(ip, subnets) if {
	some subnet in packs.words(subnets)
	net.cidr_contains(subnet, ip)
}
