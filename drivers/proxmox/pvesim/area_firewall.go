package pvesim

// areaFirewall is the firewall.
func areaFirewall() area {
	routes := allFirewallRoutes()
	return area{
		routes: routes,
		begin:  beginFirewall,
	}
}
