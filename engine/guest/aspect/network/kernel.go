package network

import (
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
)

// restartUnit restarts the machine, when the connection of the step has ended.
const restartUnit = "homestak-gitops-restart"

// restartedFor has the kernel that the machine was restarted for.
const restartedFor = guest.RecordFolder + "/restarted-for"

// kernel restarts a machine on which Proxmox VE was installed and another kernel still runs. That happens at most in the window
// of the spec: at other times nothing differs. It happens once for a kernel: a boot loader that starts another one would let the
// machine restart in each pass. A newer kernel of Proxmox VE is left to the person who restarts the host.
var kernel = aspect.Of[kernelFound]{
	Name: "pvekernel", Doc: "The kernel of Proxmox VE.",
	Paths: []string{"config.pve.kernel"},
	Probe: func(q *aspect.Query) string {
		if q.Want.Config.PVE.Restart == "" {
			return ":"
		}
		return guest.Lines(
			"uname -r | row running",
			`for _f in /boot/vmlinuz-*-pve; do if [ -f "$_f" ]; then printf %s "${_f##*/vmlinuz-}" | row installed; fi; done`,
			"date +%H:%M | row now",
			"if [ -f "+restartedFor+" ]; then row tried <"+restartedFor+"; fi",
			"if systemctl is-active --quiet "+restartUnit+".timer; then row restarts </dev/null; fi")
	},
	Parse: func(_ *aspect.Query, rows [][]string) (kernelFound, error) {
		f := kernelFound{}
		for _, r := range rows {
			f[r[0]] = strings.TrimSpace(strings.Join(r[1:], ""))
		}
		if _, restarts := f["restarts"]; !restarts && f.waits() && f["tried"] == f["installed"] {
			return nil, fmt.Errorf("the machine was restarted for kernel %s, and runs %s: let its boot loader start the kernel of Proxmox VE, and restart it", f["installed"], f["running"])
		}
		return f, nil
	},
	Fill: func(q *aspect.Query, f kernelFound, have *spec.Spec) {
		if q.Want.Config.PVE.Restart == "" {
			return
		}
		have.Config.PVE.Kernel = spec.PVEKernel
		_, restarts := f["restarts"]
		if f.waits() && !restarts && model.InWindow(q.Want.Config.PVE.Restart, f["now"]) {
			have.Config.PVE.Kernel = f["running"]
		}
	},
	Steps: func(_ *aspect.Query, f kernelFound) []aspect.Step {
		return []aspect.Step{{
			Stage: aspect.StageWithdrawSources, Text: "restart the machine in ten seconds, for kernel " + f["installed"],
			Script: "systemd-run --quiet --collect --on-active=10s --unit=" + restartUnit + " sh -c " +
				guest.Quote("mkdir -p "+guest.RecordFolder+"; echo "+f["installed"]+" >"+restartedFor+"; sync "+restartedFor+"; systemctl reboot") + "\n",
		}}
	},
}

type kernelFound map[string]string

// waits reports whether a kernel of Proxmox VE is installed, and another one runs.
func (f kernelFound) waits() bool {
	return f["installed"] != "" && !strings.HasSuffix(f["running"], "-pve")
}
