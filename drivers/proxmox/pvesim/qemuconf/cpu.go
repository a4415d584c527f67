package qemuconf

import (
	"maps"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// CustomModel adds that a call names a model of a CPU that nobody made up: there is no
// file of these on the host (get_custom_model, asked by validate_vm_cpu_conf in
// PVE/QemuServer/CPUConfig.pm).
func CustomModel(c *core.Call, wrong map[string]string) map[string]string {
	v, known := c.M.Param("cpu")
	if !known || v.Format != "pve-vm-cpu-conf" || wrong["cpu"] != "" {
		return wrong
	}
	name, custom := strings.CutPrefix(property.ParseProperty("cpu", perl.Text(c.Values["cpu"]))["cputype"], "custom-")
	if !custom {
		return wrong
	}
	all := maps.Clone(wrong)
	if all == nil {
		all = map[string]string{}
	}
	all["cpu"] = "invalid format - Custom cputype '" + name + "' not found\n"
	return all
}
