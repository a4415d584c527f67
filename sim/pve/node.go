package pve

import "github.com/homestak/homestak-gitops/sim/pve/core"

// nodeArea is one node: its certificate, settings, log, and the machine types of its QEMU.
func nodeArea() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/certificates/info":          apiCertificates,
			"GET /nodes/{node}/time":                       apiNodeTime,
			"PUT /nodes/{node}/time":                       apiSetNodeTime,
			"GET /nodes/{node}/dns":                        apiNodeDNS,
			"PUT /nodes/{node}/dns":                        apiSetNodeDNS,
			"GET /nodes/{node}/config":                     apiNodeConfig,
			"PUT /nodes/{node}/config":                     apiSetNodeConfig,
			"GET /nodes/{node}/hosts":                      apiHosts,
			"POST /nodes/{node}/hosts":                     apiSetHosts,
			"GET /nodes/{node}/netstat":                    core.APINone,
			"GET /nodes/{node}/subscription":               apiSubscription,
			"GET /nodes/{node}/syslog":                     apiSyslog,
			"GET /nodes/{node}/capabilities/qemu/machines": apiMachines,
		},
	}
}
