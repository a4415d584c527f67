package consoles

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is consoles.
func Area() sections.Area {
	return sections.Area{
		Routes: map[string]core.Handler{
			"POST /nodes/{node}/lxc/{vmid}/termproxy":     apiConsole,
			"POST /nodes/{node}/lxc/{vmid}/vncproxy":      apiConsole,
			"POST /nodes/{node}/qemu/{vmid}/termproxy":    apiConsole,
			"POST /nodes/{node}/qemu/{vmid}/vncproxy":     apiConsole,
			"GET /nodes/{node}/lxc/{vmid}/vncwebsocket":   apiConsoleSocket,
			"GET /nodes/{node}/qemu/{vmid}/vncwebsocket":  apiConsoleSocket,
			"PUT /nodes/{node}/qemu/{vmid}/sendkey":       apiSendKey,
			"POST /nodes/{node}/qemu/{vmid}/monitor":      apiMonitor,
			"POST /access/vncticket":                      apiConsoleLogin,
			"POST /nodes/{node}/lxc/{vmid}/spiceproxy":    apiSpice,
			"POST /nodes/{node}/qemu/{vmid}/spiceproxy":   apiSpice,
			"POST /nodes/{node}/qemu/{vmid}/dbus-vmstate": apiStateHelper,
		},
		Calls: consoleCalls(),
		Begin: beginConsoles,
	}
}
