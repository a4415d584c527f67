package pveapi

import "strings"

// The formats of software networks (src/PVE/Network/SDN of pve-network): no method of
// the table names them, but the simulator describes such methods itself.

// sdnFormats are names of at most so many characters, and what subnets and route
// targets look like.
func sdnFormats() map[string]func(word string) error {
	isName := expression(`(?i:[a-z][a-z0-9]*[a-z0-9])`)
	isDashed := expression(`(?i:[a-z][a-z0-9_-]*[a-z0-9])`)
	name := func(what string, matches func(string) bool, most int) func(word string) error {
		return func(word string) error {
			switch {
			case !matches(word):
				return refuse(what+" ID '%s' contains illegal characters", word)
			case most > 0 && len(word) > most:
				return refuse(what+" ID '%s' can't be more length than 8 characters", word)
			}
			return nil
		}
	}
	isTarget := expression(`\d{1,10}:\d{1,10}`)
	return map[string]func(word string) error{
		"pve-sdn-zone-id":       name("zone", isName, 8),
		"pve-sdn-vnet-id":       name("vnet", isName, 8),
		"pve-sdn-controller-id": name("controller", isDashed, 64),
		"pve-sdn-ipam-id":       name("ipam", isName, 0),
		"pve-sdn-dns-id":        name("dns", isName, 0),
		"pve-sdn-fabric-id":     only("Fabric ID '%s' contains illegal characters", expression(`[a-zA-Z0-9][a-zA-Z0-9-]{0,6}[a-zA-Z0-9]?`)),
		"pve-sdn-bgp-rt":        only("value does not look like a valid bgp route-target", isTarget),
		"pve-sdn-subnet-id": only("value does not look like a valid CIDR network", func(word string) bool {
			if parts := strings.Split(word, "-"); !strings.Contains(word, "/") && len(parts) == 3 {
				word = parts[1] + "/" + parts[2]
			}
			return isCIDR(word)
		}),
	}
}
