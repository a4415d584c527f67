package pve_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestAgent: the guest agent answers once the guest is up.
func TestAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		c.image()
		c.vm("100", form{"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "net1": "virtio,bridge=vmbr0", "ipconfig0": "ip=10.9.8.7/24,gw=10.9.8.1", "ipconfig1": "ip=dhcp"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "101"})
		path := vmURL("100", "/agent/network-get-interfaces")
		require.Equal(t, "VM 100 is not running", c.ask("GET", path, nil).reason)
		require.Equal(t, "No QEMU guest agent configured", c.ask("GET", vmURL("101", "/agent/network-get-interfaces"), nil).reason)
		c.done("POST", vmURL("100", "/status/start"), nil)
		require.Equal(t, "QEMU guest agent is not running", c.ask("GET", path, nil).reason)
		time.Sleep(10 * time.Second)
		interfaces := objects(t, c.object(path)["result"])
		require.Len(t, interfaces, 3)
		require.Equal(t, "bc:24:11:00:00:01", interfaces[1]["hardware-address"])
		addresses := objects(t, interfaces[1]["ip-addresses"])
		require.Equal(t, map[string]any{"ip-address": "10.9.8.7", "ip-address-type": "ipv4", "prefix": 24.0}, addresses[0])
		require.Equal(t, "fe80::be24:11ff:fe00:1", addresses[1]["ip-address"])
		require.NotEmpty(t, objects(t, interfaces[2]["ip-addresses"])[0]["ip-address"])
		c.ok("POST", vmURL("100", "/agent/ping"), nil)
	})
}

// TestAgentOff: an agent that is switched off is configured, but does not answer
// (agent_available in PVE/QemuServer/Agent.pm).
func TestAgentOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		c.image()
		c.vm("100", form{"agent": "0"})
		ping := step{"POST", vmURL("100", "/agent/ping"), nil, "500 VM 100 is not running"}
		c.steps(ping, step{"POST", vmURL("100", "/status/start"), nil, "OK"})
		time.Sleep(time.Minute)
		ping.want = "500 QEMU guest agent is not running"
		c.steps(ping)
	})
}

// TestAgentRefuses: what an agent refuses is the result of a call without parameters,
// and an error of one with some (register_command in PVE/API2/Qemu/Agent.pm,
// check_agent_error in PVE/QemuServer/Agent.pm).
func TestAgentRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		c.image()
		c.vm("100", form{"agent": "1"})
		c.done("POST", vmURL("100", "/status/start"), nil)
		time.Sleep(time.Minute)
		agent := func(verb, name string, params form, want string) step {
			return step{verb, vmURL("100", "/agent/"+name), params, want}
		}
		result := func(name string) any {
			answer, _ := c.ok("POST", vmURL("100", "/agent"), form{"command": name}).(map[string]any)
			return answer["result"]
		}
		refused := func(class, text string) any {
			return map[string]any{"error": map[string]any{"class": class, "desc": text}}
		}
		c.steps(
			agent("GET", "file-read?file=/etc", nil, "500 Agent error: failed to read file: Is a directory"),
			agent("POST", "file-write", form{"file": "/tmp", "content": "x"}, "500 Agent error: failed to open file '/tmp' (mode: 'wb'): Is a directory"),
			agent("POST", "file-write", form{"file": "/nosuch/x", "content": "x"}, "500 Agent error: failed to open file '/nosuch/x' (mode: 'wb'): No such file or directory"),
			agent("POST", "file-write", form{"file": "/tmp/x", "content": "x"}, "OK"),
		)
		require.Equal(t, refused("GenericError", "the requested suspend mode is not supported by the guest"), result("suspend-ram"))
		require.Equal(t, "thawed", result("fsfreeze-status"))
		require.Equal(t, 0.0, result("fsfreeze-thaw"))
		require.Equal(t, 1.0, result("fsfreeze-freeze"))
		require.Equal(t, "frozen", result("fsfreeze-status"))
		const frozen = " has been disabled: the agent is in frozen state"
		require.Equal(t, refused("CommandNotFound", "Command guest-get-users"+frozen), result("get-users"))
		require.Equal(t, map[string]any{}, result("ping"))
		c.steps(
			agent("POST", "exec", form{"command": "true"}, "500 Agent error: Command guest-exec"+frozen),
			agent("POST", "set-user-password", form{"username": "root", "password": "secret"}, "500 Agent error: Command guest-set-user-password"+frozen),
		)
		require.Equal(t, 1.0, result("fsfreeze-thaw"))
		c.steps(agent("POST", "exec", form{"command": "true"}, "OK"))
	})
}

// TestAgentsThatAreSwitchedOff: a VM whose agent is switched off has one configured, and it
// never answers (assert_agent_available in PVE/QemuServer/Agent.pm). What a program wrote
// comes with each byte as a letter (qemu_exec_status there).
func TestAgentsThatAreSwitchedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Exec: func(int, []string, string) (string, string, int, bool) { return "ä", "", 0, true }})
		c.image()
		for vmid, change := range map[string]form{"100": {"delete": "agent"}, "101": {"agent": "0"}, "102": {"agent": "1"}} {
			c.vm(vmid, nil)
			c.ok("PUT", vmURL(vmid, "/config"), change)
			c.done("POST", vmURL(vmid, "/status/start"), nil)
		}
		time.Sleep(time.Minute)
		ping := func(vmid string) step { return step{verb: "POST", path: vmURL(vmid, "/agent/ping")} }
		require.Equal(t, "500 No QEMU guest agent configured", c.answer(ping("100")))
		require.Equal(t, "500 QEMU guest agent is not running", c.answer(ping("101")))
		require.Equal(t, "OK", c.answer(ping("102")))
		c.ok("POST", vmURL("102", "/agent/exec"), form{"command": "/bin/x"})
		require.Equal(t, "Ã¤", c.object(vmURL("102", "/agent/exec-status?pid=144"))["out-data"])
	})
}

