package qemu

// The guest agent of a VM answers as on a small Linux, keeps files that were written, and
// runs a few programs.

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// agentArea is the guest agent of VMs.
func agentArea() core.Area {
	routes := agentRoutes()
	maps.Copy(routes, map[string]core.Handler{
		"POST /nodes/{node}/qemu/{vmid}/agent":                   apiAgentCommand,
		"POST /nodes/{node}/qemu/{vmid}/agent/exec":              core.On(thawed("exec"), apiAgentExec),
		"GET /nodes/{node}/qemu/{vmid}/agent/exec-status":        core.On(thawed("exec-status"), apiAgentExecStatus),
		"GET /nodes/{node}/qemu/{vmid}/agent/file-read":          core.On(thawed("file-open"), apiAgentRead),
		"POST /nodes/{node}/qemu/{vmid}/agent/file-write":        core.On(thawed("file-open"), apiAgentWrite),
		"POST /nodes/{node}/qemu/{vmid}/agent/set-user-password": core.On(thawed("set-user-password"), apiAgentPassword),
	})
	return core.Area{
		Routes: routes,
	}
}

// agent finds the VM of an agent call whose agent answers (qga_check_running in
// PVE/QemuServer/Agent.pm). A guest answers when it has a system on its disks
// and had the time to boot. An agent that is switched off counts as one that does not
// answer; only without the option it is not configured (agent_available).
func agent(c *core.Call) (*core.Guest, error) {
	g, err := c.Guest()
	switch {
	case err != nil:
		return nil, err
	case g.Conf["agent"] == "":
		return nil, perl.Fail("No QEMU guest agent configured")
	case g.Run == nil:
		return nil, perl.Fail("VM %d is not running", g.Vmid)
	case !g.AgentEnabled() || !guests.Obeys(c.W, g):
		return nil, perl.Fail("QEMU guest agent is not running")
	}
	return g, nil
}

// agentCall makes a handler of what an agent answers.
func agentCall(answer func(*core.World, *core.Guest) any) core.Handler {
	return core.On(agent, func(w *core.World, _ *core.Call, g *core.Guest) (any, error) {
		return map[string]any{"result": answer(w, g)}, nil
	})
}

// agentAwake makes a handler of a response that an agent gives while the guest's file systems are not frozen. An
// error of the agent is the result of a call without parameters: PVE only checks for an error in the others
// (register_command in PVE/API2/Qemu/Agent.pm).
func agentAwake(name string, answer func(*core.World, *core.Guest) any) core.Handler {
	return agentCall(func(w *core.World, g *core.Guest) any {
		if system(g).Frozen {
			return refusal("CommandNotFound", frozenText(name))
		}
		return answer(w, g)
	})
}

func refusal(class, text string) any {
	return map[string]any{"error": map[string]any{"class": class, "desc": text}}
}

// frozenText returns an agent's error about a command that has to wait for a thaw
// (qmp_dispatch in qapi/qmp-dispatch.c, qga/main.c of QEMU).
func frozenText(name string) string {
	return "Command guest-" + name + " has been disabled: the agent is in frozen state"
}

// agentCannot is the answer of an agent whose guest cannot be suspended
// (qga/commands-linux.c of QEMU).
func agentCannot(*core.World, *core.Guest) any {
	return refusal("GenericError", "the requested suspend mode is not supported by the guest")
}

// thawed finds the VM of a call with parameters, which an agent refuses while file systems
// are frozen (check_agent_error in PVE/QemuServer/Agent.pm).
func thawed(name string) func(*core.Call) (*core.Guest, error) {
	return func(c *core.Call) (*core.Guest, error) {
		g, err := agent(c)
		if err == nil && system(g).Frozen {
			return nil, perl.Fail("Agent error: %s", frozenText(name))
		}
		return g, err
	}
}

func agentPing(*core.World, *core.Guest) any { return map[string]any{} }

func agentHostname(_ *core.World, g *core.Guest) any {
	return map[string]any{"host-name": guestHostname(g)}
}

// guestHostname returns the hostname of a VM's system.
func guestHostname(g *core.Guest) string {
	if name := g.Conf["name"]; name != "" {
		return name
	}
	return fmt.Sprintf("VM%d", g.Vmid)
}

// agentOS tells what the guest has in its os-release, and of its kernel
// (qga/commands-posix.c of QEMU).
func agentOS(w *core.World, _ *core.Guest) any {
	system := w.Cfg.System
	info := map[string]any{"kernel-release": system.Kernel, "kernel-version": system.KernelVersion, "machine": "x86_64"}
	for line := range strings.Lines(system.Release) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "ID", "NAME", "PRETTY_NAME", "VERSION", "VERSION_ID", "VARIANT", "VARIANT_ID":
			info[strings.ToLower(strings.ReplaceAll(key, "_", "-"))] = strings.Trim(value, `"'`)
		}
	}
	return info
}

func agentTime(w *core.World, _ *core.Guest) any { return w.Now.UnixNano() }

func agentZone(*core.World, *core.Guest) any { return map[string]any{"zone": "UTC", "offset": 0} }

func agentUsers(*core.World, *core.Guest) any { return []any{} }

func agentVCPUs(w *core.World, g *core.Guest) any {
	list := []map[string]any{}
	for n := range guests.Cpus(w, g) {
		list = append(list, map[string]any{"logical-id": n, "online": true, "can-offline": n > 0})
	}
	return list
}

