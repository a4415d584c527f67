package pvesim

import (
	"maps"
	"slices"
	"strings"
)

// powerOn lets the process be there.
func (w *world) powerOn(g *guest) {
	p := &process{pid: w.pid(), since: w.now, booted: w.now.Add(w.cfg.BootTime), disks: map[string]bool{}}
	p.machine = "pc-i440fx-" + w.machineVersion() + "+pve0"
	if strings.Contains(g.conf["machine"], "q35") {
		p.machine = "pc-q35-" + w.machineVersion() + "+pve0"
	}
	p.system = g.kind == "lxc"
	for _, key := range driveNames(g.conf) {
		p.disks[key] = true
		if v := w.volume(g.node, parseDrive(key, g.conf[key]).file); v != nil && v.system {
			p.system = true
		}
	}
	if g.conf["lock"] == "suspended" {
		w.forgetState(g)
		p.booted = w.now
	}
	g.run = p
	w.touch(g)
	w.ha.notice(g)
}

// powerOff ends the process. c is the call that asked for it; nil if it ended by itself.
func (w *world) powerOff(g *guest, c *call) {
	g.run = nil
	w.hooks.ended[g.kind](g, c)
	w.write(g)
	w.ha.notice(g)
}

// overrule stops the caller's own attempts to shut a guest down.
func (w *world) overrule(c *call, g *guest, kind string) {
	for _, t := range w.tasks.all {
		if t.running() && t.kind == kind && t.guest == g && c.who.owns(t.who) {
			t.kill()
		}
	}
}

// cpus is how many the guest sees.
func (w *world) cpus(g *guest) int {
	count := func(key string) int { return max(atoi(g.conf[key]), 1) }
	if g.kind == "lxc" {
		if n := atoi(g.conf["cores"]); n > 0 {
			return n
		}
		return w.cfg.CPUs
	}
	n := count("sockets") * count("cores")
	if v := atoi(g.conf["vcpus"]); v > 0 {
		n = min(n, v)
	}
	return n
}

// obeys says whether a guest reacts to the power button: there must be a system
// on its disks, and it must be up.
func (w *world) obeys(g *guest) bool {
	return g.run.system && g.run.qmp == "" && !w.now.Before(g.run.booted)
}

func (w *world) machineVersion() string {
	major, rest, _ := strings.Cut(w.qemuVersion(), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return major + "." + minor
}

// qemuVersion is that of the QEMU which is installed.
func (w *world) qemuVersion() string {
	if w.v9() {
		return "10.1.2"
	}
	return "10.0.2"
}

// forgetState frees the memory that was kept of a VM, and what was noted with it.
func (w *world) forgetState(g *guest) {
	if state := g.conf["vmstate"]; state != "" {
		_ = w.free(g.node, state)
	}
	for _, key := range []string{"lock", "vmstate", "runningmachine", "runningcpu", "running-nets-host-mtu"} {
		delete(g.conf, key)
	}
	w.write(g)
}

// setOffline takes a node down or brings it back.
func (w *world) setOffline(node string, down bool) {
	w.nodes[node].offline = down
	for _, vmid := range w.vmids {
		if g := w.guests[vmid]; g.node == node {
			w.ha.notice(g)
		}
	}
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

// cpuLevels are the models that PVE makes of others, with the flags that they add
// (builtin_models in PVE/QemuServer/CPUConfig.pm).
var cpuLevels = map[string]string{
	"x86-64-v2":     "popcnt pni sse4.1 sse4.2 ssse3",
	"x86-64-v2-AES": "aes popcnt pni sse4.1 sse4.2 ssse3",
	"x86-64-v3":     "aes popcnt pni sse4.1 sse4.2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
	"x86-64-v4": "aes popcnt pni sse4.1 sse4.2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave " +
		"avx512f avx512bw avx512cd avx512dq avx512vl",
}
