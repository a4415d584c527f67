// Package node is what belongs to one node: its settings, services, hardware, package
// repositories and subscription.
package node

import "github.com/homestak/homestak-gitops/sim/pve/core"

// Area is what belongs to one node.
func Area() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/time":                                  apiNodeTime,
			"GET /nodes/{node}/dns":                                   apiNodeDNS,
			"GET /nodes/{node}/config":                                apiNodeConfig,
			"GET /nodes/{node}/netstat":                               core.APINone,
			"GET /nodes/{node}/subscription":                          apiSubscription,
			"GET /nodes/{node}/apt/changelog":                         apiChangelog,
			"POST /nodes/{node}/apt/repositories":                     apiChangeRepository,
			"PUT /nodes/{node}/apt/repositories":                      apiAddRepository,
			"GET /nodes/{node}/apt/repositories":                      apiRepositories,
			"GET /nodes/{node}/apt/update":                            core.APINone,
			"POST /nodes/{node}/apt/update":                           apiRefreshPackages,
			"GET /nodes/{node}/apt/versions":                          apiPackages,
			"GET /nodes/{node}/capabilities/qemu/cpu":                 apiCPUModels,
			"GET /nodes/{node}/capabilities/qemu/cpu-flags":           apiCPUFlags,
			"GET /nodes/{node}/capabilities/qemu/machines":            apiMachines,
			"GET /nodes/{node}/capabilities/qemu/migration":           apiMigrationCapabilities,
			"PUT /nodes/{node}/config":                                apiSetNodeConfig,
			"PUT /nodes/{node}/dns":                                   apiSetNodeDNS,
			"PUT /nodes/{node}/time":                                  apiSetNodeTime,
			"GET /nodes/{node}/hosts":                                 apiHosts,
			"POST /nodes/{node}/hosts":                                apiSetHosts,
			"GET /nodes/{node}/firewall/log":                          apiFirewallLog,
			"GET /nodes/{node}/{qemu|lxc}/{vmid}/firewall/log":        apiFirewallLog,
			"GET /nodes/{node}/hardware/pci":                          apiPCI,
			"GET /nodes/{node}/hardware/pci/{pci-id-or-mapping}/mdev": core.APINone,
			"GET /nodes/{node}/hardware/usb":                          core.APINone,
			"GET /nodes/{node}/journal":                               apiJournal,
			"GET /nodes/{node}/syslog":                                apiSyslog,
			"GET /nodes/{node}/report":                                apiReport,
			"GET /nodes/{node}/scan/cifs":                             core.APINone,
			"GET /nodes/{node}/scan/iscsi":                            core.APINone,
			"GET /nodes/{node}/scan/lvm":                              apiScanLVM,
			"GET /nodes/{node}/scan/lvmthin":                          apiScanThin,
			"GET /nodes/{node}/scan/nfs":                              core.APINone,
			"GET /nodes/{node}/scan/zfs":                              core.APINone,
			"GET /nodes/{node}/services":                              apiServices,
			"GET /nodes/{node}/services/{service}/state":              apiServiceState,
			"POST /nodes/{node}/services/{service}/reload":            apiServiceCommand,
			"POST /nodes/{node}/services/{service}/restart":           apiServiceCommand,
			"POST /nodes/{node}/services/{service}/start":             apiServiceCommand,
			"POST /nodes/{node}/services/{service}/stop":              apiServiceCommand,
			"POST /cluster/config":                                    apiCreateCluster,
			"POST /cluster/config/join":                               apiJoinCluster,
			"POST /cluster/config/nodes/{node}":                       apiAddNode,
			"DELETE /cluster/config/nodes/{node}":                     apiRemoveNode,
			"GET /nodes/{node}/scan/pbs":                              apiScanServer,
			"POST /nodes/{node}/status":                               apiPowerNode,
			"PUT /nodes/{node}/subscription":                          apiSetSubscription,
			"POST /nodes/{node}/subscription":                         apiCheckSubscription,
			"DELETE /nodes/{node}/subscription":                       apiDropSubscription,
		},
		Guests: map[string]core.GuestHandler{
			"POST /nodes/{node}/{qemu|lxc}/{vmid}/remote_migrate": apiMigrateAway,
		},
	}
}
