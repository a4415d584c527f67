package guests

import (
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// PowerOn lets the process be there.
func PowerOn(w *core.World, g *core.Guest) {
	p := &core.Process{Pid: w.Pid(), Since: w.Now, Booted: w.Now.Add(w.Cfg.BootTime), Disks: map[string]bool{}}
	p.Machine = "pc-i440fx-" + MachineVersion(w) + "+pve0"
	if strings.Contains(g.Conf["machine"], "q35") {
		p.Machine = "pc-q35-" + MachineVersion(w) + "+pve0"
	}
	p.System = g.Kind == "lxc"
	for _, key := range g.Conf.DriveNames() {
		p.Disks[key] = true
		if v := w.Volume(g.Node, perl.ParseDrive(key, g.Conf[key]).File); v != nil && v.System {
			p.System = true
		}
	}
	if g.Conf["lock"] == "suspended" {
		ForgetState(w, g)
		p.Booted = w.Now
	}
	g.Run = p
	if w.Cfg.Systems != nil {
		w.Cfg.Systems.Boot(g.AsMachine(w))
	}
	w.Touch(g)
	w.HA.Notice(g)
}

// PowerOff ends the process. c is the call that asked for it; nil if the guest ended it.
func PowerOff(w *core.World, g *core.Guest, c *core.Call) {
	g.Run = nil
	if w.Cfg.Systems != nil {
		w.Cfg.Systems.Halt(g.Key())
	}
	w.Hooks.Ended[g.Kind](g, c)
	w.Write(g)
	w.HA.Notice(g)
}

// Failing is the task of a call about a guest that is not there: that it is missing shows
// only in the task.
func Failing(kind string, c *core.Call, err error) core.Job {
	return core.Job{Kind: kind, ID: c.In["vmid"], Begin: func(*core.Task) error { return err }}
}

// Overrule stops the caller's own attempts to shut a guest down.
func Overrule(w *core.World, c *core.Call, g *core.Guest, kind string) {
	for _, t := range w.Tasks.All {
		if t.Running() && t.Kind == kind && t.Guest == g && c.Who.Owns(t.Who) {
			t.Kill()
		}
	}
}

// Cpus returns the number that the guest sees.
func Cpus(w *core.World, g *core.Guest) int {
	count := func(key string) int { return max(perl.Atoi(g.Conf[key]), 1) }
	if g.Kind == "lxc" {
		if n := perl.Atoi(g.Conf["cores"]); n > 0 {
			return n
		}
		return w.Cfg.CPUs
	}
	n := count("sockets") * count("cores")
	if v := perl.Atoi(g.Conf["vcpus"]); v > 0 {
		n = min(n, v)
	}
	return n
}

// Obeys says whether a guest reacts to the power button: there must be a system
// on its disks, and it must be up.
func Obeys(w *core.World, g *core.Guest) bool {
	return g.Run.System && g.Run.Qmp == "" && !w.Now.Before(g.Run.Booted)
}

// MachineVersion is the version of the newest machine type.
func MachineVersion(w *core.World) string {
	major, rest, _ := strings.Cut(QemuVersion(w), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return major + "." + minor
}

// QemuVersion is that of the QEMU which is installed.
func QemuVersion(w *core.World) string {
	if w.V9() {
		return "10.1.2"
	}
	return "10.0.2"
}

// ForgetState frees the memory that was kept of a VM, and what was noted with it.
func ForgetState(w *core.World, g *core.Guest) {
	if state := g.Conf["vmstate"]; state != "" {
		_ = core.Free(w, g.Node, state)
	}
	for _, key := range []string{"lock", "vmstate", "runningmachine", "runningcpu", "running-nets-host-mtu"} {
		delete(g.Conf, key)
	}
	w.Write(g)
}

// cpuArgument is the value of QEMU's -cpu for a guest that is not a Windows
// (get_cpu_options in PVE/QemuServer/CPUConfig.pm): the model and its flags by name.
func cpuArgument(_ *core.World, conf perl.Config) string {
	kvm := conf["kvm"] != "0"
	model := "qemu64"
	if kvm {
		model = "kvm64"
	}
	p := perl.ParseProperty("cpu", conf["cpu"])
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

// cpuLevels are the models that PVE makes of others, with the flags that they add
// (builtin_models in PVE/QemuServer/CPUConfig.pm).
var cpuLevels = map[string]string{
	"x86-64-v2":     "popcnt pni sse4.1 sse4.2 ssse3",
	"x86-64-v2-AES": "aes popcnt pni sse4.1 sse4.2 ssse3",
	"x86-64-v3":     "aes popcnt pni sse4.1 sse4.2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
	"x86-64-v4": "aes popcnt pni sse4.1 sse4.2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave " +
		"avx512f avx512bw avx512cd avx512dq avx512vl",
}