func agentInfo(*core.World, *core.Guest) any {
	list := []map[string]any{}
	for name := range strings.FieldsSeq("get-cpustats get-diskstats ssh-remove-authorized-keys ssh-add-authorized-keys " +
		"ssh-get-authorized-keys get-devices get-osinfo get-timezone get-users get-host-name exec exec-status get-memory-block-info " +
		"set-memory-blocks get-memory-blocks set-user-password get-fsinfo get-disks set-vcpus get-vcpus network-get-interfaces " +
		"suspend-hybrid suspend-ram suspend-disk fstrim fsfreeze-thaw fsfreeze-freeze-list fsfreeze-freeze fsfreeze-status " +
		"file-flush file-seek file-write file-read file-close file-open shutdown info set-time get-time ping sync sync-delimited") {
		silent := name == "shutdown" || strings.HasPrefix(name, "suspend-") // A guest that is off does not respond.
		list = append(list, map[string]any{"name": "guest-" + name, "enabled": name != "get-devices", "success-response": !silent})
	}
	return map[string]any{"version": "9.2.0", "supported_commands": list}
}

// agentInterfaces are the loopback and one interface per network device, with
// the address of its ipconfig, or one as DHCP would give it.
func agentInterfaces(w *core.World, g *core.Guest) any {
	list := []map[string]any{{
		"name": "lo", "hardware-address": "00:00:00:00:00:00", "statistics": noTraffic(),
		"ip-addresses": []map[string]any{address("127.0.0.1", 8), address("::1", 128)},
	}}
	for _, key := range g.Conf.IndexedKeys("net") {
		_, n := perl.SplitKey(key)
		mac := strings.ToLower(perl.ParseProperty(key, g.Conf[key])["macaddr"])
		list = append(list, map[string]any{
			"name": fmt.Sprintf("eth%d", n), "hardware-address": mac, "statistics": noTraffic(),
			"ip-addresses": GuestAddresses(w, g, n, mac),
		})
	}
	return list
}

func noTraffic() map[string]any {
	return map[string]any{
		"rx-bytes": 0, "rx-dropped": 0, "rx-errs": 0, "rx-packets": 0, "tx-bytes": 0, "tx-dropped": 0, "tx-errs": 0, "tx-packets": 0,
	}
}

func address(ip string, prefix int) map[string]any {
	kind := "ipv4"
	if strings.Contains(ip, ":") {
		kind = "ipv6"
	}
	return map[string]any{"ip-address": ip, "ip-address-type": kind, "prefix": prefix}
}

// GuestAddresses are those of the n-th interface of a guest, from its cloud-init drive. An interface without any
// uses DHCP, the default of cloud images.
func GuestAddresses(w *core.World, g *core.Guest, n int, mac string) []map[string]any {
	list := []map[string]any{}
	ip := perl.ParseProperty("ipconfig0", g.Conf[fmt.Sprintf("ipconfig%d", n)])
	for _, key := range []string{"ip", "ip6"} {
		if p, err := netip.ParsePrefix(ip[key]); err == nil {
			list = append(list, address(p.Addr().String(), p.Bits()))
		}
	}
	if ip["ip"] == "dhcp" || len(list) == 0 {
		lease := g.Leased(w, n)
		list = append(list, address(lease.Addr().String(), lease.Bits()))
	}
	return append(list, address(guests.LinkLocal(mac), 64))
}

func agentRoutes() map[string]core.Handler {
	all := map[string]core.Handler{}
	for name, h := range agentCommands {
		all[agentMethod(name)] = h
	}
	return all
}

// agentCommands are the calls without parameters.
var agentCommands = agentHandlers()

func agentHandlers() map[string]core.Handler {
	all := map[string]core.Handler{
		"ping": agentCall(agentPing), "info": agentCall(agentInfo), "fsfreeze-status": agentCall(agentFreezing),
		"fsfreeze-thaw": agentCall(agentThaw), "shutdown": core.On(agent, apiAgentShutdown),
	}
	for name, answer := range map[string]func(*core.World, *core.Guest) any{
		"get-host-name": agentHostname, "get-osinfo": agentOS, "get-time": agentTime, "get-timezone": agentZone,
		"get-users": agentUsers, "get-vcpus": agentVCPUs, "network-get-interfaces": agentInterfaces,
		"get-fsinfo": agentFilesystems, "fsfreeze-freeze": agentFreeze, "get-memory-block-info": agentBlockInfo,
		"get-memory-blocks": agentBlocks, "fstrim": agentTrim,
		"suspend-disk": agentCannot, "suspend-ram": agentCannot, "suspend-hybrid": agentCannot,
	} {
		all[name] = agentAwake(name, answer)
	}
	return all
}

// apiAgentCommand is POST …/agent with the command as a parameter.
func apiAgentCommand(w *core.World, c *core.Call) (any, error) {
	if h, ok := agentCommands[c.In["command"]]; ok {
		return h(w, c)
	}
	return nil, c.Unimplemented("agent command " + c.In["command"])
}

func agentBlockInfo(*core.World, *core.Guest) any { return map[string]any{"size": agentBlockSize} }

func agentBlocks(_ *core.World, g *core.Guest) any {
	list := []map[string]any{}
	for n := range perl.MemoryMiB(g.Conf["memory"]) << 20 / agentBlockSize {
		list = append(list, map[string]any{"phys-index": n, "online": true, "can-offline": true})
	}
	return list
}

const agentBlockSize = 128 << 20
