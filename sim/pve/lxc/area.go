// Package lxc implements containers: configuration, creation and restore, clones, power, volumes and removal.
package lxc

import "github.com/homestak/homestak-gitops/sim/pve/core"

// Area is containers.
func Area() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"POST /nodes/{node}/lxc/{vmid}/status/suspend":  core.On(runningCT, apiSuspendCT),
			"GET /nodes/{node}/lxc":                         apiNodeLXC,
			"POST /nodes/{node}/lxc":                        apiCreateLXC,
			"PUT /nodes/{node}/lxc/{vmid}/config":           apiSetLXCConfig,
			"POST /nodes/{node}/lxc/{vmid}/status/start":    apiStartCT,
			"POST /nodes/{node}/lxc/{vmid}/status/stop":     core.On(runningCT, apiStopCT),
			"POST /nodes/{node}/lxc/{vmid}/status/shutdown": apiShutdown,
			"POST /nodes/{node}/lxc/{vmid}/status/reboot":   core.On(runningCT, apiRebootCT),
			"POST /nodes/{node}/lxc/{vmid}/move_volume":     apiMoveVolume,
		},
		Guests: map[string]core.GuestHandler{
			"GET /nodes/{node}/lxc/{vmid}/interfaces": apiLXCInterfaces,
			"GET /nodes/{node}/lxc/{vmid}": core.DirectoryIndex{Key: "subdir", Names: "config pending status vncproxy termproxy vncwebsocket spiceproxy " +
				"migrate clone rrd rrddata firewall snapshot resize interfaces"}.OfGuest,
			"GET /nodes/{node}/lxc/{vmid}/status":         core.DirectoryIndex{Key: "subdir", Names: "current start stop shutdown reboot migrate"}.OfGuest,
			"POST /nodes/{node}/lxc/{vmid}/status/resume": apiResumeCT,
			"DELETE /nodes/{node}/lxc/{vmid}":             apiDestroyLXC,
			"PUT /nodes/{node}/lxc/{vmid}/resize":         apiResizeCT,
			"POST /nodes/{node}/lxc/{vmid}/clone":         apiCloneCT,
			"POST /nodes/{node}/lxc/{vmid}/template":      apiTemplateCT,
			"GET /nodes/{node}/lxc/{vmid}/status/current": apiLXCCurrent,
			"GET /nodes/{node}/{qemu|lxc}/{vmid}/feature": apiFeature,
		},
		Begin: beginCTs,
	}
}
