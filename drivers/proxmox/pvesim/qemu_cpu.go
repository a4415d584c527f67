package pvesim

import (
	"maps"
	"slices"
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

// cpuArgument is what QEMU is started with as -cpu, of a guest that is no Windows
// (get_cpu_options in PVE/QemuServer/CPUConfig.pm): the model and its flags by name.
func (*world) cpuArgument(conf config) string {
	kvm := conf["kvm"] != "0"
	model := "qemu64"
	if kvm {
		model = "kvm64"
	}
	p := parseProperty("cpu", conf["cpu"])
	if p["cputype"] != "" {
		model = p["cputype"]
	}
	flags := map[string]string{}
	if model == "kvm64" {
		flags["lahf_lm"], flags["sep"] = "+", "+"
	}
	if added, ok := cpuLevels[model]; ok {
		model = "qemu64"
		for flag := range strings.FieldsSeq(added) {
			flags[flag] = "+"
		}
	}
	if kvm {
		flags["kvm_pv_eoi"], flags["kvm_pv_unhalt"] = "+", "+"
		if model != "host" {
			flags["enforce"] = ""
		}
	}
	for _, flag := range strings.FieldsFunc(p["flags"], func(r rune) bool { return r == ';' }) {
		if len(flag) > 1 {
			flags[flag[1:]] = flag[:1]
		}
	}
	parts := []string{model}
	for _, flag := range slices.Sorted(maps.Keys(flags)) {
		parts = append(parts, flags[flag]+flag)
	}
	return strings.Join(parts, ",")
}
