package pve_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

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