// TestAgentRuns: programs that the test declares, a few that are always there, and the
// 596 for one that is not; a result can be had once.
func TestAgentRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Exec: func(vmid int, command []string, input string) (out, err string, code int, known bool) {
			return fmt.Sprint(vmid, input), "odd", 7, command[0] == "/usr/bin/ours"
		}})
		c.image()
		c.vm("100", nil)
		require.Equal(t, "VM 100 is not running", c.ask("POST", vmURL("100", "/agent/exec"), form{"command": "true"}).reason)
		c.done("POST", vmURL("100", "/status/start"), nil)
		time.Sleep(5 * time.Second)
		run := func(words ...string) map[string]any {
			body := url.Values{"command": words, "input-data": {"in"}}.Encode()
			r, err := http.NewRequest(http.MethodPost, "https://pve/api2/json"+vmURL("100", "/agent/exec"), strings.NewReader(body))
			require.NoError(t, err)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			pid := c.send(r).data.(map[string]any)["pid"]
			status := c.object(vmURL("100", fmt.Sprintf("/agent/exec-status?pid=%v", pid)))
			require.Equal(t, "Agent error: Invalid parameter 'pid'", c.ask("GET", vmURL("100", fmt.Sprintf("/agent/exec-status?pid=%v", pid)), nil).reason)
			return status
		}
		ours := run("/usr/bin/ours", "x")
		require.Equal(t, []any{"100in", "odd", 7.0}, []any{ours["out-data"], ours["err-data"], ours["exitcode"]})
		require.Equal(t, 3.0, run("/bin/sh", "-c", "exit 3")["exitcode"])
		require.Equal(t, "vm-100\n", run("cat", "/etc/hostname")["out-data"])
		a := c.ask("POST", vmURL("100", "/agent/exec"), form{"command": "/bin/nosuch"})
		require.Equal(t, "596 Broken pipe", fmt.Sprint(a.status, " ", a.reason))

		c.ok("POST", vmURL("100", "/agent/file-write"), form{"file": "/tmp/x", "content": base64.StdEncoding.EncodeToString([]byte("hello")), "encode": "0"})
		require.Equal(t, "hello", c.object(vmURL("100", "/agent/file-read?file=/tmp/x"))["content"])
		c.ok("POST", vmURL("100", "/agent/shutdown"), nil)
		time.Sleep(time.Second)
		require.Equal(t, "stopped", c.object(vmURL("100", "/status/current"))["status"])
	})
}

// TestGuestAgentInputIsBytes: Perl makes a byte of each letter of what a program reads, of its
// arguments and of a file's content, and fails where one is wider; an agent keeps 16 MiB
// of an output (QEMU, qga/commands.c).
func TestGuestAgentInputIsBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := strings.Repeat("x", 16<<20+1)
		c := newClient(t, pve.Config{Exec: func(_ int, command []string, input string) (out, err string, code int, known bool) {
			return long, fmt.Sprintf("%q %q", command, input), 0, true
		}})
		c.image()
		c.vm("100", nil)
		c.done("POST", vmURL("100", "/status/start"), nil)
		time.Sleep(5 * time.Second)
		pid := c.ok("POST", vmURL("100", "/agent/exec"), form{"command": "\u00c3\u00a4", "input-data": "\u00ff"}).(map[string]any)["pid"]
		status := c.object(vmURL("100", fmt.Sprintf("/agent/exec-status?pid=%v", pid)))
		require.Equal(t, "[\"\u00c3\u00a4\"] \"\\xff\"", status["err-data"], "what it wrote comes as letters, too")
		require.Equal(t, []any{1.0, 0.0, 16 << 20}, []any{status["out-truncated"], status["err-truncated"], len(status["out-data"].(string))})
		for _, f := range []form{{"command": "\u2013"}, {"command": "x", "input-data": "\u2013"}} {
			require.Contains(t, c.ask("POST", vmURL("100", "/agent/exec"), f).reason, "Wide character in subroutine entry at ")
		}
		require.Contains(t, c.ask("POST", vmURL("100", "/agent/exec"), form{"command": "\u00ff"}).reason, "invalid UTF-8")
		require.Contains(t, c.ask("POST", vmURL("100", "/agent/file-write"), form{"file": "/tmp/x", "content": "\u2013"}).reason, "Wide character")
		c.ok("POST", vmURL("100", "/agent/file-write"), form{"file": "/tmp/x", "content": "\u00ff"})
		require.Equal(t, 1.0, c.object(vmURL("100", "/agent/file-read?file=/tmp/x"))["bytes-read"])
	})
}

// TestMonitor: the commands of QEMU's monitor that are known, and keys for a VM that runs.
func TestMonitor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		c.image()
		c.vm("100", nil)
		require.Equal(t, "VM 100 not running", c.ask("PUT", vmURL("100", "/sendkey"), form{"key": "ret"}).reason)
		require.Equal(t, "VM 100 not running", c.ask("POST", vmURL("100", "/monitor"), form{"command": "info status"}).reason)
		c.done("POST", vmURL("100", "/status/start"), nil)
		for command, said := range map[string]string{"info status": "VM status: running\r\n", "info name": "vm-100\r\n", "info version": "pve-qemu-kvm"} {
			require.Contains(t, c.ok("POST", vmURL("100", "/monitor"), form{"command": command}), said)
		}
		require.Equal(t, 501, c.ask("POST", vmURL("100", "/monitor"), form{"command": "quit"}).status)
		c.ok("PUT", vmURL("100", "/sendkey"), form{"key": "ctrl-alt-delete"})
	})
}
