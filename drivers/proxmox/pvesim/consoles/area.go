// Package consoles is terminals and screens of nodes and guests, behind websockets.
package consoles

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is consoles.
func Area() sections.Area {
	return sections.Area{
		Routes: map[string]core.Handler{
			"POST /nodes/{node}/{qemu|lxc}/{vmid}/termproxy":   apiConsole,
			"POST /nodes/{node}/{qemu|lxc}/{vmid}/vncproxy":    apiConsole,
			"GET /nodes/{node}/{qemu|lxc}/{vmid}/vncwebsocket": apiConsoleSocket,
			"PUT /nodes/{node}/qemu/{vmid}/sendkey":            apiSendKey,
			"POST /nodes/{node}/qemu/{vmid}/monitor":           apiMonitor,
			"POST /access/vncticket":                           apiConsoleLogin,
			"POST /nodes/{node}/{qemu|lxc}/{vmid}/spiceproxy":  apiSpice,
			"POST /nodes/{node}/qemu/{vmid}/dbus-vmstate":      apiStateHelper,
		},
		Calls: consoleCalls(),
		Begin: beginConsoles,
	}
}
