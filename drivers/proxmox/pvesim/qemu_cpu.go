package pvesim

import (
	"maps"
	"strings"
)

// cpuLevels are the models that PVE makes of others, with the flags that they add
// (builtin_models in PVE/QemuServer/CPUConfig.pm).
var cpuLevels = map[string]string{
	"x86-64-v2":     "popcnt pni sse4.1 sse4.2 ssse3",
	"x86-64-v2-AES": "aes popcnt pni sse4.1 sse4.2 ssse3",
	"x86-64-v3":     "aes popcnt pni sse4.1 sse4.2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
	"x86-64-v4": "aes popcnt pni sse4.1 sse4.2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave " +
		"avx512f avx512bw avx512cd avx512dq avx512vl",
}

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
