package pvesim

import (
	"maps"
	"strings"
)

// customModel adds that a call names a model of a CPU that nobody made up: there is no
// file of these on the host (get_custom_model, asked by validate_vm_cpu_conf in
// PVE/QemuServer/CPUConfig.pm).
func (c *call) customModel(wrong map[string]string) map[string]string {
	v, known := c.m.Param("cpu")
	if !known || v.Format != "pve-vm-cpu-conf" || wrong["cpu"] != "" {
		return wrong
	}
	name, custom := strings.CutPrefix(parseProperty("cpu", text(c.values["cpu"]))["cputype"], "custom-")
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
